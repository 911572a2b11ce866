"""Fetches missing entries: ranges from the primary, single entries by name from any replica.

Everything is driven by what is still missing, and repeated, so that lost messages do not
matter; every request is bounded.
"""

from collections.abc import Iterator

from headrace.model.ids import Op, ReplicaId
from headrace.vsr import join, normal, snapshot_transfer, view_change
from headrace.vsr.effects import DropPrevious, Mend, Serve
from headrace.vsr.member_state import MemberState, MemberStatus
from headrace.vsr.peer_messages import (
    RANGE_MAX,
    E,
    Evicted,
    Exact,
    GetExact,
    GetRange,
    Name,
    header_of,
)


def on_tick(state: MemberState[E]) -> None:
    catch_up(state)
    if state.is_due("exact") or "exact" not in state.due:
        ask_exact(state)


def catch_up(state: MemberState[E]) -> None:
    """Backup: request the entries after our head from the primary."""
    if not state.follows or state.transfer is not None:
        return
    log = state.log
    if log.head >= state.primary_op or ("range" in state.due and not state.is_due("range")):
        return
    state.arm("range", state.times.repair)
    if log.head - log.anchor >= state.slots:
        # A peer's journal may begin later than ours, so its next Seal may come too late here.
        if state.applied == log.head:
            state.out.append(DropPrevious())
        return
    last = Op(min(state.primary_op, log.head + RANGE_MAX))
    state.send(state.primary, GetRange(state.view, Op(log.head + 1), last))


def on_get_range(state: MemberState[E], sender: ReplicaId, message: GetRange) -> None:
    """Primary: serve durable and whole entries, as many as fit into one answer."""
    if not state.leads or message.view != state.view:
        state.drop("range of another view")
        return
    if message.first <= state.log.anchor:
        state.send(sender, Evicted(state.view, Op(state.log.anchor + 1)))
        return
    last = Op(min(message.last, message.first + RANGE_MAX - 1, state.log.head))
    names = tuple(_held(state, message.first, last))
    if names:
        state.out.append(Serve(sender, state.view, state.commit, state.log.head, names))


def _held(state: MemberState[E], first: Op, last: Op) -> Iterator[Name]:
    for number in range(first, last + 1):
        checksum = state.log.checksum(Op(number))
        if checksum is None or not state.log.is_durable(Op(number)):
            return
        yield Name(Op(number), checksum)


def wanted(state: MemberState[E]) -> list[Name]:
    """List entries needed by name: faulty ones, and the log of a view to be led."""
    names: list[Name] = []
    for op in sorted(state.log.faulty, reverse=True):
        above = state.log.header(Op(op + 1))
        if above is not None:
            state.log.name(op, above.parent)
        checksum = state.log.checksum(op)
        if checksum is not None and op not in state.mending:
            names.append(Name(op, checksum))
    merged = state.election.merged
    if state.status is MemberStatus.VIEW_CHANGE and merged is not None:
        names += [
            Name(header.op, header.checksum)
            for header in merged.headers
            if header.op > state.log.head and header.op not in state.fetched
        ]
    return sorted(names)[:RANGE_MAX]


def ask_exact(state: MemberState[E]) -> None:
    """Request entries by name, from the peers round-robin."""
    names = wanted(state)
    if not names:
        return
    state.arm("exact", state.times.repair)
    state.turn += 1
    state.send(state.others[state.turn % len(state.others)], GetExact(tuple(names)))


def on_get_exact(state: MemberState[E], sender: ReplicaId, message: GetExact) -> None:
    held = [
        name
        for name in message.names[:RANGE_MAX]
        if state.log.is_durable(name.op) and state.log.checksum(name.op) == name.checksum
    ]
    if held:
        state.out.append(Serve(sender, None, Op(0), Op(0), tuple(held)))
    elif message.names and message.names[0].op <= state.log.anchor:
        state.send(sender, Evicted(state.view, Op(state.log.anchor + 1)))


def on_exact(state: MemberState[E], sender: ReplicaId, message: Exact[E]) -> None:
    """Accept entries requested by name; drop others."""
    names = set(wanted(state))
    for entry in message.entries:
        if Name(entry.op, entry.checksum) not in names:
            state.drop("entry that was not requested")
        elif entry.op in state.log.faulty:
            take(state, entry)
        else:
            state.fetched[entry.op] = entry
    if state.status is MemberStatus.VIEW_CHANGE:
        view_change.install(state)
    if any(Name(entry.op, entry.checksum) in names for entry in message.entries):
        ask_exact(state)


def take(state: MemberState[E], entry: E) -> None:
    """Overwrite the faulty slot of an entry."""
    checksum = state.log.checksum(entry.op)
    if checksum != entry.checksum or entry.op in state.mending:
        return
    ticket = state.next_ticket()
    state.mending[entry.op] = ticket
    state.log.name(Op(entry.op - 1), entry.parent)
    state.mends[ticket] = header_of(entry)
    state.out.append(Mend(ticket, (entry,)))


def on_mended(state: MemberState[E], ticket: int) -> None:
    """A faulty slot is repaired, unless it was cut meanwhile."""
    header = state.mends.pop(ticket, None)
    if header is not None and state.mending.get(header.op) == ticket:
        del state.mending[header.op]
        state.log.mended(header)
    if state.status is MemberStatus.VIEW_CHANGE:
        view_change.install(state)
    elif state.leads:
        normal.count_own(state)
    else:
        join.settle(state)
        normal.acknowledge(state)
    normal.advance(state)


def on_faulty(state: MemberState[E], op: Op) -> None:
    """The driver could not read an entry that was durable."""
    state.log.spoiled(op)
    state.asked = min(state.asked, Op(op - 1))
    state.due.pop("exact", None)


def on_evicted(state: MemberState[E], sender: ReplicaId, message: Evicted) -> None:
    """The missing entries are no longer in the peer's journal, only in its snapshot."""
    missing = [op for op in state.log.faulty if op > state.applied]
    if state.log.head < state.primary_op:
        missing.append(Op(state.log.head + 1))
    if not state.is_backup or (state.is_verified and not missing):
        return
    # A faulty op below the applied ones counts, too: it anchors the next op, or a cut.
    if min([*state.log.faulty, *missing], default=message.first) < message.first:
        snapshot_transfer.begin(state)
