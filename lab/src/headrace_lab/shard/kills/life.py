"""One life of a shard's writer: repeats what the last one had in flight, then continues.

The thread that owns the shard appends, settles and applies; a second one persists checkpoints
alongside it, as a node does. Every answer is checked against the answers in the ledger.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from headrace.journal.checkpoint import Checkpoints
from headrace.journal.entry import SEAL
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Offset
from headrace.model.proposal import EntryProposal
from headrace.model.results import (
    AppendResult,
    DiscardResult,
    PartitionRange,
    PublishResult,
    StageResult,
    TrimResult,
)
from headrace.model.schema import SEGMENT_FORMAT
from headrace.partition.machine import operations
from headrace.partition.machine.operations import Seal
from headrace.partition.machine.results import Opened, Refusal, RefusalCode, Result
from headrace.partition.machine.state import Partition
from headrace_lab.harness.history import Broken
from headrace_lab.shard.kills.ledger import Ledger, LedgerRows
from headrace_lab.shard.kills.workload import (
    CREATED,
    SCHEMA,
    TOPIC,
    Batch,
    ShardWorkload,
    digest_of,
    stage_id,
    writer_id,
)
from headrace_lab.shard.shard import (
    SoloShard,
    discarding,
    opening,
    publishing,
    trimming,
)

GROUP_COUNT_MAX: Final = 6  # proposals in a commit group
SEAL_EVERY: Final = 30  # entries
SECOND_SEAL_CHANCE: Final = 0.02  # a Seal while a checkpoint is on its way
MARK_CHANCE: Final = 0.05
TRANSACTION_CHANCE: Final = 0.35
TRIM_CHANCE: Final = 0.05
KEPT_ROWS: Final = 800  # a partition that has more is trimmed to half of it
REPEAT_COUNT: Final = 3  # versions that a new life asks for again, though they were answered
PRETENCE_CHANCE: Final = 0.2
FREE_SLOTS_MIN: Final = 64


class Act(NamedTuple):
    """A proposal, what to say before, and what its answer makes known."""

    proposal: EntryProposal
    answered: Callable[[Result], list[str]]
    announced: str = ""


@dataclass(slots=True)
class _Transaction:
    """One version of a publisher on its way."""

    source: int
    version: int
    waiting: deque[tuple[Batch, int, int]]  # what is to be staged: batch, stage, number


@dataclass(slots=True)
class ShardLife:
    """One process, from its recovery to its death."""

    workload: ShardWorkload
    shard: SoloShard
    ledger: Ledger
    chance: Random
    pool: Executor
    say: Callable[..., None]
    skips_an_append: bool = False  # a planted bug: see `_pretend`
    running: Future[Checkpoint] | None = None
    unsealed: int = 0  # entries since the last Seal
    following: dict[int, int] = field(default_factory=dict)  # next version of each appender
    transactions: dict[int, _Transaction] = field(default_factory=dict)
    appenders: list[int] = field(init=False)  # those that go on
    publishers: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.appenders = self.workload.appenders
        self.publishers = self.workload.publishers

    def resume(self) -> None:
        """Open what is not open, and repeat what may or may not have happened."""
        self._submit(
            [
                Act(opening(key, [SCHEMA], CREATED, CREATED), _opened)
                for key in self.workload.partitions
            ]
        )
        repeated = [self._repeats(source) for source in self.workload.appenders]
        self._submit([self._append(batch) for batches in repeated for batch in batches])
        self._submit([self._conflict(batches[-1]) for batches in repeated if batches])
        self._submit([act for one in self.workload.publishers for act in self._republish(one)])
        for source in self.workload.publishers:
            version = self.ledger.account.answered.get(source, 0) + 1
            self.transactions[source] = self._transaction(source, version)

    def run(self, seconds: float) -> None:
        """Write until somebody ends this process, or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._submit(self._choose())
            self._go_on_with_checkpoints()
            if self.chance.random() < MARK_CHANCE:
                self.shard.store.group.idle()
            if self.skips_an_append and self.chance.random() < PRETENCE_CHANCE:
                self._pretend()

    @property
    def checkpoints(self) -> Checkpoints:
        return self.shard.store.group.checkpoints

    def _submit(self, acts: list[Act]) -> None:
        """Announce, append, apply; and only then write down what was acknowledged."""
        if not acts:
            return
        while self._must_wait():
            self._settle()
        self.ledger.say(act.announced for act in acts if act.announced)
        results = self.shard.submit([act.proposal for act in acts])
        lines: list[str] = []
        for act, result in zip(acts, results, strict=True):
            lines += act.answered(result)
        self.ledger.acknowledge(lines)
        if self.ledger.account.problems:
            raise Broken(self.ledger.account.problems[0])
        self.unsealed += len(acts)

    def _must_wait(self) -> bool:
        free = self.shard.store.group.journal.free_slots
        return self.checkpoints.is_full or free < FREE_SLOTS_MIN

    def _choose(self) -> list[Act]:
        acts: list[Act] = []
        for _ in range(self.chance.randint(1, GROUP_COUNT_MAX)):
            if self.publishers and self.chance.random() < TRANSACTION_CHANCE:
                acts.append(self._transact(self.chance.choice(self.publishers)))
            else:
                acts.append(self._append_next(self.chance.choice(self.appenders)))
        acts += self._trims()
        return acts

    # Appends.

    def _append_next(self, source: int) -> Act:
        version = self.following[source]
        self.following[source] = version + 1
        return self._append(Batch(source, version))

    def _append(self, batch: Batch) -> Act:
        def answered(result: Result) -> list[str]:
            if not isinstance(result, AppendResult):
                raise Broken(f"{batch} is refused: {result}")
            self._refuse_second(batch, repeated=result.repeated)
            return [self._rows(batch, result.start, result.end).line()]

        announced = f"trying {batch.source} {batch.version}"
        return Act(self.workload.append(batch), answered, announced)

    def _repeats(self, source: int) -> list[Batch]:
        """Name the versions that were answered last, and all that were tried after them."""
        account = self.ledger.account
        done, tried = account.answered.get(source, 0), account.tried.get(source, 0)
        self.following[source] = max(done, tried) + 1
        first = max(1, done - REPEAT_COUNT + 1)
        return [Batch(source, version) for version in range(first, self.following[source])]

    def _conflict(self, batch: Batch) -> Act:
        """Try to write something else under a version that is taken."""

        def answered(result: Result) -> list[str]:
            if not isinstance(result, Refusal) or result.code != RefusalCode.WRITER_CONFLICT:
                raise Broken(f"{batch} was written with other content: {result}")
            return []

        other = self.workload.append(batch._replace(version=batch.version + 1))
        return Act(other._replace(version=batch.version), answered)

    def _refuse_second(self, batch: Batch, *, repeated: bool) -> None:
        if batch in self.ledger.account.rows and not repeated:
            raise Broken(f"{batch} was appended a second time")

    def _rows(self, batch: Batch, start: int, end: int) -> LedgerRows:
        partition = self.workload.partition_of(batch)
        return LedgerRows(partition, start, end, batch, digest_of(self.workload.rows(batch)))

    # Transactions.

    def _transaction(self, source: int, version: int) -> _Transaction:
        waiting = deque(
            (batch, stage, number)
            for stage, batches in enumerate(self.workload.stages(source, version))
            for number, batch in enumerate(batches)
        )
        return _Transaction(source, version, waiting)

    def _transact(self, source: int) -> Act:
        """Take one step of a publisher's transaction."""
        current = self.transactions[source]
        if current.waiting:
            return self._stage(*current.waiting.popleft())
        # Its answer comes with the whole commit group, in which the next one may begin.
        self.transactions[source] = self._transaction(source, current.version + 1)
        if self.workload.is_discarded(source, current.version):
            return self._discard(source, current.version)
        return self._publish(source, current.version)

    def _stage(self, batch: Batch, stage: int, number: int) -> Act:
        def answered(result: Result) -> list[str]:
            was_tried = batch.version <= self.ledger.account.tried.get(batch.source, 0)
            if (
                isinstance(result, Refusal)
                and result.code == RefusalCode.SUPERSEDED
                and was_tried
            ):
                return []  # it was published, and its writer never heard
            if not isinstance(result, StageResult):
                raise Broken(f"{batch} cannot be staged: {result}")
            return []

        return Act(self.workload.stage(batch, stage, number), answered)

    def _discard(self, source: int, version: int) -> Act:
        def answered(result: Result) -> list[str]:
            if not isinstance(result, DiscardResult):
                raise Broken(f"version {version} of {source} cannot be discarded: {result}")
            return [f"dropped {source} {version}"]

        count = len(self.workload.stages(source, version))
        names = [stage_id(source, version, stage) for stage in range(count)]
        return Act(discarding(TOPIC, writer_id(source), names), answered)

    def _publish(self, source: int, version: int) -> Act:
        batches = self.workload.entries(source, version)

        def answered(result: Result) -> list[str]:
            if isinstance(result, Refusal) and result.code == RefusalCode.SUPERSEDED:
                return self._superseded(batches)
            if not isinstance(result, PublishResult) or not result.same:
                raise Broken(f"version {version} of {source} is not published: {result}")
            self._refuse_second(batches[0], repeated=result.repeated)
            return [rows.line() for rows in self._published(batches, result.ranges)]

        receipts = self.workload.receipts(source, version)
        proposal = publishing(TOPIC, writer_id(source), version, receipts)
        return Act(proposal, answered, f"trying {source} {version}")

    def _superseded(self, batches: list[Batch]) -> list[str]:
        """Take a later version's being published for an answer, where that one was tried."""
        source, version, _ = batches[0]
        account = self.ledger.account
        if account.tried[source] <= version or any(one not in account.rows for one in batches):
            raise Broken(f"version {version} of {source} is superseded, and was never seen")
        return [account.rows[batch].line() for batch in batches]

    def _republish(self, source: int) -> list[Act]:
        """Publish the last version that was answered once more."""
        version = self.ledger.account.answered.get(source, 0)
        while version and self.workload.is_discarded(source, version):
            version -= 1
        return [self._publish(source, version)] if version else []

    def _published(
        self, batches: list[Batch], ranges: tuple[PartitionRange, ...]
    ) -> list[LedgerRows]:
        """Part the ranges of an answer, one for each partition, into what was published."""
        left = {one.namespace: (one.start, one.end) for one in ranges}
        if len(left) != len(ranges):
            raise Broken(f"a partition has two ranges: {ranges}")
        made: list[LedgerRows] = []
        for batch in batches:
            key = self.workload.partitions[self.workload.partition_of(batch)]
            start, end = left.get(key.namespace, (Offset(0), Offset(0)))
            following = Offset(start + self.workload.row_count(batch))
            if following > end:
                raise Broken(f"{batch} has no place in the ranges {ranges}")
            made.append(self._rows(batch, start, following))
            left[key.namespace] = (following, end)
        if any(start != end for start, end in left.values()):
            raise Broken(f"version {batches[0].version} was given more offsets: {ranges}")
        return made

    # Trims and checkpoints.

    def _trims(self) -> list[Act]:
        made: list[Act] = []
        for number in range(self.workload.partition_count):
            one = self._partition(number)
            is_long = one is not None and one.end - one.first > KEPT_ROWS
            if one is not None and is_long and self.chance.random() < TRIM_CHANCE:
                made.append(self._trim(number, Offset(one.end - KEPT_ROWS // 2)))
        return made

    def _partition(self, number: int) -> Partition | None:
        key = self.workload.partitions[number]
        return self.shard.store.machine.state.partitions.get(key.namespace)

    def _trim(self, number: int, first: Offset) -> Act:
        def answered(result: Result) -> list[str]:
            if not isinstance(result, TrimResult) or result.first != first:
                raise Broken(f"partition {number} is not trimmed to {first}: {result}")
            return [f"trimmed {number} {first}"]

        proposal = trimming(self.workload.partitions[number], first)
        return Act(proposal, answered, f"trimming {number} {first}")

    def _go_on_with_checkpoints(self) -> None:
        if self.running is not None and self.running.done():
            self._settle()
        wanted = self.unsealed >= SEAL_EVERY and not self.checkpoints.pending
        again = self.running is not None and self.chance.random() < SECOND_SEAL_CHANCE
        if wanted or again:
            seal = Seal(expire=False, format=1 + self.shard.head % SEGMENT_FORMAT)
            self.shard.submit([EntryProposal(SEAL, operations.encode(seal))])
            self.unsealed = 0
        self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        if self.running is None and self.checkpoints.pending:
            self.running = self.pool.submit(self._persist)

    def _persist(self) -> Checkpoint:
        self.say("sealing", self.checkpoints.pending[0].op)
        return self.checkpoints.persist()

    def _settle(self) -> None:
        """Wait for the checkpoint under way and bring it to its end."""
        self._begin_checkpoint()
        assert self.running is not None
        running, self.running = self.running, None
        self.say("sealed", self.checkpoints.settle(running.result()))

    def _pretend(self) -> None:
        """The planted bug: write down an append that was never made. Its partition rests."""
        self.skips_an_append = False
        source = self.appenders[0]
        batch = Batch(source, self.following[source])
        place = self.workload.partition_of(batch)
        one = self._partition(place)
        assert one is not None
        rows = self._rows(batch, one.end, one.end + self.workload.row_count(batch))
        self.ledger.acknowledge([f"trying {batch.source} {batch.version}", rows.line()])
        self.publishers = []
        self.appenders = [
            source
            for source in self.appenders
            if self.workload.partition_of(Batch(source, 1)) != place
        ]


def _opened(result: Result) -> list[str]:
    if not isinstance(result, Opened):
        raise Broken(f"a partition cannot be opened: {result}")
    return []
