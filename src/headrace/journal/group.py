"""A running group: its machine, journal and checkpoints, and the order between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.errors import ApplyFailed, CheckpointPending, RingFull
from headrace.journal.checkpoint import Captured, Checkpoints
from headrace.journal.entry import SEAL, Entry
from headrace.journal.journal import Journal
from headrace.journal.machine_seam import Machine
from headrace.journal.superblock import Checkpoint, SuperblockFile
from headrace.model.ids import Op
from headrace.storage.stuck import StuckFiles

# A Seal frees the slots up to the checkpoint before its own, so two Seals may be needed.
SEAL_SLOTS: Final = 4


class EntryCopy(Protocol):
    """A second place for a group's entries, outside its log. The appending thread calls it.

    Defined here, implemented by the package that knows the machine's state.
    """

    def make_room(self, entries: Sequence[Entry]) -> None:
        """Called before the journal has them. Unavailable: they are certainly in neither."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Return once they are durable there, too. StorageFailed: unknown."""

    def renew(self, captured: Captured, journal: Journal) -> None:
        """Start over with the state at a paired checkpoint. Raises nothing."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Group:
    """Invariants: applied <= commit, applied <= durable. Solo: commit is durable."""

    machine: Machine
    journal: Journal
    superblock: SuperblockFile
    checkpoints: Checkpoints
    applied: Op
    halted: ApplyFailed | None = None  # the machine raised: this group has stopped
    copy: EntryCopy | None = None  # for a group whose entries are kept in two places

    @property
    def stuck(self) -> tuple[StuckFiles, StuckFiles]:
        """Journal files and snapshots that should be gone but cannot be removed."""
        return (self.journal.spares.stuck, self.checkpoints.snapshots.stuck)

    def append(self, entries: Sequence[Entry]) -> Op:
        """Make one commit group durable; solo, durable entries may be acknowledged.

        A group that needs a roll may be cut short: after Unavailable, see `journal.durable`.
        """
        self._refuse_if_stuck()
        ordinary = [entry.op for entry in entries if entry.header.operation != SEAL]
        if ordinary:
            self._keep_room(ordinary[-1])
        if self.copy is not None:
            self.copy.make_room(entries)
        try:
            return self.journal.append(entries)
        finally:
            if self.journal.identity.is_solo:
                self.journal.commit = self.journal.durable
            if self.copy is not None:
                durable = self.journal.durable
                self.copy.append([entry for entry in entries if entry.op <= durable])

    def pair(self, checkpoint: Checkpoint) -> None:
        """Name a persisted checkpoint in the superblock. The appending thread calls this."""
        captured = self.checkpoints.pending[0]
        self.checkpoints.pair(checkpoint)
        if self.copy is not None:
            self.copy.renew(captured, self.journal)

    def _refuse_if_stuck(self) -> None:
        """Refuse if this group can never make a checkpoint again."""
        checkpoints = self.checkpoints
        stuck = checkpoints.snapshots.poisoned or checkpoints.keeper.poisoned
        failed = self.halted or self.superblock.poisoned or stuck
        if failed is not None:
            raise failed
        if self.checkpoints.is_full:
            raise CheckpointPending(len(self.checkpoints.pending))

    def _keep_room(self, op: Op) -> None:
        """Keep slots for the Seals that empty the ring: a full one has no room for them."""
        ring = self.journal.ring
        if ring.collides(Op(op + SEAL_SLOTS)):
            raise RingFull(op, ring.watermark, ring.count - SEAL_SLOTS)

    def apply(self, entry: Entry) -> object:
        """Run the next committed entry, live or in replay; a Seal also captures the state."""
        assert entry.op == self.applied + 1
        assert entry.op <= self.journal.commit
        is_seal = entry.header.operation == SEAL
        try:
            result = self.machine.apply(entry)
            state = self.machine.snapshot() if is_seal else None
        except Exception as error:
            self.halted = ApplyFailed(
                f"op {entry.op}: {error!r}",
                path=self.journal.directory.path,
                expected="a result",
                found=type(error).__name__,
                hint="This group halts here; other groups continue. Report this error",
            )
            raise self.halted from error
        self.applied = entry.op
        if state is not None:
            self.checkpoints.capture(Captured(entry.op, entry.checksum, state))
        return result

    def require_reader(self, reader_min: int) -> None:
        """Lock out releases that understand less of this log. Durable on return.

        The superblock alone does it; the next journal files record it as well, in case both
        superblock copies are lost.
        """
        if self.superblock.current.reader_min < reader_min:
            self.superblock.write(reader_min=reader_min)
        self.journal.spares.reader_min = max(self.journal.spares.reader_min, reader_min)

    def idle(self) -> None:
        """Write a mark for the last commit group, after one tick with an empty queue.

        Then prepare a spare for the next roll. DiskFull: the mark is written; try again later.
        """
        self.journal.mark()
        self.journal.prepare()

    def stop(self) -> None:
        """Stop cleanly: nothing is cut; a mark, then the clean head, then the descriptors."""
        self.journal.mark()
        durable = self.journal.durable
        commit = max(self.superblock.current.commit, self.journal.commit)
        self.superblock.write(clean_head=durable, commit=commit)
        self.close()

    def close(self) -> None:
        """Release the descriptors; nothing is written."""
        self.journal.close()
        if self.copy is not None:
            self.copy.close()
