"""Messages between replicas, and the effects of a solo replica.

Peer messages are sent in an `Envelope`; docs/consensus.md lists the sender of each, when it is
sent, and what must be durable before. Effects of a replica with peers are in `effects.py`.
"""

from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.model.ids import Op, ReplicaId, View
from headrace.model.proposal import EntryProposal


class Prepare(Protocol):
    """An op in flight: sealed once, by the primary. The journal calls it an entry."""

    @property
    def op(self) -> Op: ...

    @property
    def checksum(self) -> bytes: ...


P = TypeVar("P", bound=Prepare)
P_co = TypeVar("P_co", bound=Prepare, covariant=True)


class SealProposal(Protocol[P_co]):
    """Creates the prepare of a proposal, given its position in the log. Pure."""

    def __call__(
        self, proposal: EntryProposal, *, op: Op, parent: bytes, view: View, timestamp: int
    ) -> P_co: ...


@dataclass(frozen=True, slots=True)
class SoloAppend(Generic[P]):
    """Write these, in order; answered by `on_durable`."""

    prepares: list[P]


class SoloReply(NamedTuple):
    """Answer the caller, with the machine's result or an error.

    A tuple for speed: one is created per op.
    """

    ticket: object
    result: object | HeadraceError


# Messages of replicas with peers. All are plain values; `peer_codec.py` encodes them.

RANGE_MAX: Final = 64  # entries in one answer: bounds its memory and time
LIFE_STEP: Final = 2**20  # superblock writes: more than any peer has missed of a replica
HEADERS_MAX: Final = 2**13  # in one start-view or do-view-change; above any pipeline
CHUNK_SIZE: Final = 256 * 1024  # of a snapshot transfer
GROUP_SIZE_MAX: Final = 64 * 1024 * 1024  # bodies in a message, and of uncommitted ops
CHECKSUM_SIZE: Final = 16


class PrepareHeader(NamedTuple):
    """The part of an entry that consensus needs."""

    op: Op
    checksum: bytes
    parent: bytes
    view: View  # the view in which it was prepared
    timestamp: int


class Chained(Prepare, Protocol):
    """A prepare with its position in the chain, as required of replicas with peers."""

    @property
    def parent(self) -> bytes: ...

    @property
    def view(self) -> View: ...

    @property
    def timestamp(self) -> int: ...


E = TypeVar("E", bound=Chained)


def header_of(entry: Chained) -> PrepareHeader:
    return PrepareHeader(entry.op, entry.checksum, entry.parent, entry.view, entry.timestamp)


class Vote(NamedTuple):
    """One replica's vote on one op in a do-view-change."""

    header: PrepareHeader | None  # None: it does not know, or has nothing there
    present: bool  # the entry is durable and whole here
    nack: bool  # it was never durable here


class Start(NamedTuple):
    """One start of a replica's process."""

    life: int
    boot: int


class Peer(NamedTuple):
    """What is durably known of a peer: its newest accepted life."""

    replica: ReplicaId
    life: int
    boot: int
    past: tuple[Start, ...] = ()  # its starts before, oldest first

    def descends_from(self, life: int, boot: int) -> bool:
        """Return whether it answers for the promises of that life.

        True if that life is one of its past starts, or below the first that it can name: what
        it forgot since was made up for by catching up, or is too old to be listed.
        """
        if boot in (0, self.boot):
            return True
        is_below = bool(self.past) and life < self.past[0].life
        return is_below or any(boot == one.boot for one in self.past)


class Name(NamedTuple):
    """An entry, by position and content."""

    op: Op
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Prepares(Generic[E]):
    """Entries of the primary's log: live, one message per commit group, or on request."""

    view: View
    commit: Op
    op: Op  # the primary's head
    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class PrepareOk:
    """Everything up to `op` is durable and whole here, in this view's log."""

    view: View
    op: Op
    checksum: bytes  # of the entry at `op`
    head: Op


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The primary is alive, with this commit."""

    view: View
    commit: Op
    op: Op
    beat: int  # increasing: an old one is no sign of life


@dataclass(frozen=True, slots=True)
class StartViewChange:
    """The sender has left all views below this one."""

    view: View


@dataclass(frozen=True, slots=True)
class DoViewChange:
    """The sender's log, for the primary of a new view."""

    view: View
    log_view: View  # the newest view whose log is installed here
    op: Op  # head
    commit: Op
    first: Op  # of the votes, which end at `op`
    votes: tuple[Vote, ...]
    suspect: tuple[Op, Op] | None  # may have been durable here and lost
    lives: tuple[int, ...]  # the newest life known of each replica, by its boot sequence
    to_boot: int  # the life of the receiver that it is addressed to
    boots: tuple[int, ...]  # the process of that life


@dataclass(frozen=True, slots=True)
class StartView:
    """The log of a view, by its headers; the primary holds all of it."""

    view: View
    op: Op
    commit: Op
    first: Op  # of the headers
    headers: tuple[PrepareHeader, ...]
    boot: int  # of the prober; 0 if unsolicited


@dataclass(frozen=True, slots=True)
class GetStartView:
    """A probe: what is the view, and its log from `first` on?"""

    view: View
    first: Op
    is_blank: bool  # nothing was ever here


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer of a replica that does not lead."""

    view: View
    boot: int  # of the prober
    is_blank: bool
    knows: bool  # it remembers its promises, so its view counts


@dataclass(frozen=True, slots=True)
class Amnesia:
    """The receiver was once further: its directory was restored from old, or wiped."""

    boot: int
    life: int  # of the message that this answers
    sequence: int  # the remembered one
    known: int  # the boot that is remembered


@dataclass(frozen=True, slots=True)
class GetRange:
    """Requests entries of the view's log from its primary."""

    view: View
    first: Op
    last: Op


@dataclass(frozen=True, slots=True)
class GetExact:
    """Requests entries by name, from any replica."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Exact(Generic[E]):
    """The answer to GetExact: the entries that are held."""

    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class Evicted:
    """The journal begins above the requested ops."""

    view: View
    first: Op


@dataclass(frozen=True, slots=True)
class GetOffer:
    """Requests a snapshot offer."""

    view: View


@dataclass(frozen=True, slots=True)
class Offer(Generic[E]):
    """A snapshot that is pinned for a while, and the entry at which it was taken."""

    view: View
    checksum: bytes  # names the snapshot
    size: int
    entry: E


@dataclass(frozen=True, slots=True)
class GetChunk:
    checksum: bytes
    op: Op
    position: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A chunk of a snapshot. Without data: the offer has expired, request a new one."""

    checksum: bytes
    position: int
    data: bytes


Message = (
    Prepares[E]
    | PrepareOk
    | Heartbeat
    | StartViewChange
    | DoViewChange
    | StartView
    | GetStartView
    | Standing
    | Amnesia
    | GetRange
    | GetExact
    | Exact[E]
    | Evicted
    | GetOffer
    | Offer[E]
    | GetChunk
    | SnapshotChunk
)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[E]):
    """A message with its sender, the sender's life and its clock."""

    sender: ReplicaId
    boot: int  # drawn at random for each start of a process
    life: int  # superblock sequence when that life began
    sequence: int  # of the superblock now
    wall: int  # microseconds
    message: Message[E]
    past: tuple[Start, ...] = ()  # its starts before this one, oldest first
