"""The state of one replica with peers, and helpers to emit effects.

The handlers are in separate modules, by concern: `normal`, `view_change`, `join`, `repair`,
`transfer`. They change this state and append effects to `out`; `member.py` is the entry point.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic

from headrace.errors import HeadraceError, Unknown
from headrace.model.ids import STARTS_MAX, Op, ReplicaId, View
from headrace.vsr.clock import Clock
from headrace.vsr.effects import Effect, Halt, Persist, Reply, Send
from headrace.vsr.merge import Merged
from headrace.vsr.op_log import OpLog
from headrace.vsr.peer_messages import (
    DoViewChange,
    E,
    Message,
    Offer,
    Peer,
    PrepareHeader,
    SealProposal,
    Start,
)
from headrace.vsr.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All timeouts, in ticks. Replicas add `stagger` times their ID to avoid collisions."""

    heartbeat: int = 10  # interval of the primary's heartbeats
    election: int = 50  # a backup without heartbeats leaves the view
    resend: int = 10  # start-view-change and do-view-change are resent
    view_change: int = 60  # a view that does not start is left for the next
    probe: int = 10  # a restarted replica probes again
    probes: int = 5  # unanswered; then it leaves the view
    repair: int = 6  # missing entries are requested again
    transfer: int = 12  # a missing chunk is requested again
    transfers: int = 5  # unanswered; then a new offer is requested
    stall: int = 80  # a primary whose own log makes no progress steps down
    stagger: int = 7


PIPELINE_MAX: Final = 1024  # ops prepared but not committed
SEAL_SLOTS: Final = 4  # of the ring, reserved for the Seals that empty it


class MemberStatus(Enum):
    """The status of a replica. `recovering` and `syncing_to` determine if it may vote."""

    PROBING = "probing"  # restarted: asks for the view
    NORMAL = "normal"
    VIEW_CHANGE = "view-change"


@dataclass(slots=True)
class SnapshotTransfer(Generic[E]):
    """An incoming snapshot."""

    offer: Offer[E] | None = None
    checksum: bytes = b""  # of the snapshot that `data` is a part of
    data: bytearray = field(default_factory=bytearray)
    unanswered: int = 0
    ticket: int = 0  # of the install, once requested


@dataclass(slots=True)
class Election:
    """A view change, as seen by one replica."""

    started: set[ReplicaId] = field(
        default_factory=set
    )  # replicas that have left the old views
    votes: dict[ReplicaId, DoViewChange] = field(default_factory=dict)
    voters: dict[ReplicaId, Peer] = field(default_factory=dict)  # the sender of each vote
    merged: Merged | None = None
    sources: dict[Op, list[ReplicaId]] = field(default_factory=dict)  # the holders of each op
    is_aside: bool = False  # this replica lacks committed ops: another should lead
    has_dropped: bool = False  # the older checkpoint was dropped to make room
    is_adopted: bool = False  # ops missing from the merged log are cut here
    voted: bool = False


