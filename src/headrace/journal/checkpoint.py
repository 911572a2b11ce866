"""The one way in which a checkpoint is made, and the order of its steps.

    captured    by the apply of a Seal, in memory       a crash: replayed, captured again
    sealed      what the state names is durable         a crash: unnamed files, collected later
    persisted   the snapshot is durable                 a crash: a newer one, accepted
    paired      the superblock names it                 a crash: old files are still there
    pruned      snapshots below the previous are gone   a crash: pruned again
    collected   files that no kept snapshot names go    a crash: collected later
    drained     the journal begins at the previous      a crash: drained again

One at a time, oldest first. A step that fails is tried again for the same op, and nothing
behind it is skipped.
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

PENDING_MAX: Final = 2  # more than that and appends wait: a snapshot must keep up with the log


@dataclass(frozen=True, slots=True)
class Captured:
    """The state at a Seal."""

    op: Op
    tip: bytes
    state: MachineState


class Keeper(Protocol):
    """Keeps the files that a machine's state names. Owned here, met by the machine's room."""

    @property
    def poisoned(self) -> StorageFailed | None:
        """Why it can never make a checkpoint again, if that is so."""

    @property
    def kept(self) -> Container[int]:
        """The ids of journal files that have a second name, durable or not.

        Sure once `restore` was called. Such a file is used for nothing else meanwhile.
        """

    def restore(self, state: MachineState | None) -> None:
        """Look at the files that a state names. Recovery calls this before it replays."""

    def seal(
        self, captured: Captured, journal: Journal, snapshots: SnapshotFiles
    ) -> MachineState:
        """Make durable what the state names, and return it with its local part.

        After an earlier try a snapshot at this op may be durable. Whoever replaces a file that
        it names withdraws it first.
        """

    def collect(self, snapshots: SnapshotFiles, kept: Sequence[Op], journal: Journal) -> None:
        """Let go of what none of the kept snapshots names. The newest comes first in `kept`."""


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
        """Queue a state, in op order; drop one below the pair: a replay passes it again."""
        assert not self.pending or captured.op > self.pending[-1].op
        if captured.op >= self.superblock.current.checkpoint.op:
            self.pending.append(captured)

    def run(self) -> Op | None:
        """Bring the oldest pending checkpoint to its end; return its op, or None if none waits.

        Whatever it raises, the checkpoint stays pending and the next call does all its steps
        again.
        """
        if not self.pending:
            return None
        return self.settle(self.persist())

    def persist(self) -> Checkpoint:
        """Seal and write the oldest pending one; may run beside appends, in one thread."""
        captured = self.pending[0]
        state = self.keeper.seal(captured, self.journal, self.snapshots)
        snapshot = self.snapshots.persist(captured.op, captured.tip, state)
        return Checkpoint(captured.op, captured.tip, snapshot.checksum)

    def settle(self, checkpoint: Checkpoint) -> Op:
        """Pair, clear up behind it, and let the next one come."""
        self.pair(checkpoint)
        return self.release(checkpoint)

    def pair(self, checkpoint: Checkpoint) -> None:
        """Pair and clear up behind it. The thread that appends calls this."""
        assert checkpoint.op == self.pending[0].op
        self._pair(checkpoint)
        self.finish()

    def release(self, checkpoint: Checkpoint) -> Op:
        """Let the next one come. The thread that captures calls this."""
        assert checkpoint.op == self.pending[0].op
        self.pending.popleft()
        return checkpoint.op

    def drop_previous(self) -> None:
        """Let the journal begin at the pair, for room: there is no older snapshot after this.

        A replica with peers may do so. A ring that is full, with all of it applied, waits for
        a Seal that has no place in it.
        """
        checkpoint = self.superblock.current.checkpoint.op
        if not self.pending and checkpoint > self.superblock.current.previous_op:
            self.superblock.write(previous_op=checkpoint)
            self.finish()

    def finish(self) -> None:
        """Clear up behind the pair that the superblock names. Recovery calls it too."""
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
        # Made again, after a failed step or a lost snapshot, it keeps the previous one.
        again = current.checkpoint.op == checkpoint.op
        previous = current.previous_op if again else current.checkpoint.op
        self.superblock.write(
            checkpoint=checkpoint,
            previous_op=previous,
            commit=max(current.commit, checkpoint.op),
        )
