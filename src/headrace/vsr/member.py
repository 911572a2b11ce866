"""A replica with peers, as a machine: events are calls, effects are returned. No I/O.

    on_message      a peer sent a message        on_tick        10 ms have passed
    on_requests     clients submit ops           on_persisted   the superblock is durable
    on_durable      an append is durable         on_mended      a faulty slot is repaired
    on_applied      the machine applied an op    on_faulty      an entry cannot be read
    on_checkpoint   the journal was drained      on_installed   a snapshot is installed

`Replica` in `replica.py` is the solo replica. It is a separate class, so that its hot path, the
append, needs no checks for quorums, views and peers. docs/consensus.md has the message table,
the driver's duties and the invariants.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from headrace.errors import ChainBroken
from headrace.model.ids import Op, View
from headrace.model.proposal import EntryProposal
from headrace.vsr import join, normal, repair, snapshot_transfer, view_change
from headrace.vsr.effects import Effect
from headrace.vsr.member_state import MemberState, MemberStatus
from headrace.vsr.peer_messages import (
    Amnesia,
    DoViewChange,
    E,
    Envelope,
    Evicted,
    Exact,
    GetChunk,
    GetExact,
    GetOffer,
    GetRange,
    GetStartView,
    Heartbeat,
    Message,
    Offer,
    Peer,
    PrepareHeader,
    PrepareOk,
    Prepares,
    SnapshotChunk,
    Standing,
    Start,
    StartView,
    StartViewChange,
)
from headrace.vsr.validate import flaw_of


@dataclass(frozen=True, slots=True)
class RecoveredMember:
    """The durable state at the start of the process: see docs/consensus.md."""

    view: View
    log_view: View
    commit: Op
    applied: Op
    checkpoint: Op
    anchor: Op  # the journal begins above it
    anchor_checksum: bytes | None
    found: Sequence[tuple[Op, PrepareHeader | None, bytes | None]]  # header is None: faulty
    suspect: tuple[Op, Op] | None
    recovering: bool
    syncing_to: Op | None
    sequence: int
    past: tuple[Start, ...]
    peers: Iterable[Peer]
    timestamp: int
    gave_up: tuple[View, Op] | None = None


@dataclass(slots=True)
class Member(Generic[E]):
    """One replica of several. Not reentrant: perform the returned effects, then call again."""

    state: MemberState[E]

    @classmethod
    def started(cls, state: MemberState[E], found: RecoveredMember) -> "Member[E]":
        """Create it from a recovery. `start` then returns the first effects."""
        state.view = state.view_durable = found.view
        state.log_view = state.log_view_durable = found.log_view
        state.commit, state.applied, state.asked = found.commit, found.applied, found.applied
        state.checkpoint, state.suspect = found.checkpoint, found.suspect
        state.recovering, state.syncing_to = found.recovering, found.syncing_to
        state.is_silent = not state.may_vote
        state.sequence = state.life = found.sequence
        state.timestamp = found.timestamp
        state.past = state.claims = found.past
        state.gave_up = found.gave_up
        for peer in found.peers:
            one = peer.replica
            if one == state.me:
                continue  # invalid: an entry for ourselves means nothing
            state.lives[one] = state.seen[one] = peer.life
            state.boots[one] = peer.boot
        ops = [op for op, _, _ in found.found]
        expected = list(range(found.anchor + 1, found.anchor + 1 + len(ops)))
        if state.log.head != found.anchor or ops != expected:
            raise ChainBroken(
                f"the recovered journal does not continue from op {found.anchor}",
                path=f"journal of replica {state.me}",
                expected=expected[:1] + expected[-1:],
                found=ops[:1] + ops[-1:],
            )
        for op, header, checksum in found.found:
            state.log.found(op, header, checksum)
        state.log.cover(found.applied)
        return cls(state)

    def start(self) -> list[Effect[E]]:
        """Probe for the view: a started replica never leads before a view change."""
        join.begin(self.state)
        return self._effects()

    def envelope(self, message: Message[E]) -> Envelope[E]:
        """Wrap a message with our identity."""
        state = self.state
        return Envelope(
            state.me,
            state.boot,
            state.life,
            state.sequence,
            state.clock.wall,
            message,
            state.past,
        )

    def on_message(self, envelope: Envelope[E]) -> list[Effect[E]]:
        """Validate a message, check the sender's life, and handle it."""
        state = self.state
        flaw = flaw_of(envelope, state.me, state.count, state.view, state.log.head)
        if flaw is not None:
            state.drop(flaw)
        elif self._is_known(envelope):
            self._handle(envelope)
        return self._effects()

    def _is_known(self, envelope: Envelope[E]) -> bool:
        """Accept only the newest life of each peer; a new one is first made durable."""
        state, sender = self.state, envelope.sender
        if isinstance(envelope.message, Amnesia):
            return True  # it names our exact life; mutual accusations must get through
        boot, life = state.boots[sender], state.lives[sender]
        if envelope.boot == boot and envelope.life >= life:
            if envelope.life > life:
                self._remember(envelope)
                return False
            if sender in state.unsure:
                state.drop("of a life that is not durable here yet")
                return False
            state.seen[sender] = max(state.seen[sender], envelope.sequence)
            state.clock.hear(sender, envelope.wall)
            return True
        # A life that does not descend from the known one has forgotten its promises.
        peer = Peer(sender, envelope.life, envelope.boot, envelope.past)
        if boot and (envelope.life <= state.seen[sender] or not peer.descends_from(life, boot)):
            state.drop("of an earlier life")
            forgot = Amnesia(envelope.boot, envelope.life, state.seen[sender], boot)
            state.send(sender, forgot)
        else:
            self._remember(envelope)
        return False

    def _remember(self, envelope: Envelope[E]) -> None:
        """Make a new life of a peer durable here before counting any of its messages."""
        state, sender = self.state, envelope.sender
        state.boots[sender], state.lives[sender] = envelope.boot, envelope.life
        state.seen[sender] = max(state.seen[sender], envelope.sequence)

        state.unsure.add(sender)

        def handle() -> None:
            if state.boots[sender] == envelope.boot and state.lives[sender] == envelope.life:
                state.unsure.discard(sender)
                self._handle(envelope)

        state.persist(handle)

    def _handle(self, envelope: Envelope[E]) -> None:
        state, sender, message = self.state, envelope.sender, envelope.message
        if state.halted is not None:
            return
        if isinstance(message, DoViewChange):
            peer = Peer(sender, envelope.life, envelope.boot, envelope.past)
            view_change.on_do_view_change(state, peer, message)
        else:
            HANDLERS[type(message)](state, sender, message)

    def on_tick(self, now: int, wall: int) -> list[Effect[E]]:
        """Advance the time: ticks since the start, and the wall clock in microseconds."""
        state = self.state
        state.now = now
        state.clock.observe(wall, now)
        if state.halted is None:
            normal.on_tick(state)
            join.on_tick(state)
            view_change.on_tick(state)
            repair.on_tick(state)
            snapshot_transfer.on_tick(state)
        return self._effects()

    def on_requests(self, requests: Sequence[tuple[EntryProposal, object]]) -> list[Effect[E]]:
        normal.on_requests(self.state, requests)
        return self._effects()

    def on_durable(self, ticket: int) -> list[Effect[E]]:
        normal.on_durable(self.state, ticket)
        if self.state.status is MemberStatus.VIEW_CHANGE:
            view_change.install(self.state)
        return self._effects()

    def on_persisted(self, ticket: int, sequence: int) -> list[Effect[E]]:
        """The superblock is written: continue with the actions that need it."""
        state = self.state
        record, then = state.waiting.pop(ticket)
        state.view_durable = max(state.view_durable, record.view)
        state.log_view_durable = max(state.log_view_durable, record.log_view)
        state.is_silent = record.recovering or record.syncing_to is not None
        state.sequence = sequence
        if then is not None:
            then()
        return self._effects()

    def on_mended(self, ticket: int) -> list[Effect[E]]:
        repair.on_mended(self.state, ticket)
        return self._effects()

    def on_faulty(self, op: Op) -> list[Effect[E]]:
        repair.on_faulty(self.state, op)
        return self._effects()

    def on_applied(self, op: Op, result: object) -> list[Effect[E]]:
        normal.on_applied(self.state, op, result)
        return self._effects()

    def on_checkpoint(self, op: Op, drained: Op, sequence: int) -> list[Effect[E]]:
        """A checkpoint at `op` is paired, and the journal begins above `drained`."""
        state = self.state
        state.checkpoint, state.sequence = max(state.checkpoint, op), sequence
        state.log.trim(drained)
        if state.status is MemberStatus.VIEW_CHANGE:
            view_change.install(state)
        return self._effects()

    def on_installed(
        self, ticket: int, sequence: int, suspect: tuple[Op, Op] | None, *, kept: bool
    ) -> list[Effect[E]]:
        """The snapshot is in place; `suspect` is what was cut for it, or before."""
        self.state.sequence, self.state.suspect = sequence, suspect
        snapshot_transfer.on_installed(self.state, ticket, kept=kept)
        return self._effects()

    def on_spoiled(self, ticket: int) -> list[Effect[E]]:
        snapshot_transfer.on_spoiled(self.state, ticket)
        return self._effects()

    def on_give_up(self, op: Op) -> list[Effect[E]]:
        """The operator gives up `op` and all later ops, possibly committed. Recorded."""
        state, log_view = self.state, self.state.log_view
        if state.status is not MemberStatus.VIEW_CHANGE:
            return []  # no election waits: it must not count in a later one
        state.gave_up = (state.view, op)

        def decide() -> None:
            if state.status is MemberStatus.VIEW_CHANGE and state.log_view == log_view:
                state.given_up = op
                view_change.decide(state)

        state.persist(decide)
        return self._effects()

    def _effects(self) -> list[Effect[E]]:
        effects, self.state.out = self.state.out, []
        return effects


# One handler per message. Their signatures differ only in the message type.
HANDLERS: dict[type, Any] = {
    Prepares: normal.on_prepares,
    PrepareOk: normal.on_prepare_ok,
    Heartbeat: normal.on_heartbeat,
    StartViewChange: view_change.on_start_view_change,
    StartView: join.on_start_view,
    GetStartView: join.on_get_start_view,
    Standing: join.on_standing,
    Amnesia: join.on_amnesia,
    GetRange: repair.on_get_range,
    GetExact: repair.on_get_exact,
    Exact: repair.on_exact,
    Evicted: repair.on_evicted,
    GetOffer: snapshot_transfer.on_get_offer,
    Offer: snapshot_transfer.on_offer,
    GetChunk: snapshot_transfer.on_get_chunk,
    SnapshotChunk: snapshot_transfer.on_chunk,
}
