"""The normal case: requests become prepares, which become durable, committed and applied.

on_requests     primary   → Append, Prepares to all
on_prepares     backup    → Append
on_durable      both      → PrepareOk to the primary; the primary counts itself
on_prepare_ok   primary   → commit, by a replication quorum → Apply → Reply
on_heartbeat    backup    → commit; PrepareOk again, in case one was lost
"""

from collections.abc import Sequence

from headrace.errors import Busy, HeadraceError, NotReady
from headrace.model.ids import Op, ReplicaId
from headrace.model.proposal import EntryProposal
from headrace.vsr import join, repair
from headrace.vsr.effects import Append, Apply, Reply
from headrace.vsr.member_state import PIPELINE_MAX, SEAL_SLOTS, MemberState, MemberStatus
from headrace.vsr.peer_messages import (
    GROUP_SIZE_MAX,
    E,
    Heartbeat,
    PrepareOk,
    Prepares,
    header_of,
)


def on_requests(
    state: MemberState[E], requests: Sequence[tuple[EntryProposal, object]]
) -> None:
    """Assign ops to requests, and send them as one commit group, before our own disk write."""
    entries: list[E] = []
    ticket = state.next_ticket()
    for request, asker in requests:
        refusal = _refusal(state, request)
        if refusal is not None:
            if asker is not None:
                state.out.append(Reply(asker, refusal))
            continue
        entry = _prepare(state, request)
        state.log.add(header_of(entry), ticket)
        state.sizes[entry.op] = len(request.body)
        if asker is not None:
            state.tickets[entry.op] = asker
        entries.append(entry)
    if not entries:
        return
    append(state, ticket, entries)
    message = Prepares(state.view, state.commit, state.log.head, tuple(entries))
    state.broadcast(message)
    if "stall" not in state.due:
        state.arm("stall", state.times.stall)


def _refusal(state: MemberState[E], request: EntryProposal) -> HeadraceError | None:
    if not state.leads:
        return NotReady(f"replica {state.me} is not the primary of view {state.view}")
    spare = 0 if request.operation == state.seal_operation else SEAL_SLOTS
    next_op = state.log.head + 1
    if next_op - state.log.anchor + spare > state.slots:
        return Busy("the ring is full until the next checkpoint", retry_after_ms=100)
    if next_op - state.commit > PIPELINE_MAX:
        return Busy("the pipeline is full", retry_after_ms=10)
    waiting = sum(state.sizes.values())
    if waiting and waiting + len(request.body) > GROUP_SIZE_MAX:
        return Busy(f"the pipeline holds {waiting} bytes", retry_after_ms=10)
    if next_op - _quorum_head(state) > state.slots // 2:
        return Busy("a quorum is more than half a ring behind", retry_after_ms=100)
    return None


def _quorum_head(state: MemberState[E]) -> Op:
    """The head of the replica that completes a quorum."""
    heads = sorted([*state.heads[: state.me], *state.heads[state.me + 1 :], state.log.head])
    return heads[-state.quorum.replication]


def _prepare(state: MemberState[E], request: EntryProposal) -> E:
    parent = state.log.checksum(state.log.head)
    assert parent is not None
    state.timestamp = max(state.timestamp + 1, state.clock.trusted)
    op = Op(state.log.head + 1)
    return state.seal(request, op=op, parent=parent, view=state.view, timestamp=state.timestamp)


def append(state: MemberState[E], ticket: int, entries: Sequence[E]) -> None:
    state.appends[ticket] = (entries[0].op, entries[-1].op)
    state.timestamp = max(state.timestamp, entries[-1].timestamp)
    state.out.append(Append(ticket, tuple(entries)))


def on_prepares(state: MemberState[E], sender: ReplicaId, message: Prepares[E]) -> None:
    """Backup: accept entries after our head, only from the primary of our own view."""
    if not _is_heard(state, sender, message.view):
        return
    _hear(state, message.commit, message.op)
    taken: list[E] = []
    ticket = state.next_ticket()
    for entry in message.entries if state.transfer is None else ():
        if entry.op in state.log.faulty:
            repair.take(state, entry)
        elif entry.op == state.log.head + 1 and _fits(state, entry):
            state.log.add(header_of(entry), ticket)
            taken.append(entry)
        elif entry.op > state.log.head + 1:
            break
    if taken:
        append(state, ticket, taken)
        state.due.pop("range", None)
    else:
        acknowledge(state)
    advance(state)
    repair.catch_up(state)


def _fits(state: MemberState[E], entry: E) -> bool:
    """Return whether an entry can be the next: it chains, is valid, and has a slot."""
    if entry.parent != state.log.checksum(state.log.head):
        state.drop("prepare does not chain")
        return False
    if entry.view > state.view or not state.accepts(entry):
        state.drop("prepare is not sound")
        return False
    if entry.op - state.log.anchor > state.slots:
        state.drop("no slot for a prepare")
        return False
    return True


