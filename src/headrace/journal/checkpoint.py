"""The steps of a checkpoint, in order; there is no other way to make one.

    captured    by the apply of a Seal, in memory       a crash: replayed, captured again
    sealed      files of the state are durable          a crash: unnamed files, collected later
    persisted   the snapshot is durable                 a crash: a newer one, accepted
    paired      the superblock names it                 a crash: old files are still there
    pruned      older snapshots than the previous go    a crash: pruned again
    collected   files that no kept snapshot names go    a crash: collected later
    drained     the journal begins at the previous      a crash: drained again

One at a time, oldest first. A failed step is retried for the same op, and no later step is
skipped.
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace.errors import StorageFailed
from headrace.journal.journal import Journal
from headrace.journal.machine_seam import MachineState
from headrace.journal.snapshot import SnapshotFiles
from headrace.journal.superblock import Checkpoint, SuperblockFile
from headrace.model.ids import Op

PENDING_MAX: Final = 2  # beyond that appends wait: snapshots must keep up with the log


@dataclass(frozen=True, slots=True)
class Captured:
    """The state at a Seal."""

    op: Op
    tip: bytes
    state: MachineState


class Keeper(Protocol):
    """Keeps the files that a machine's state names. Implemented by the machine's package."""

    @property
    def poisoned(self) -> StorageFailed | None:
        """Why it can never make a checkpoint again; None if it can."""

    @property
    def kept(self) -> Container[int]:
        """The IDs of journal files that have a second name, durable or not.

        Valid once `restore` was called. These files are not reused meanwhile.
        """

    def restore(self, state: MachineState | None) -> None:
        """Find the files that a state names. Recovery calls this before it replays."""

    def seal(
        self, captured: Captured, journal: Journal, snapshots: SnapshotFiles
    ) -> MachineState:
        """Make the files of a state durable, and return the state with its local part.

        After an earlier attempt a snapshot at this op may be durable. Withdraw it before
        replacing a file that it names.
        """

    def collect(self, snapshots: SnapshotFiles, kept: Sequence[Op], journal: Journal) -> None:
        """Remove files that none of the kept snapshots names. `kept` has the newest first."""


class NoFiles:
    """The keeper of machines whose state names no files."""

    poisoned: None = None
    kept: Container[int] = frozenset()

    def restore(self, state: MachineState | None) -> None:
        return

    def seal(
        self, captured: Captured, journal: Journal, snapshots: SnapshotFiles
    ) -> MachineState:
        return captured.state

    def collect(self, snapshots: SnapshotFiles, kept: Sequence[Op], journal: Journal) -> None:
        return


@dataclass(slots=True)
class Checkpoints:
    """The coordinator: the only caller of persist, pairing, prune and drain."""

    journal: Journal
    superblock: SuperblockFile
    snapshots: SnapshotFiles
    keeper: Keeper = field(default_factory=NoFiles)
    pending: deque[Captured] = field(default_factory=deque)

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= PENDING_MAX

    def capture(self, captured: Captured) -> None:
        """Queue a state, in op order; skip one below the pair, which a replay passes again."""
        assert not self.pending or captured.op > self.pending[-1].op
        if captured.op >= self.superblock.current.checkpoint.op:
            self.pending.append(captured)

    def run(self) -> Op | None:
        """Complete the oldest pending checkpoint; return its op, or None if none is pending.

        After any exception the checkpoint stays pending, and the next call repeats all steps.
        """
        if not self.pending:
            return None
        return self.settle(self.persist())

    def persist(self) -> Checkpoint:
        """Seal and write the oldest pending one; may run in one thread beside appends."""
        captured = self.pending[0]
        state = self.keeper.seal(captured, self.journal, self.snapshots)
        snapshot = self.snapshots.persist(captured.op, captured.tip, state)
        return Checkpoint(captured.op, captured.tip, snapshot.checksum)

    def settle(self, checkpoint: Checkpoint) -> Op:
        """Pair, clean up, and release the next one."""
        self.pair(checkpoint)
        return self.release(checkpoint)

    def pair(self, checkpoint: Checkpoint) -> None:
        """Pair and clean up. The appending thread calls this."""
        assert checkpoint.op == self.pending[0].op
        self._pair(checkpoint)
        self.finish()

    def release(self, checkpoint: Checkpoint) -> Op:
        """Release the next one. The capturing thread calls this."""
        assert checkpoint.op == self.pending[0].op
        self.pending.popleft()
        return checkpoint.op

    def drop_previous(self) -> None:
        """Let the journal begin at the pair, to free slots: this drops the older snapshot.

        A replica with peers may do this. A full ring whose ops are all applied waits for a Seal
        that has no slot in it.
        """
        checkpoint = self.superblock.current.checkpoint.op
        if not self.pending and checkpoint > self.superblock.current.previous_op:
            self.superblock.write(previous_op=checkpoint)
            self.finish()

    def finish(self) -> None:
        """Clean up below the pair that the superblock names. Recovery calls it too."""
        current = self.superblock.current
        previous = current.previous_op
        self.snapshots.prune(previous)
        kept = [op for op in (current.checkpoint.op, previous) if op > 0]
        self.keeper.collect(self.snapshots, kept, self.journal)
        if previous > 0:
            through = Op(min(previous, self.journal.durable) - 1)
            self.journal.drain(through, self.keeper.kept)

    def _pair(self, checkpoint: Checkpoint) -> None:
        current = self.superblock.current
        # A repeat, after a failed step or a lost snapshot, keeps the previous one.
        again = current.checkpoint.op == checkpoint.op
        previous = current.previous_op if again else current.checkpoint.op
        self.superblock.write(
            checkpoint=checkpoint,
            previous_op=previous,
            commit=max(current.commit, checkpoint.op),
        )
