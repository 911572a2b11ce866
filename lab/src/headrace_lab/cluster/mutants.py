# ruff: noqa: ANN401 - a planted bug has the shape of what it replaces, which no type can say
"""Planted bugs of consensus and its storage: a simulator that misses one proves nothing.

Each replaces a piece of the code under test while it is planted; that code is unaware of it.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from headrace.journal import snapshot
from headrace.journal.checkpoint import Checkpoints
from headrace.journal.journal import Journal
from headrace.journal.recovery import judge, mend
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.recovery.scan import _Scanner
from headrace.journal.superblock import Checkpoint, SuperblockFile
from headrace.model.ids import Op
from headrace.vsr import join, normal, peer_messages, snapshot_transfer, view_change
from headrace.vsr.member import HANDLERS, Member
from headrace.vsr.member_state import Election, MemberState, MemberStatus
from headrace.vsr.op_log import Condition, OpLog
from headrace.vsr.quorum import quorum_of
from headrace_lab.cluster import boot
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.sessions import Refusal, Session, Sessions
from headrace_lab.disk.memory import MemoryDirectory
from headrace_lab.harness.mutants import Mutant, Patch, parts_unchecked

# A seed and its replicas, of a bug that few seeds show.
SHOWN_BY: dict[str, tuple[int, int | None]] = {
    "view resumed before it is durable": (7301696, None),
    "accusation undone by a write": (8601538, 3),
}


# Views and lives.


def _resume_at_once(state: Any) -> None:
    state.status = MemberStatus.VIEW_CHANGE
    state.election = Election()
    state.arm("view change", state.times.view_change + state.times.stagger * state.me)
    state.election.started.add(state.me)
    state.arm("resend", state.times.resend)
    state.broadcast(peer_messages.StartViewChange(state.view))


def _question_of_any_view(state: Any) -> Any:
    first = Op(state.sure + 1)
    return peer_messages.GetStartView(state.view, first, state.is_blank)


def _persist_old_claims(self: Any, then: Any = None, **changes: Any) -> None:
    claims, life_min = self.claims, self.life_min
    if self.past != claims and getattr(then, "__name__", "") != "live_on":
        self.claims, self.life_min = self.past, 0
    _persist(self, then, **changes)
    self.claims, self.life_min = claims, life_min


# The normal case.


def _ack_before_sync(state: Any) -> None:
    if state.follows and state.may_vote and state.log_view_durable == state.view:
        op = state.log.head
        checksum = state.log.checksum(op)
        state.send(state.primary, peer_messages.PrepareOk(state.view, op, checksum, op))


def _on_prepares_acked_at_once(state: Any, sender: Any, message: Any) -> None:
    _on_prepares(state, sender, message)
    _ack_before_sync(state)


def _commit_by_any(state: Any) -> None:
    state.commit = max(state.commit, *state.acked)


def _commit_by_own_disk(state: Any) -> None:
    state.commit = max(state.commit, state.acked[state.me])


def _loose_quorum(**changes: int) -> Any:
    def make(count: int) -> Any:
        real = quorum_of(count)
        fields = {name: getattr(real, name) for name in ("count", "replication", "nack")}
        fields |= {"view_change": real.view_change, "witness": real.witness}
        fields |= {name: max(1, fields[name] + change) for name, change in changes.items()}
        return SimpleNamespace(**fields)

    return make


def _hear_anything(state: Any, commit: Any, op: Any) -> None:
    state.commit = commit
    state.primary_op = max(state.primary_op, op)


def _of_any_view(state: Any, sender: Any, view: Any) -> bool:
    return bool(state.follows)


def _fits_without_parent(state: Any, entry: Any) -> bool:
    return bool(entry.op - state.log.anchor <= state.slots)


def _beat_with_head(state: Any) -> None:
    state.beat += 1
    beat = peer_messages.Heartbeat(state.view, state.log.head, state.log.head, state.beat)
    state.broadcast(beat)
    state.arm("heartbeat", state.times.heartbeat)


def _prepare_by_wall_clock(state: Any, request: Any) -> Any:
    parent = state.log.checksum(state.log.head)
    state.timestamp = max(state.clock.wall, 1)
    op = Op(state.log.head + 1)
    return state.seal(request, op=op, parent=parent, view=state.view, timestamp=state.timestamp)


def _durable_by_op(self: Any, first: Op, last: Op, ticket: int) -> None:
    """Whatever is asked to be written counts as written."""
    for slot in self.slots.values():
        if slot.condition is Condition.PENDING:
            slot.condition = Condition.DURABLE
    self._advance()


# Views.


def _persist_later(self: Any, then: Any = None, **options: Any) -> None:
    _persist(self, None, **options)
    self.view_durable, self.log_view_durable = self.view, self.log_view
    if then is not None:
        then()


def _write_without(*names: str) -> Any:
    def write(self: Any, **changes: Any) -> Any:
        kept = {name: value for name, value in changes.items() if name not in names}
        return _superblock_write(self, **kept)

    return write


def _resume_as_primary(self: Any) -> Any:
    state = self.state
    if state.primary == state.me and state.log_view == state.view and state.may_vote:
        state.status = MemberStatus.NORMAL
        normal.count_own(state)
        return self._effects()
    return _member_start(self)


def _vote_without_tail(state: Any) -> Any:
    """Tell of what is committed only."""
    vote = _own_vote(state)
    op = Op(max(vote.first - 1, min(vote.op, vote.commit)))
    return replace(vote, op=op, votes=vote.votes[: max(op - vote.first + 1, 0)])


def _install_at_once(state: Any) -> None:
    merged = state.election.merged
    if merged is None or state.election.is_aside or state.primary != state.me:
        return
    if state.log_view < state.view:
        state.log_view = state.view
        view = state.view
        state.persist(lambda: view_change._begin(state, view), is_settled=True)


def _cut_in_memory_only(state: Any, first: Op) -> None:
    _cut(state, first)
    state.out = [one for one in state.out if type(one).__name__ != "Cut"]


def _adopt_without_cut(state: Any, merged: Any) -> None:
    state.commit = max(state.commit, merged.commit)
    view_change.install(state)


def _verify_nothing(state: Any, message: Any) -> None:
    state.is_verified = True


# Lives and repair.


def _remember_at_once(self: Any, envelope: Any) -> None:
    _remember(self, envelope)
    self.state.unsure.discard(envelope.sender)


def _descends_always(self: Any, envelope: Any) -> Any:
    state, sender = self.state, envelope.sender
    known = peer_messages.Start(state.lives[sender], state.boots[sender])
    return _on_message(self, replace(envelope, past=(*envelope.past, known)))


def _is_past_by_life(voter: Any, vote: Any) -> bool:
    return bool(vote.lives[voter.replica] > voter.life)


def _known_always(self: Any, envelope: Any) -> bool:
    self.state.boots[envelope.sender] = envelope.boot
    self.state.lives[envelope.sender] = envelope.life
    return True


def _deaf(state: Any, sender: Any, message: Any) -> None:
    return


def _options_of_a_voter(self: Any) -> RecoveryOptions:
    return replace(_options(self), forgotten=False)


def _enter_and_vote(state: Any, view: Any) -> None:
    state.recovering, state.syncing_to = False, None
    _enter(state, view)
    state.log_view = view
    state.persist()


def _installed_halfway(state: Any, ticket: int, *, kept: bool) -> None:
    """Forget that what follows the snapshot must be fetched again."""
    head = state.log.head
    _on_installed(state, ticket, kept=kept)
    state.commit = max(state.commit, head)
    state.applied = Op(state.applied + 1) if state.applied < head else state.applied


# Sessions and the machine.


def _unfold_nothing(self: Any, folded: Any) -> None:
    _unfold(self, folded)
    for session in self.table.values():
        session.results.clear()
        session.newest = 0


def _register_by_dict_order(self: Any, client: bytes, op: Op) -> Op:
    self.table.pop(client, None)
    if len(self.table) >= self.size:
        del self.table[next(iter(self.table))]
    self.table[client] = Session(op, op)
    return op


def _judge_without_repeat(self: Any, client: bytes, number: int, request: int) -> Any:
    found = _judge_session(self, client, number, request)
    return found if isinstance(found, Refusal) and found is not Refusal.FORGOTTEN else None


def _judge_without_fence(self: Any, client: bytes, number: int, request: int) -> Any:
    session = self.table.get(client)
    return _judge_session(self, client, session.number if session else number, request)


# Storage.


def _drain_too_far(self: Any, through: Op) -> None:
    _drain(self, Op(min(through + 10, self.durable)))


def _sync_but_snapshots(self: Any) -> None:
    if not self.path.endswith("snapshots"):
        _directory_sync(self)


def _no_append_sync(self: Any, file: Any, stage: str) -> None:
    if stage != "append":
        _journal_sync(self, file, stage)


def _commit_is_head(survey: Any, identity: Any, base: Op, head: Op) -> Op:
    return head


def _pair_unwritten(self: Any) -> Checkpoint:
    captured = self.pending[0]
    if captured.op % 3:
        return _checkpoint_persist(self)
    return Checkpoint(captured.op, captured.tip, bytes(16))


def _apply_skips(self: Any, process: Any, op: Op, checksum: bytes) -> Any:
    if self._read(process, op) is None and op == process.member.state.applied + 1:
        process.group.applied = op
        return process.member.on_applied(op, "skipped")
    return _host_apply(self, process, op, checksum)


def _erase_nothing(journal: Any, first: Op) -> None:
    """Forget the cut ops, and leave their frames where they are."""
    journal.ring.forget_from(first)
    before = journal.ring.get(Op(first - 1))
    if before is not None and first <= journal.durable:
        journal.tip, journal.durable = before.sealed[:16], Op(first - 1)


_on_prepares = normal.on_prepares
_persist = MemberState.persist
_superblock_write = SuperblockFile.write
_member_start = Member.start
_own_vote = view_change.own_vote
_cut = join.cut
_enter = join._enter
_options = Host.options
_on_installed = snapshot_transfer.on_installed
_unfold = Sessions.unfold
_judge_session = Sessions.judge
_drain = Journal.drain
_journal_sync = Journal.sync
_directory_sync = MemoryDirectory.sync
_checkpoint_persist = Checkpoints.persist
_host_apply = Host._apply
_remember = Member._remember
_on_message = Member.on_message


def _bug(name: str, *patches: Patch) -> Mutant:
    return Mutant(name, "cluster", patches)


MUTANTS: tuple[Mutant, ...] = (
    _bug("ack before the sync", (HANDLERS, peer_messages.Prepares, _on_prepares_acked_at_once)),
    _bug("commit by any ack", (normal, "count", _commit_by_any)),
    _bug("commit by the own disk", (normal, "count", _commit_by_own_disk)),
    _bug(
        "replication quorum off by one",
        (boot, "quorum_of", _loose_quorum(replication=-1)),
    ),
    _bug("nack quorum of one", (boot, "quorum_of", _loose_quorum(nack=-1))),
    _bug(
        "view change by too few",
        (boot, "quorum_of", _loose_quorum(view_change=-1)),
    ),
    _bug("commit moves back", (normal, "_hear", _hear_anything)),
    _bug(
        "prepares of any view, chained or not",
        (normal, "_is_heard", _of_any_view),
        (normal, "_fits", _fits_without_parent),
    ),
    _bug("heartbeat tells the head", (normal, "beat", _beat_with_head)),
    _bug("time from the wall clock", (normal, "_prepare", _prepare_by_wall_clock)),
    _bug("written counts as durable", (OpLog, "durable", _durable_by_op)),
    _bug("messages before the superblock", (MemberState, "persist", _persist_later)),
    _bug("view is not persisted", (SuperblockFile, "write", _write_without("view"))),
    _bug("log view is not persisted", (SuperblockFile, "write", _write_without("log_view"))),
    _bug("restarted primary leads on", (Member, "start", _resume_as_primary)),
    _bug("votes without the tail", (view_change, "own_vote", _vote_without_tail)),
    _bug("start-view before the log is here", (view_change, "install", _install_at_once)),
    _bug("cut in memory only", (join, "cut", _cut_in_memory_only)),
    _bug("new primary keeps its own tail", (view_change, "_adopt", _adopt_without_cut)),
    _bug("backup keeps its own tail", (join, "_verify", _verify_nothing)),
    _bug(
        "wiped replica votes, and its peers let it",
        (Host, "options", _options_of_a_voter),
        (Member, "_is_known", _known_always),
    ),
    _bug("recovering ends with a start-view", (join, "_enter", _enter_and_vote)),
    _bug("amnesia is not heard", (HANDLERS, peer_messages.Amnesia, _deaf)),
    _bug("no start-view for a late one", (join, "send_start_view", lambda *_: None)),
    _bug(
        "evicted is not heard",
        (HANDLERS, peer_messages.Evicted, _deaf),
        (snapshot_transfer, "begin", lambda state: None),
    ),
    _bug(
        "an op is skipped after a transfer",
        (snapshot_transfer, "on_installed", _installed_halfway),
    ),
    _bug("results lost with a snapshot", (Sessions, "unfold", _unfold_nothing)),
    _bug("eviction by dict order", (Sessions, "register", _register_by_dict_order)),
    _bug("repeats run again", (Sessions, "judge", _judge_without_repeat)),
    _bug("no fence between sessions", (Sessions, "judge", _judge_without_fence)),
    _bug("drained too far", (Journal, "drain", _drain_too_far)),
    _bug("append without sync", (Journal, "sync", _no_append_sync)),
    _bug("snapshot unchecked", (snapshot, "read_parts", parts_unchecked)),
    _bug(
        "snapshot without directory sync",
        (MemoryDirectory, "sync", _sync_but_snapshots),
    ),
    _bug("paired before it is written", (Checkpoints, "persist", _pair_unwritten)),
    _bug("replay to the head", (judge, "_commit", _commit_is_head)),
    _bug("cut leaves the frames", (mend, "_erase", _erase_nothing)),
    _bug("unreadable entry skipped", (Host, "_apply", _apply_skips)),
    _bug("life counted before it is durable", (Member, "_remember", _remember_at_once)),
    _bug(
        "a life of another past",
        (Member, "on_message", _descends_always),
        (view_change, "_is_past", _is_past_by_life),
    ),
    _bug(
        "view resumed before it is durable",
        (view_change, "_resume", _resume_at_once),
    ),
    _bug("probe of a view that is not durable", (join, "_question", _question_of_any_view)),
    _bug(
        "accusation undone by a write",
        (MemberState, "persist", _persist_old_claims),
    ),
    _bug("no room for lost entries", (_Scanner, "_note_room", lambda *_: None)),
    _bug("unfinished install is kept", (judge, "_begun_install", lambda *_: None)),
)
SMOKE = (
    "ack before the sync",
    "commit by any ack",
    "view is not persisted",
    "log view is not persisted",
    "messages before the superblock",
    "heartbeat tells the head",
    "backup keeps its own tail",
    "new primary keeps its own tail",
    "repeats run again",
    "append without sync",
)