def on_heartbeat(state: MemberState[E], sender: ReplicaId, message: Heartbeat) -> None:
    """Backup: the primary is alive."""
    if not _is_heard(state, sender, message.view):
        return
    if message.beat > state.beat:
        state.beat = message.beat
        state.arm("election", _patience(state))
    _hear(state, message.commit, message.op)
    advance(state)
    acknowledge(state)
    repair.catch_up(state)


def _patience(state: MemberState[E]) -> int:
    return state.times.election + state.times.stagger * state.me


def _is_heard(state: MemberState[E], sender: ReplicaId, view: int) -> bool:
    """Return whether this is from the primary of a view whose log contains ours."""
    if view < state.view:
        state.drop("of an older view")
        return False
    if sender != view % state.count:
        state.drop("not from the primary")
        return False
    if view > state.view or not state.follows:
        join.ask_for_view(state, sender)
        return False
    return True


def _hear(state: MemberState[E], commit: Op, op: Op) -> None:
    state.commit = max(state.commit, commit)
    state.primary_op = max(state.primary_op, op)


def acknowledge(state: MemberState[E]) -> None:
    """Report our durable op to the primary, if the view's log is installed here."""
    if not (state.follows and state.may_vote) or state.is_silent:
        return
    if state.log_view_durable != state.view or state.view_durable != state.view:
        return
    op = state.log.whole
    checksum = state.log.checksum(op)
    if checksum is not None:
        state.send(state.primary, PrepareOk(state.view, op, checksum, state.log.head))


def on_durable(state: MemberState[E], ticket: int) -> None:
    """The journal has written and synced one append."""
    first, last = state.appends.pop(ticket)
    state.log.durable(first, last, ticket)
    if state.leads:
        count_own(state)
    else:
        join.settle(state)
        acknowledge(state)
    advance(state)


def count_own(state: MemberState[E]) -> None:
    """Count the primary's own durable ops."""
    state.acked[state.me] = state.log.whole
    count(state)


def on_prepare_ok(state: MemberState[E], sender: ReplicaId, message: PrepareOk) -> None:
    """Primary: record the acknowledged op. The checksum proves that the logs agree."""
    if not state.leads or message.view != state.view:
        state.drop("ack of another view")
        return
    state.heads[sender] = max(state.heads[sender], message.head)
    if message.op > state.log.head or state.log.checksum(message.op) != message.checksum:
        if message.op > state.log.anchor:
            state.drop("ack of another entry")
        return
    state.acked[sender] = max(state.acked[sender], message.op)
    count(state)
    advance(state)


def count(state: MemberState[E]) -> None:
    """Commit ops held by a replication quorum, which need not include our own disk."""
    committed = sorted(state.acked)[-state.quorum.replication]
    state.commit = max(state.commit, committed)
    for op in [op for op in state.sizes if op <= state.commit]:
        del state.sizes[op]


def advance(state: MemberState[E]) -> None:
    """Apply ops that are committed and whole here, in order."""
    if not (state.leads or state.follows):
        return
    last = min(state.commit, state.log.whole)
    for number in range(max(state.asked, state.applied) + 1, last + 1):
        checksum = state.log.checksum(Op(number))
        assert checksum is not None
        state.out.append(Apply(Op(number), checksum))
        state.asked = Op(number)


def on_applied(state: MemberState[E], op: Op, result: object) -> None:
    """The machine has applied `op`: answer its caller."""
    assert op == state.applied + 1
    assert op <= state.commit
    state.applied = op
    state.log.cover(op)
    if state.leads:
        state.arm("stall", state.times.stall)
    ticket = state.tickets.pop(op, None)
    if ticket is not None and state.leads:
        state.out.append(Reply(ticket, (op, result)))


def on_tick(state: MemberState[E]) -> None:
    """The primary sends heartbeats, unless its own log has stalled."""
    if state.leads:
        stalled = state.applied < state.log.head and state.is_due("stall")
        if stalled:
            state.refuse_all("the primary's own disk has stalled")
            state.status = MemberStatus.PROBING  # no more heartbeats: the others elect
            join.begin(state)
            return
        if state.applied == state.log.head:
            state.due.pop("stall", None)
        elif "stall" not in state.due:
            state.arm("stall", state.times.stall)
        if state.is_due("heartbeat") or "heartbeat" not in state.due:
            beat(state)


def beat(state: MemberState[E]) -> None:
    state.beat += 1
    state.broadcast(Heartbeat(state.view, state.commit, state.log.head, state.beat))
    state.arm("heartbeat", state.times.heartbeat)
