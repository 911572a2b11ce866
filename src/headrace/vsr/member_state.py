"""One replica with peers: all it knows, and how it says what it wants.

The handlers live in modules of their own, by concern: `normal`, `view_change`, `join`,
`repair`, `transfer`. They change this state and put effects into `out`; `member.py` is the
door.
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
    """All of them. Each replica adds `stagger` times its id where two could collide."""

    heartbeat: int = 10  # the primary says that it lives
    election: int = 50  # a backup that heard nothing leaves the view
    resend: int = 10  # start-view-change and do-view-change again
    view_change: int = 60  # a view that does not start is left for the next
    probe: int = 10  # a restarted replica asks again
    probes: int = 5  # unanswered; then it leaves the view
    repair: int = 6  # what was asked for and did not come is asked for again
    transfer: int = 12  # a chunk that did not come is asked for again
    transfers: int = 5  # unanswered; then another offer is asked for
    stall: int = 80  # a primary whose own log does not go on is no primary
    stagger: int = 7


PIPELINE_MAX: Final = 1024  # ops prepared and not committed
SEAL_SLOTS: Final = 4  # of the ring, kept for the Seals that empty it


class MemberStatus(Enum):
    """What a replica does. Whether it may vote is told by `recovering` and `syncing_to`."""

    PROBING = "probing"  # started again: asks what the view is
    NORMAL = "normal"
    VIEW_CHANGE = "view-change"


@dataclass(slots=True)
class SnapshotTransfer(Generic[E]):
    """A snapshot on its way here."""

    offer: Offer[E] | None = None
    checksum: bytes = b""  # of the snapshot that `data` is a part of
    data: bytearray = field(default_factory=bytearray)
    unanswered: int = 0
    ticket: int = 0  # of the install, once it was asked for


@dataclass(slots=True)
class Election:
    """A view change, seen from one replica."""

    started: set[ReplicaId] = field(default_factory=set)  # who has left the old views
    votes: dict[ReplicaId, DoViewChange] = field(default_factory=dict)
    voters: dict[ReplicaId, Peer] = field(default_factory=dict)  # who gave each vote
    merged: Merged | None = None
    sources: dict[Op, list[ReplicaId]] = field(default_factory=dict)  # who holds what
    is_aside: bool = False  # this replica lacks committed ops: let another lead
    has_dropped: bool = False  # the older checkpoint, for room
    is_adopted: bool = False  # what the merged log does not have is cut here
    voted: bool = False


@dataclass(slots=True)
class MemberState(Generic[E]):
    """Invariants: applied <= commit; log_view <= view; applied <= log.whole."""

    me: ReplicaId
    quorum: Quorum
    slots: int  # of the journal's ring
    seal: SealProposal[E]
    seal_operation: int  # the request that makes a checkpoint
    boot: int
    log: OpLog
    times: Timeouts = field(default_factory=Timeouts)
    clock: Clock = field(default_factory=Clock)
    accepts: Callable[[E], bool] = lambda _: True  # judges a body before it is acknowledged

    view: View = View(0)
    log_view: View = View(0)
    view_durable: View = View(0)
    log_view_durable: View = View(0)
    status: MemberStatus = MemberStatus.PROBING
    recovering: bool = False  # does not know what it once promised
    syncing_to: Op | None = None  # a state transfer was begun
    is_silent: bool = False  # the superblock says that we are recovering or syncing
    suspect: tuple[Op, Op] | None = None
    given_up: Op | None = None  # the operator gave up this op and what follows
    gave_up: tuple[View, Op] | None = None  # the last time that happened; durable
    awaiting: tuple[Op, tuple[ReplicaId, ...]] | None = None  # AwaitingReplica: op, whom

    commit: Op = Op(0)  # newest op known committed in a log that ours is a part of
    applied: Op = Op(0)
    asked: Op = Op(0)  # newest op that the driver was asked to apply
    checkpoint: Op = Op(0)
    timestamp: int = 0

    # A backup in a view.
    is_verified: bool = False  # our log is a part of the view's log
    named: Op | None = None  # head of the view's log as its start-view said
    primary_op: Op = Op(0)  # head of the primary as heard last
    beat: int = 0
    # A primary.
    acked: list[Op] = field(default_factory=list)
    heads: list[Op] = field(default_factory=list)
    tickets: dict[Op, object] = field(default_factory=dict)
    sizes: dict[Op, int] = field(default_factory=dict)  # of bodies that are not committed yet
    election: Election = field(default_factory=Election)

    # Who is who.
    sequence: int = 0  # of our superblock
    life: int = 0  # our sequence when this life began
    past: tuple[Start, ...] = ()  # our starts before this one; durable
    claims: tuple[Start, ...] = ()  # what `past` is to be, in every Persist from now on
    life_min: int = 0  # what `life` is to be above, once `claims` are durable
    lives: list[int] = field(default_factory=list)  # of each peer, the newest; durable
    seen: list[int] = field(default_factory=list)  # highest sequence heard of each, this life
    boots: list[int] = field(default_factory=list)  # the process that we listen to; durable
    unsure: set[ReplicaId] = field(default_factory=set)  # whose new life is not durable here
    standings: dict[ReplicaId, View] = field(default_factory=dict)  # answers to our probe
    blanks: set[ReplicaId] = field(default_factory=set)
    answered: tuple[View, Op] | None = None  # a start-view for this life: its view and head
    unanswered: int = 0

    fetched: dict[Op, E] = field(default_factory=dict)  # came before their turn
    mending: dict[Op, int] = field(default_factory=dict)  # faulty ops being written over
    mends: dict[int, PrepareHeader] = field(default_factory=dict)  # by ticket
    transfer: SnapshotTransfer[E] | None = None
    turn: int = 0  # whom to ask next

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
        """Recovering and syncing replicas vote in nothing and acknowledge nothing."""
        return not self.recovering and self.syncing_to is None

    @property
    def leads(self) -> bool:
        """The primary of a view that has started: its log is installed, durably."""
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
        """A backup whose log is a part of the view's log."""
        return self.is_backup and self.is_verified

    @property
    def sure(self) -> Op:
        """Our log is right up to here in every view from now on: it is committed."""
        return max(self.applied, min(self.commit, self.log.head))

    @property
    def is_blank(self) -> bool:
        """Nothing was ever in this log, nor known of it, nor lost."""
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
        """Leave all views below `view`: the one place that does.

        What it promises to others is said only once `view_durable` is as high.
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
        """Make view, log view and the rest durable, and then do what needs it."""
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
        """Tell once that a time has come."""
        due = self.due.get(name)
        if due is None or self.now < due:
            return False
        del self.due[name]
        return True

    def drop(self, reason: str) -> None:
        """Count what was not taken. Bytes from a peer never trip an assert."""
        self.dropped[reason] += 1

    def halt(self, reason: str) -> None:
        self.halted = reason
        self.out.append(Halt(reason))

    def refuse_all(self, why: str) -> None:
        """Answer everybody who waits: nobody knows what becomes of theirs."""
        error: HeadraceError = Unknown(why, hint="Retry in the same session")
        self.out += [Reply(ticket, error) for ticket in self.tickets.values()]
        self.tickets.clear()
        self.sizes.clear()
