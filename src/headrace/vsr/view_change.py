"""Leaving a view and starting the next: start-view-change, do-view-change, the merged log.

start              the view is durable first        → StartViewChange to all
a quorum has left                                   → DoViewChange to the new primary
the new primary    merges, waits by name if needed, cuts, fetches what the merged log has
all of it durable  log_view is durable              → StartView to all
"""

from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr import join, normal, repair
from headrace.vsr.effects import DropPrevious
from headrace.vsr.member_state import Election, MemberState, MemberStatus
from headrace.vsr.merge import Conflict, Merged, Waiting, merge
from headrace.vsr.op_log import Condition
from headrace.vsr.peer_messages import (
    HEADERS_MAX,
    DoViewChange,
    E,
    Peer,
    StartView,
    StartViewChange,
    Vote,
    header_of,
)


def start(state: MemberState[E], view: View) -> None:
    """Leave all views below `view`: nothing of them is acknowledged from now on."""
    assert state.may_vote
    assert view > state.view
    state.refuse_all(f"the primary of view {state.view} has lost its lead")
    state.status = MemberStatus.VIEW_CHANGE
    state.is_verified, state.named, state.beat = False, None, 0
    state.primary_op = Op(0)
    state.fetched.clear()
    state.asked = state.applied
    state.election = Election()
    state.due.pop("resend", None)
    state.arm("view change", state.times.view_change + state.times.stagger * state.me)
    state.raise_view(view, lambda: _announce(state, view))


def _announce(state: MemberState[E], view: View) -> None:
    """The view is durable: announce that we have left the old ones."""
    if state.view != view or state.status is not MemberStatus.VIEW_CHANGE or not state.may_vote:
        return
    state.election.started.add(state.me)
    state.arm("resend", state.times.resend)
    state.broadcast(StartViewChange(view))
    _vote(state)


def on_start_view_change(
    state: MemberState[E], sender: ReplicaId, message: StartViewChange
) -> None:
    if message.view < state.view or not state.may_vote:
        state.drop("start-view-change of an older view")
        return
    if message.view > state.view:
        start(state, message.view)
    elif state.status is MemberStatus.PROBING and state.log_view < state.view:
        _resume(state)
    if state.status is MemberStatus.VIEW_CHANGE:
        state.election.started.add(sender)
        _vote(state)
    elif state.leads:
        join.send_start_view(state, sender, Op(state.commit + 1), 0)


def _resume(state: MemberState[E]) -> None:
    """Resume a view change that was in progress before a restart."""
    state.status = MemberStatus.VIEW_CHANGE
    state.election = Election()
    state.arm("view change", state.times.view_change + state.times.stagger * state.me)
    view = state.view
    if state.view_durable == view:
        _announce(state, view)
    else:  # raised by messages of others, and being written
        state.persist(lambda: _announce(state, view))


def _vote(state: MemberState[E]) -> None:
    """Send our log to the new primary, once a quorum has left the old views."""
    election = state.election
    if len(election.started) < state.quorum.view_change or state.view_durable != state.view:
        return
    if state.me not in election.started:
        return
    election.voted = True
    vote = own_vote(state)
    if state.primary == state.me:
        take_vote(state, Peer(state.me, state.life, state.boot, state.past), vote)
    else:
        state.send(state.primary, vote)


def own_vote(state: MemberState[E]) -> DoViewChange:
    """Create our vote: the content of our log above the commit."""
    log = state.log
    first = Op(max(min(state.commit, log.head), log.anchor + 1, log.head - HEADERS_MAX + 1))
    votes = []
    for number in range(first, log.head + 1):
        slot = log.slots[Op(number)]
        pending = slot.condition is Condition.PENDING
        votes.append(Vote(slot.header, slot.condition is Condition.DURABLE, pending))
    return DoViewChange(
        view=state.view,
        log_view=state.log_view_durable,
        op=log.head,
        commit=state.commit,
        first=first,
        votes=tuple(votes),
        suspect=state.suspect,
        lives=tuple(state.lives),
        to_boot=state.boots[state.primary],
        boots=tuple(state.boots),
    )


def on_do_view_change(state: MemberState[E], sender: Peer, message: DoViewChange) -> None:
    """Primary of the new view: collect logs. A vote is valid for one life of ours only."""
    if message.view < state.view or not state.may_vote:
        state.drop("do-view-change of an older view")
        return
    if message.to_boot != state.boot or state.primary_of(message.view) != state.me:
        state.drop("do-view-change for another life")
        return
    if message.view > state.view:
        start(state, message.view)
    if state.status is not MemberStatus.VIEW_CHANGE:
        if state.leads:
            join.send_start_view(state, sender.replica, Op(state.commit + 1), 0)
        return
    state.election.started.add(sender.replica)
    take_vote(state, sender, message)
    _vote(state)


def take_vote(state: MemberState[E], sender: Peer, vote: DoViewChange) -> None:
    election = state.election
    if election.merged is not None:
        return
    election.votes[sender.replica] = vote
    election.voters[sender.replica] = sender
    decide(state)


