"""How a replica finds and joins the view: probes, start-view, and regaining the vote.

A started replica probes all others. The primary answers with a start-view for this life, the
others with their standing. A voter follows the answers, or leaves the view if there are none. A
recovering or syncing replica neither votes nor acknowledges until it durably holds everything
up to the head named for this life by the primary of a view not below its witnesses' views.
"""

from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr import normal, repair, snapshot_transfer, view_change
from headrace.vsr.effects import Cut
from headrace.vsr.member_state import MemberState, MemberStatus
from headrace.vsr.peer_messages import (
    HEADERS_MAX,
    LIFE_STEP,
    Amnesia,
    E,
    GetStartView,
    Standing,
    Start,
    StartView,
)


def begin(state: MemberState[E]) -> None:
    """Probe all others for the view: after a start, or when a primary stops leading."""
    state.status = MemberStatus.PROBING
    state.is_verified = False
    state.unanswered = 0
    probe(state)


def probe(state: MemberState[E]) -> None:
    state.broadcast(_question(state))
    state.arm("probe", state.times.probe)


def _question(state: MemberState[E]) -> GetStartView:
    return GetStartView(state.view_durable, Op(state.sure + 1), state.is_blank)


def ask_for_view(state: MemberState[E], sender: ReplicaId) -> None:
    """Ask the leader of a view whose log we do not have for that log, rate-limited."""
    if "asked" in state.due and not state.is_due("asked"):
        return
    state.arm("asked", state.times.repair)
    state.send(sender, _question(state))


def on_tick(state: MemberState[E]) -> None:
    if not state.may_vote and "probe" not in state.due:
        state.arm("probe", state.times.probe)
    if not state.is_due("probe"):
        return
    if state.status is MemberStatus.PROBING:
        state.unanswered += 1
        if state.unanswered > state.times.probes + state.me:
            snapshot_transfer.abandon(state)
            if state.may_vote:
                view_change.start(state, View(state.view + 1))
                return
        probe(state)
    elif not state.may_vote:
        probe(state)


def on_get_start_view(state: MemberState[E], sender: ReplicaId, message: GetStartView) -> None:
    """Answer a probe: with the log if we lead, else with our standing."""
    if message.view > state.view and state.may_vote:
        # It has promised that view and cannot go back; a recovering one starts no election.
        view_change.start(state, message.view)
    if state.leads:
        send_start_view(state, sender, message.first, state.boots[sender])
        return
    state.send(
        sender,
        Standing(state.view, state.boots[sender], state.is_blank, not state.recovering),
    )
    leads = sender == state.primary and message.view == state.view
    if leads and state.follows and state.may_vote:
        # A primary that asks for its own view cannot lead it.
        view_change.start(state, View(state.view + 1))


def send_start_view(state: MemberState[E], to: ReplicaId, first: Op, boot: int) -> None:
    """Send the headers of this view's log from `first` on, as far as held and fitting."""
    first = Op(max(first, state.log.anchor + 1))
    last = Op(min(state.log.head, first + HEADERS_MAX - 1))
    headers = tuple(state.log.headers(first, last))
    if len(headers) == max(last - first + 1, 0):
        state.send(
            to, StartView(state.view, state.log.head, state.commit, first, headers, boot)
        )


def on_standing(state: MemberState[E], sender: ReplicaId, message: Standing) -> None:
    if message.boot != state.boot:
        state.drop("answer to an earlier life")
        return
    if message.knows:
        state.standings[sender] = max(message.view, state.standings.get(sender, View(0)))
    if message.is_blank:
        state.blanks.add(sender)
    if state.recovering and state.is_blank and len(state.blanks) == state.count - 1:
        # No replica has ever appended anything: all may vote. A view may have been promised.
        state.recovering = False
        state.raise_view(max([state.view, *state.standings.values()]))
    settle(state)


def on_amnesia(state: MemberState[E], sender: ReplicaId, message: Amnesia) -> None:
    """A peer remembers more of us than we do: we have forgotten promises made since."""
    if (message.boot, message.life) != (state.boot, state.life):
        state.drop("amnesia of an earlier life")
        return
    if message.sequence < state.life_min:
        state.drop("amnesia of what is being made up for")
        return
    state.recovering = True
    # Once caught up, we answer for all lives that any peer may have seen: begin far above them.
    # Every Persist from here on records that, or a crash would make us forget it again.
    first = max(message.sequence, state.sequence) + LIFE_STEP
    state.claims = past = (Start(first, message.known),)
    state.life_min = first + 1
    state.answered = None
    state.standings.clear()
    state.refuse_all(f"replica {state.me} has lost its state")

    def live_on() -> None:
        # Not earlier: peers that see the new life stop accusing us, even after a crash.
        state.past, state.life = past, state.sequence
        begin(state)

    state.persist(live_on)