@dataclass(slots=True)
class MemberState(Generic[E]):
    """Invariants: applied <= commit; log_view <= view; applied <= log.whole."""

    me: ReplicaId
    quorum: Quorum
    slots: int  # of the journal's ring
    seal: SealProposal[E]
    seal_operation: int  # the operation that makes a checkpoint
    boot: int
    log: OpLog
    times: Timeouts = field(default_factory=Timeouts)
    clock: Clock = field(default_factory=Clock)
    accepts: Callable[[E], bool] = lambda _: True  # validates a body before it is acknowledged

    view: View = View(0)
    log_view: View = View(0)
    view_durable: View = View(0)
    log_view_durable: View = View(0)
    status: MemberStatus = MemberStatus.PROBING
    recovering: bool = False  # it has forgotten its promises
    syncing_to: Op | None = None  # a state transfer is in progress
    is_silent: bool = False  # the superblock records that we are recovering or syncing
    suspect: tuple[Op, Op] | None = None
    given_up: Op | None = None  # the operator gave up this op and later ones
    gave_up: tuple[View, Op] | None = None  # the last such decision; durable
    awaiting: tuple[Op, tuple[ReplicaId, ...]] | None = None  # AwaitingReplica: op, peers

    commit: Op = Op(0)  # newest op known to be committed in a log that contains ours
    applied: Op = Op(0)
    asked: Op = Op(0)  # newest op passed to the driver to apply
    checkpoint: Op = Op(0)
    timestamp: int = 0

    # As a backup in a view.
    is_verified: bool = False  # our log is a prefix of the view's log
    named: Op | None = None  # head of the view's log, from its start-view
    primary_op: Op = Op(0)  # last known head of the primary
    beat: int = 0
    # As a primary.
    acked: list[Op] = field(default_factory=list)
    heads: list[Op] = field(default_factory=list)
    tickets: dict[Op, object] = field(default_factory=dict)
    sizes: dict[Op, int] = field(default_factory=dict)  # of uncommitted bodies
    election: Election = field(default_factory=Election)

    # Identities and lives.
    sequence: int = 0  # of our superblock
    life: int = 0  # our sequence when this life began
    past: tuple[Start, ...] = ()  # our starts before this one; durable
    claims: tuple[Start, ...] = ()  # the next `past`, in every Persist from now on
    life_min: int = 0  # `life` will exceed this, once `claims` are durable
    lives: list[int] = field(default_factory=list)  # of each peer, the newest; durable
    seen: list[int] = field(default_factory=list)  # highest sequence seen of each, in this life
    boots: list[int] = field(default_factory=list)  # the accepted process of each; durable
    unsure: set[ReplicaId] = field(default_factory=set)  # their new life is not durable here
    standings: dict[ReplicaId, View] = field(default_factory=dict)  # answers to our probe
    blanks: set[ReplicaId] = field(default_factory=set)
    answered: tuple[View, Op] | None = None  # a start-view for this life: its view and head
    unanswered: int = 0

    fetched: dict[Op, E] = field(default_factory=dict)  # arrived out of order
    mending: dict[Op, int] = field(default_factory=dict)  # faulty ops being overwritten
    mends: dict[int, PrepareHeader] = field(default_factory=dict)  # by ticket
    transfer: SnapshotTransfer[E] | None = None
    turn: int = 0  # the peer to ask next

    now: int = 0  # ticks
    due: dict[str, int] = field(default_factory=dict)
    out: list[Effect[E]] = field(default_factory=list)
    ticket: int = 0
    waiting: dict[int, tuple[Persist, Callable[[], None] | None]] = field(default_factory=dict)
    appends: dict[int, tuple[Op, Op]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    halted: str | None = None

    def __post_init__(self) -> None:
        self.acked = [Op(0)] * self.count
        self.heads = [Op(0)] * self.count
        self.lives = self.lives or [0] * self.count
        self.seen = list(self.lives)
        self.boots = [0] * self.count

    @property
    def count(self) -> int:
        return self.quorum.count

    @property
    def others(self) -> list[ReplicaId]:
        return [ReplicaId(one) for one in range(self.count) if one != self.me]

    @property
    def primary(self) -> ReplicaId:
        return self.primary_of(self.view)

    def primary_of(self, view: View) -> ReplicaId:
        return ReplicaId(view % self.count)

    @property
    def may_vote(self) -> bool:
        """Recovering and syncing replicas neither vote nor acknowledge."""
        return not self.recovering and self.syncing_to is None

    @property
    def leads(self) -> bool:
        """Whether it is the primary of a started view, whose log is durably installed."""
        return (
            self.status is MemberStatus.NORMAL
            and self.view % self.quorum.count == self.me
            and self.log_view_durable == self.view
        )

    @property
    def is_backup(self) -> bool:
        return self.status is MemberStatus.NORMAL and self.view % self.quorum.count != self.me

    @property
    def follows(self) -> bool:
        """Whether it is a backup whose log is a prefix of the view's log."""
        return self.is_backup and self.is_verified

    @property
    def sure(self) -> Op:
        """Our log is committed, and final, up to here."""
        return max(self.applied, min(self.commit, self.log.head))

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever in this log, known of it, or lost from it."""
        is_empty = self.log.head == 0 and self.commit == 0 and self.log_view == 0
        return is_empty and self.suspect is None

    def send(self, to: ReplicaId, message: Message[E]) -> None:
        assert to != self.me
        self.out.append(Send(to, message))

    def broadcast(self, message: Message[E]) -> None:
        for to in self.others:
            self.send(to, message)

    def next_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    def raise_view(self, view: View, then: Callable[[], None] | None = None) -> None:
        """Leave all views below `view`. No other code does.

        The promise is sent to others only once `view_durable` is as high.
        """
        assert view >= self.view
        self.view = view
        self.persist(then)

    def persist(
        self,
        then: Callable[[], None] | None = None,
        *,
        is_settled: bool = False,
    ) -> None:
        """Make view, log view and the rest durable, then call `then`."""
        start = Start(max(self.life, self.life_min), self.boot)
        record = Persist(
            ticket=self.next_ticket(),
            view=self.view,
            log_view=self.log_view,
            commit=min(self.commit, self.log.whole),
            peers=tuple(self._peers()),
            starts=(*self.claims, start)[-STARTS_MAX:],
            recovering=self.recovering,
            syncing_to=self.syncing_to,
            gave_up=self.gave_up,
            is_settled=is_settled,
            sequence_min=self.life_min,
        )
        self.waiting[record.ticket] = (record, then)
        self.out.append(record)

    def _peers(self) -> Iterator[Peer]:
        for one in self.others:
            if self.lives[one]:
                yield Peer(one, self.lives[one], self.boots[one])

    def arm(self, name: str, ticks: int) -> None:
        self.due[name] = self.now + ticks

    def is_due(self, name: str) -> bool:
        """Return whether a timer has expired; true only once."""
        due = self.due.get(name)
        if due is None or self.now < due:
            return False
        del self.due[name]
        return True

    def drop(self, reason: str) -> None:
        """Count a dropped message. Bytes from a peer never trip an assert."""
        self.dropped[reason] += 1

    def halt(self, reason: str) -> None:
        self.halted = reason
        self.out.append(Halt(reason))

    def refuse_all(self, why: str) -> None:
        """Answer all waiting callers: the outcome of their requests is unknown."""
        error: HeadraceError = Unknown(why, hint="Retry in the same session")
        self.out += [Reply(ticket, error) for ticket in self.tickets.values()]
        self.tickets.clear()
        self.sizes.clear()
