"""What a replica with peers asks of its driver. docs/consensus.md has the driver's duties.

Disk effects (Append, Mend, Cut, Persist, Install) carry a ticket, are performed strictly in the
order they were asked for, and each is answered with its ticket when it is durable.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.errors import HeadraceError
from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr.peer_messages import E, Message, Name, Peer, Start


@dataclass(frozen=True, slots=True)
class Append(Generic[E]):
    """Write these behind the head; `on_durable`."""

    ticket: int
    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class Mend(Generic[E]):
    """Write these over the faulty slots they belong to; `on_mended`."""

    ticket: int
    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove every op from `first` on, by intent; nothing is answered."""

    first: Op


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the superblock; `on_persisted`. What a view implies is sent only after it."""

    ticket: int
    view: View
    log_view: View
    commit: Op
    peers: tuple[Peer, ...]
    starts: tuple[Start, ...]  # ours, oldest first; the last one runs
    recovering: bool
    syncing_to: Op | None
    gave_up: tuple[View, Op] | None  # what the operator gave up last
    is_settled: bool  # a start-view is installed: no op is suspect any more
    sequence_min: int  # peers remember this much of us: go on above it


@dataclass(frozen=True, slots=True)
class Install(Generic[E]):
    """Put a snapshot in the place of all that is below it; `on_installed` or `on_spoiled`."""

    ticket: int
    entry: E  # the one at the snapshot's op
    checksum: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class DropPrevious:
    """Let the journal begin at the newest checkpoint, not the one before; `on_checkpoint`."""


@dataclass(frozen=True, slots=True)
class Send(Generic[E]):
    to: ReplicaId
    message: Message[E]


@dataclass(frozen=True, slots=True)
class Serve:
    """Read these entries and send them: as Prepares of `view`, or as Exact if it is None."""

    to: ReplicaId
    view: View | None
    commit: Op
    op: Op
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class ServeOffer:
    """Pin the newest snapshot and send an Offer."""

    to: ReplicaId
    view: View


@dataclass(frozen=True, slots=True)
class ServeChunk:
    """Send a piece of a pinned snapshot, and renew its pin."""

    to: ReplicaId
    checksum: bytes
    op: Op
    position: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Run the machine on the next committed op; `on_applied`, or `on_faulty` if unreadable."""

    op: Op
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the one who asked: with the machine's result, or with why there is none."""

    ticket: object
    result: object | HeadraceError


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop this group and say why: going on would show wrong data."""

    reason: str


Effect = (
    Append[E]
    | Mend[E]
    | Cut
    | Persist
    | Install[E]
    | DropPrevious
    | Send[E]
    | Serve
    | ServeOffer
    | ServeChunk
    | Apply
    | Reply
    | Halt
)
