"""The effects of a replica with peers. docs/consensus.md has the driver's duties.

Disk effects (Append, Mend, Cut, Persist, Install) carry a ticket and are performed strictly in
order; each is answered with its ticket once it is durable.
"""

from dataclasses import dataclass
from typing import Generic

from headrace.errors import HeadraceError
from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr.peer_messages import E, Message, Name, Peer, Start


@dataclass(frozen=True, slots=True)
class Append(Generic[E]):
    """Write these after the head; `on_durable`."""

    ticket: int
    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class Mend(Generic[E]):
    """Overwrite the faulty slots of these entries; `on_mended`."""

    ticket: int
    entries: tuple[E, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove every op from `first` on, by intent; not answered."""

    first: Op


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the superblock; `on_persisted`. What a view implies is sent only after it."""

    ticket: int
    view: View
    log_view: View
    commit: Op
    peers: tuple[Peer, ...]
    starts: tuple[Start, ...]  # our own, oldest first; the last one is running
    recovering: bool
    syncing_to: Op | None
    gave_up: tuple[View, Op] | None  # the operator's last give-up
    is_settled: bool  # a start-view is installed: no op is suspect anymore
    sequence_min: int  # peers remember this sequence of ours: continue above it


@dataclass(frozen=True, slots=True)
class Install(Generic[E]):
    """Replace everything below a snapshot with it; `on_installed` or `on_spoiled`."""

    ticket: int
    entry: E  # the one at the snapshot's op
    checksum: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class DropPrevious:
    """Drop journal entries up to the newest checkpoint, not only the one before it.

    Answered by `on_checkpoint`.
    """


@dataclass(frozen=True, slots=True)
class Send(Generic[E]):
    to: ReplicaId
    message: Message[E]


@dataclass(frozen=True, slots=True)
class Serve:
    """Read these entries and send them: as Prepares of `view`, or as Exact if None."""

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
    """Send a chunk of a pinned snapshot, and renew its pin."""

    to: ReplicaId
    checksum: bytes
    op: Op
    position: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the next committed op; `on_applied`, or `on_faulty` if it is unreadable."""

    op: Op
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the caller, with the machine's result or an error."""

    ticket: object
    result: object | HeadraceError


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop this group with a reason: continuing would show wrong data."""

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
