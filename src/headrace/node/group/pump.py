"""The pump of one group: the single writer of its log, as a synchronous machine.

Requests come in, effects go out, and the driver performs them:

    Append    hand these entries to the journal's thread     → on_durable or on_failed
    Reply     answer the caller
    Persist   write the oldest checkpoint, in its own thread → on_persisted or on_unpersisted
    Pair      name it in the superblock, in the journal's    → on_paired
              thread

Requests that do not fit into the pipeline or the ring, or must wait for a checkpoint, wait in
the inbox, within its bounds and their deadlines. A request in the inbox is not in the log: one
that leaves it unprepared has certainly not happened.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from headrace.errors import Busy, HeadraceError, NotReady, TimedOut, Unavailable
from headrace.journal.checkpoint import PENDING_MAX
from headrace.journal.entry import SEAL, Entry, seal
from headrace.journal.group import SEAL_SLOTS, Group
from headrace.journal.heads import Head
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op
from headrace.model.proposal import EntryProposal
from headrace.model.schema import SEGMENT_FORMAT_FIRST
from headrace.node.group.seal_pace import SealPace
from headrace.partition.machine import operations
from headrace.vsr.peer_messages import SoloAppend, SoloReply
from headrace.vsr.replica import Replica

_FREEING = frozenset({operations.ClosePartition.operation, operations.Purge.operation})
BUSY_MS = 50  # about the time to write a full pipeline
RETRY_S = 1.0  # between two attempts of a checkpoint that could not be written


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Limits on work in flight."""

    pipeline_count: int = 1_024
    pipeline_size: int = 64 * 1024 * 1024
    inbox_size: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PersistSnapshot:
    """Write the oldest pending checkpoint."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Name a written checkpoint in the superblock, and clean up after it."""

    checkpoint: Checkpoint


Effect = SoloAppend[Entry] | SoloReply | PersistSnapshot | Pair


class _Waiting(NamedTuple):
    request: EntryProposal
    ticket: object
    deadline: float


def _unobserved(entry: Entry, result: object) -> None:
    return


def _first_format() -> int:
    return SEGMENT_FORMAT_FIRST


