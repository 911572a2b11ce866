"""Appends alongside running checkpoints, as in a node: one thread appends, one persists.

Sealing and writing a snapshot run in their own thread, with the work itself in child processes;
pairing and draining belong to the appending thread. One checkpoint at a time.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.errors import CheckpointPending, RingFull, SealFailed
from headrace.journal.entry import SEAL
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op
from headrace.model.proposal import EntryProposal
from headrace.model.schema import SEGMENT_FORMAT
from headrace.node.group.seal_pace import SealPace
from headrace.partition.machine import operations
from headrace.partition.machine.operations import ClosePartition, Purge
from headrace.partition.machine.results import Result
from headrace.partition.machine.state import Placed
from headrace_lab.shard.shard import SoloShard

_FREEING = frozenset({ClosePartition.operation, Purge.operation})


@dataclass(slots=True)
class Pump:
    """Drives one shard. Only its own thread calls it."""

    shard: SoloShard
    pace: SealPace = field(init=False)
    waits: int = 0  # times that an append waited for a checkpoint
    running: Future[Checkpoint] | None = None
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __post_init__(self) -> None:
        self.pace = self._pace()

    def _pace(self) -> SealPace:
        """Count what a replay has found since the last Seal as if it had been appended now."""
        journal, state = self.shard.store.group.journal, self.shard.store.machine.state
        pace = SealPace(journal.ring.count)
        for header in journal.headers(Op(state.sealed_op + 1), journal.durable):
            pace.count(header.body_size, header.timestamp)
        return pace

    def append(self, proposals: Sequence[EntryProposal]) -> list[Result]:
        """Append one commit group; wait for a checkpoint first if two are pending."""
        self._turn(wait=False)
        while self.shard.store.group.checkpoints.is_full:
            self.waits += 1
            self._turn(wait=True)
        try:
            results = self.shard.submit(proposals)
        except RingFull:
            self.seal()
            self._turn(wait=True)
            return self.append(proposals)
        for one in proposals:
            frees = one.operation in _FREEING
            self.pace.count(len(one.body), self.shard.timestamp, frees=frees)
        if self.pace.is_due(self.shard.timestamp):
            self.seal()
        return results

    def seal(self) -> None:
        """Append a Seal, and begin its checkpoint as soon as it is the oldest."""
        while True:
            try:
                seal = operations.Seal(expire=False, format=SEGMENT_FORMAT)
                self.shard.submit([EntryProposal(SEAL, operations.encode(seal))])
                break
            except CheckpointPending:
                self._turn(wait=True)
        self.pace.sealed()
        self._turn(wait=False)

    def finish(self) -> None:
        """Seal until every row is in a segment; SealFailed if one cannot be."""
        while self._unsealed() or self.shard.store.group.checkpoints.pending:
            if not self.shard.store.group.checkpoints.pending:
                self.seal()
            self._turn(wait=True)
            for finding in self.shard.store.keeper.unsealed():
                raise SealFailed(finding.path, finding.what)

    def settle(self) -> None:
        """Bring the checkpoints that are pending to their end."""
        while self.shard.store.group.checkpoints.pending:
            self._turn(wait=True)

    def close(self) -> None:
        """Bring what is pending to its end, and stop the shard cleanly."""
        self.settle()
        self.thread.shutdown()
        self.shard.store.stop()

    def _turn(self, *, wait: bool) -> None:
        """Settle a checkpoint that is done, and begin the next one that is pending."""
        checkpoints = self.shard.store.group.checkpoints
        if self.running is not None and (wait or self.running.done()):
            done, self.running = self.running, None
            checkpoints.settle(done.result())
        if self.running is None and checkpoints.pending:
            self.running = self.thread.submit(checkpoints.persist)

    def _unsealed(self) -> bool:
        return any(
            partition.runs
            or not all(isinstance(one.place, Placed) for one in partition.segments)
            for partition in self.shard.store.machine.state.partitions.values()
        )