def decide(state: MemberState[E]) -> None:
    """Merge the votes once there is a quorum; each further vote may decide it."""
    election = state.election
    votes = {
        one: vote
        for one, vote in sorted(election.votes.items())
        if not any(_is_past(election.voters[one], other) for other in election.votes.values())
    }
    if state.me not in votes or len(votes) < state.quorum.view_change:
        return
    outcome = merge(votes, state.quorum, state.given_up)
    state.awaiting = None
    match outcome:
        case Merged():
            election.merged, election.is_adopted = outcome, False
            _adopt(state, outcome)
        case Waiting(op, replicas):
            state.awaiting = (op, replicas)
        case Conflict(op, why):
            state.drop(f"conflict: {why}")
            silent = [one for one in state.others if one not in votes]
            state.awaiting = (op, tuple(silent))


def _is_past(voter: Peer, vote: DoViewChange) -> bool:
    """Return whether another voter knows a later or unrelated life of this voter."""
    life, boot = vote.lives[voter.replica], vote.boots[voter.replica]
    return life > voter.life or not voter.descends_from(life, boot)


def _adopt(state: MemberState[E], merged: Merged) -> None:
    """Cut what the merged log lacks. Without its committed part, let another replica lead."""
    common = _common(state, merged)
    if common is None:
        state.election.is_aside = True
        return
    if common < state.log.head and common in state.log.faulty:
        repair.ask_exact(state)  # as in join: the entry below a cut is repaired first
        return
    if common < state.log.head:
        join.cut(state, Op(common + 1))
    if state.halted is None:
        state.election.is_adopted = True
        state.commit = max(state.commit, merged.commit)
        times = [header.timestamp for header in merged.headers]
        state.timestamp = max(state.timestamp, *times, 0)
        install(state)


def _common(state: MemberState[E], merged: Merged) -> Op | None:
    """Return the last common op with the merged log; None if ours ends below its headers."""
    log = state.log
    common = log.common(merged.headers)
    if common is not None:
        return log.adopt(merged.headers, common)
    return merged.op if not merged.headers and merged.op <= state.sure else None


def install(state: MemberState[E]) -> None:
    """Append fetched entries; start the view once its whole log is durable here."""
    merged = state.election.merged
    if merged is None or state.election.is_aside or state.primary != state.me:
        return
    if not state.election.is_adopted:
        _adopt(state, merged)
        return
    entries: list[E] = []
    ticket = state.next_ticket()
    while state.log.head - state.log.anchor < state.slots:
        entry = state.fetched.pop(Op(state.log.head + 1), None)
        if entry is None:
            break
        if entry.parent != state.log.checksum(state.log.head):
            state.drop("prepare does not chain")
            break
        state.log.add(header_of(entry), ticket)
        entries.append(entry)
    if entries:
        normal.append(state, ticket, entries)
    if state.log.whole >= merged.op and state.log_view < state.view:
        state.log_view = state.view
        state.suspect = None
        view = state.view
        state.persist(lambda: _begin(state, view), is_settled=True)
    elif state.log.head < merged.op and state.log.head - state.log.anchor >= state.slots:
        _make_room(state)
    else:
        repair.ask_exact(state)


def _make_room(state: MemberState[E]) -> None:
    """The merged log is longer than our ring: drop the older checkpoint, or step aside."""
    election = state.election
    election.is_aside = election.has_dropped
    if not election.has_dropped:
        election.has_dropped = True
        state.out.append(DropPrevious())


def _begin(state: MemberState[E], view: View) -> None:
    """The view's log and its log view are durable: lead."""
    if state.view != view or state.status is not MemberStatus.VIEW_CHANGE:
        return
    state.status = MemberStatus.NORMAL
    state.awaiting = state.given_up = None
    state.acked = [Op(0)] * state.count
    state.heads = [Op(0)] * state.count
    state.beat = 0
    state.due.pop("view change", None)
    state.due.pop("resend", None)
    log = state.log
    first = Op(max(state.sure, log.anchor) + 1)
    headers = tuple(log.headers(first, log.head))
    state.broadcast(StartView(view, log.head, state.commit, first, headers, 0))
    for one in state.others:
        state.heads[one] = log.head  # until they say otherwise
    normal.count_own(state)
    normal.advance(state)
    normal.beat(state)


def on_tick(state: MemberState[E]) -> None:
    if state.status is MemberStatus.NORMAL and state.primary != state.me:
        if "election" not in state.due:
            state.arm("election", state.times.election + state.times.stagger * state.me)
        elif state.is_due("election") and state.may_vote:
            start(state, View(state.view + 1))
        elif "election" not in state.due:
            join.begin(state)
        return
    if state.status is not MemberStatus.VIEW_CHANGE:
        return
    if not state.may_vote:
        join.begin(state)
        return
    if state.is_due("view change"):
        start(state, View(state.view + 1))
    elif state.is_due("resend"):
        state.arm("resend", state.times.resend)
        state.broadcast(StartViewChange(state.view))
        if state.election.voted:
            _vote(state)