@dataclass(slots=True)
class Pump:
    """Drives one group. All calls come from one thread, sequentially."""

    group: Group
    pace: SealPace
    limits: PumpLimits = field(default_factory=PumpLimits)
    observe: Callable[[Entry, object], None] = _unobserved  # called for every applied op
    replica: Replica[Entry] = field(init=False)
    inbox: deque[_Waiting] = field(default_factory=deque)
    inbox_size: int = 0
    seals_in_flight: int = 0
    expires: bool = True  # Seals expire writers and stages that were idle too long
    segment_format: Callable[[], int] = _first_format  # of what the next Seal writes
    may_seal: bool = True  # False: the log is left unchanged until the first request
    owes_seal: bool = False  # a Seal was due and could not be written
    seal_failed: bool = False  # since the last tick, which schedules the retry
    seal_at: float = 0.0  # when a failed Seal may be retried; 0: at any time
    is_persisting: bool = False
    retry_at: float = 0.0  # of a checkpoint that failed
    halted: HeadraceError | None = None
    last_failure: HeadraceError | None = None  # of a checkpoint; None after a success

    def __post_init__(self) -> None:
        """Continue where recovery ended."""
        journal = self.group.journal
        newest = journal.headers(journal.durable, journal.durable)
        timestamp = newest[0].timestamp if newest else 0
        self.replica = Replica(
            partial(seal, journal.identity), journal.durable, journal.tip, timestamp
        )

    def submit(
        self, request: EntryProposal, now: int, *, ticket: object = None, deadline: float = 0.0
    ) -> list[Effect]:
        """Submit a request. It is answered exactly once, through its ticket."""
        size = len(request.body)
        if self.halted is not None:
            return [SoloReply(ticket, not_ready(self.halted))]
        self.may_seal = True
        if not self.inbox and self._has_room():
            return self._prepare(request, now, ticket, deadline)
        if self.inbox and self.inbox_size + size > self.limits.inbox_size:
            return [SoloReply(ticket, Busy("the write queue of the group is full", BUSY_MS))]
        self.inbox.append(_Waiting(request, ticket, deadline))
        self.inbox_size += size
        return self._relieve(now)

    def on_durable(self, op: Op, now: int) -> list[Effect]:
        """The journal has everything up to `op`: apply, answer, and refill the pipeline."""
        if self.halted is not None:
            return []
        effects: list[Effect] = []
        for entry in self.replica.on_durable(op):
            try:
                result = self.group.apply(entry)
            except HeadraceError as error:
                return [*effects, *self.on_halted(error)]
            if entry.header.operation == SEAL:
                self.seals_in_flight -= 1
            self.observe(entry, result)
            effects += self.replica.on_applied(entry.header.op, result)
        return [*effects, *self._persist(), *self._fill(now)]

    def on_failed(self, durable: Op, error: HeadraceError, now: int) -> list[Effect]:
        """The journal has everything up to `durable`, and certainly nothing above it."""
        if not isinstance(error, Unavailable):
            return self.on_halted(error)
        effects = self.on_durable(durable, now) if durable > self.replica.durable else []
        if self.halted is not None:
            return effects
        # Entries prepared meanwhile are dropped, too: they chain to missing entries.
        effects = [one for one in effects if not isinstance(one, SoloAppend)]
        effects += self.replica.on_failed(error)
        if self.seals_in_flight:
            self.owes_seal = self.seal_failed = True
        self.seals_in_flight = 0
        return effects + self._refuse_inbox(error)

    def on_halted(self, error: HeadraceError) -> list[Effect]:
        """The group halts: refuse all requests, now and from now on."""
        self.halted = error
        return [
            *self.replica.on_halted(error),
            *self._refuse_inbox(not_ready(error)),
        ]

    def on_persisted(self, checkpoint: Checkpoint) -> list[Effect]:
        return [Pair(checkpoint)]

    def on_paired(self, checkpoint: Checkpoint, now: int) -> list[Effect]:
        """A checkpoint is complete: the ring has room again."""
        self.group.checkpoints.release(checkpoint)
        self.is_persisting = False
        self.last_failure = None
        return [*self._persist(), *self._fill(now)]

    def on_unpersisted(self, error: HeadraceError, clock: float) -> list[Effect]:
        """A checkpoint could not be written: retry later, or halt if that is pointless."""
        self.is_persisting = False
        self.last_failure = error
        self.retry_at = clock + RETRY_S
        return [] if isinstance(error, Unavailable) else self.on_halted(error)

    def on_tick(self, now: int, clock: float) -> list[Effect]:
        """Expire deadlines, seal if due, and retry failed checkpoints."""
        effects: list[Effect] = [*self.replica.on_tick(clock)]
        if any(clock >= one.deadline for one in self.inbox):
            late = [one for one in self.inbox if clock >= one.deadline]
            self.inbox = deque(one for one in self.inbox if clock < one.deadline)
            self.inbox_size = sum(len(one.request.body) for one in self.inbox)
            error = _timed_out(self.last_failure)
            effects += [SoloReply(one.ticket, error) for one in late if one.ticket]
        if self.halted is not None:
            return effects
        if clock >= self.retry_at:
            effects += self._persist()
        if self.seal_failed:
            self.seal_failed, self.seal_at = False, clock + RETRY_S
        elif clock >= self.seal_at:
            self.seal_at = 0.0
        return [*effects, *self._fill(now)]

    @property
    def head(self) -> Head | None:
        """The newest applied entry, which is durable and committed; None before the first.

        Op and checksum are consistent, since both come from the machine on the loop:
        `journal.durable` and `journal.tip` are written separately by another thread.
        """
        replica = self.replica
        return Head(replica.applied, replica.applied_tip) if replica.applied else None

    def request_seal(self, now: int) -> list[Effect]:
        """Request a Seal soon, whatever the pace."""
        self.owes_seal = True
        return self._relieve(now)

    @property
    def is_idle(self) -> bool:
        """Whether no work is in flight."""
        return not self.inbox and not self.replica.in_flight and not self.is_persisting

    def _has_room(self) -> bool:
        replica, limits = self.replica, self.limits
        return (
            len(replica.in_flight) < limits.pipeline_count
            and replica.in_flight_size < limits.pipeline_size
            and self._may_seal()
            and not self._ring_is_full()
        )

    def _may_seal(self) -> bool:
        """Return whether one more Seal may follow; nothing is prepared after the last one."""
        return len(self.group.checkpoints.pending) + self.seals_in_flight < PENDING_MAX

    def _ring_is_full(self) -> bool:
        return self.group.journal.ring.collides(Op(self.replica.op + 1 + SEAL_SLOTS))

    def _prepare(
        self, request: EntryProposal, now: int, ticket: object, deadline: float
    ) -> list[Effect]:
        append = self.replica.on_request(request, now, ticket=ticket, deadline=deadline)
        frees = request.operation in _FREEING and request.created > 0  # 0: of no life
        self.pace.count(len(request.body), self.replica.timestamp, frees=frees)
        return [append, *self._seal_if_due(now)]

    def _seal_if_due(self, now: int) -> list[Effect]:
        if not (self.owes_seal or self.pace.is_due(now)) or not self._may_seal():
            return []
        if not self.may_seal or self.seal_failed or self.seal_at:
            return []
        self.owes_seal = False
        self.pace.sealed()
        self.seals_in_flight += 1
        seal = operations.Seal(self.expires, self.segment_format())
        return [self.replica.on_request(EntryProposal(SEAL, operations.encode(seal)), now)]

    def _relieve(self, now: int) -> list[Effect]:
        """Seal if due, or if only a checkpoint can free slots."""
        if self._ring_is_full() and self.seals_in_flight == 0 and not self.is_persisting:
            self.owes_seal = self.owes_seal or not self.group.checkpoints.pending
        return self._seal_if_due(now)

    def _fill(self, now: int) -> list[Effect]:
        """Prepare waiting requests while there is room."""
        effects: list[Effect] = []
        while self.inbox and self._has_room():
            request, ticket, deadline = self.inbox.popleft()
            self.inbox_size -= len(request.body)
            effects += self._prepare(request, now, ticket, deadline)
        return [*effects, *self._relieve(now)]

    def _persist(self) -> list[Effect]:
        if self.is_persisting or not self.group.checkpoints.pending:
            return []
        self.is_persisting = True
        return [PersistSnapshot()]

    def _refuse_inbox(self, error: HeadraceError) -> list[Effect]:
        refused = [one.ticket for one in self.inbox if one.ticket is not None]
        self.inbox.clear()
        self.inbox_size = 0
        return [SoloReply(ticket, error) for ticket in refused]


def not_ready(error: HeadraceError) -> NotReady:
    return NotReady(f"this group is not serving: {error}", hint="Check the node's status")


def _timed_out(cause: HeadraceError | None) -> TimedOut:
    why = "" if cause is None else f", because a checkpoint cannot be written: {cause}"
    return TimedOut(
        f"the deadline passed before it was written; nothing happened{why}",
        hint="" if why else "Retry with a longer timeout, or when the node is less busy",
    )