def on_start_view(state: MemberState[E], sender: ReplicaId, message: StartView) -> None:
    """Follow the primary of a view: cut what its log lacks, fetch what ours lacks."""
    if sender != state.primary_of(message.view) or message.view < state.view:
        state.drop("start-view of an older view")
        return
    if message.boot == state.boot:
        _note_answer(state, message)
    if message.view == state.view and state.follows:
        settle(state)
        return
    if message.view == state.view and message.op < state.sure:
        state.drop("start-view of a log that has grown since")
        return
    if message.view > state.view or state.status is not MemberStatus.NORMAL:
        _enter(state, message.view)
    _verify(state, message)
    if state.is_verified:
        state.named = max(message.op, state.named or Op(0))
        state.primary_op = max(state.primary_op, message.op)
        state.commit = max(state.commit, message.commit)
        settle(state)
        normal.advance(state)
        repair.catch_up(state)


def _note_answer(state: MemberState[E], message: StartView) -> None:
    sender = state.primary_of(message.view)
    state.standings[sender] = max(message.view, state.standings.get(sender, View(0)))
    if state.answered is None or message.view > state.answered[0]:
        state.answered = (message.view, message.op)


def _enter(state: MemberState[E], view: View) -> None:
    state.refuse_all(f"view {view} has started")
    state.status = MemberStatus.NORMAL
    state.is_verified, state.named, state.beat = False, None, 0
    state.primary_op = Op(0)
    state.fetched.clear()
    state.awaiting = state.given_up = None
    state.asked = state.applied
    state.arm("election", state.times.election + state.times.stagger * state.me)
    if state.view_durable < view:
        state.raise_view(view)


def _verify(state: MemberState[E], message: StartView) -> None:
    """Find the common part of our log and the view's, by the hash chain, and cut the rest."""
    log = state.log
    if state.transfer is not None and state.transfer.ticket:
        return  # the log is being replaced: ask again afterwards
    if 0 < message.view == state.log_view:
        # Our whole log belongs to this view: entries above a late message's head are newer.
        state.is_verified = True
        return
    common = _common(state, message)
    if state.halted is not None:
        return
    if common is None and message.boot == state.boot and message.first > state.sure + 1:
        snapshot_transfer.begin(state)  # the primary no longer has the headers to compare
        return
    if common is None or (common < log.head and not _covers(message, Op(common + 1))):
        ask_for_view(state, state.primary)
        return
    if common < log.head and common in log.faulty:
        # A cut reads the entry below it from disk: that entry must be repaired first.
        repair.ask_exact(state)
        return
    if common < log.head:
        cut(state, Op(common + 1))
    state.is_verified = state.halted is None


def _common(state: MemberState[E], message: StartView) -> Op | None:
    """Return the last common op of both logs. Committed ops are in both."""
    log, sure = state.log, state.sure
    common = log.common(message.headers)
    if common is None and (log.head <= sure or message.first <= sure + 1):
        common = sure
        above = next((one for one in message.headers if one.op == sure + 1), None)
        if above is not None:
            log.name(sure, above.parent)
        if above is not None and log.checksum(sure) not in (above.parent, None):
            state.halt(
                f"op {sure} in the log of view {message.view} differs from the committed one"
            )
    return None if common is None else log.adopt(message.headers, common)


def _covers(message: StartView, op: Op) -> bool:
    """Return whether the view's log has another entry at `op`, or ends before it."""
    return op > message.op or message.first <= op < message.first + len(message.headers)


def cut(state: MemberState[E], first: Op) -> None:
    """Discard what the view's log does not have. What was applied is never discarded."""
    if first <= state.sure:
        state.halt(f"the log of view {state.view} differs at op {first}, which is committed")
        return
    state.log.cut(first)
    state.asked = min(state.asked, Op(first - 1))
    state.mending = {op: one for op, one in state.mending.items() if op < first}
    state.mends = {one: header for one, header in state.mends.items() if header.op < first}
    state.tickets = {op: one for op, one in state.tickets.items() if op < first}
    state.out.append(Cut(first))


def settle(state: MemberState[E]) -> None:
    """Raise log_view once the view's log is really here, durably; vote again if we may."""
    if not state.follows or state.named is None or state.log.whole < state.named:
        return
    if not state.may_vote and not _is_caught_up(state):
        return
    if state.log_view == state.view and state.may_vote:
        return
    state.log_view = state.view
    state.recovering = False
    state.syncing_to = None
    state.suspect = None
    state.persist(lambda: normal.acknowledge(state), is_settled=True)


def _is_caught_up(state: MemberState[E]) -> bool:
    """Return whether we hold everything up to the head named for this life.

    The view must not be below our promises: a replica that remembers has its own durable view
    as a witness; one that forgot needs those of others.
    """
    if state.answered is None or state.transfer is not None:
        return False
    view, head = state.answered
    if view != state.view or state.log.whole < head:
        return False
    if not state.recovering:
        return True
    known = state.standings.values()
    return len(known) >= state.quorum.witness and view >= max(known)
