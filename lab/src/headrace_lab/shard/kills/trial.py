"""A shard and its ledger over the lives of many processes, each ended at some moment.

What the kills and the power cuts share: who is started next, when it is ended, and what must
hold afterwards.
"""

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal

from headrace.cli.demo.child_process import SECONDS_MAX
from headrace.storage.atomic import is_leftover
from headrace_lab.shard.kills.audit import Found
from headrace_lab.shard.kills.ledger import Account
from headrace_lab.shard.kills.process import Paths, ShardProcess, ShardTestimony
from headrace_lab.shard.kills.workload import ShardWorkload
from headrace_lab.shard.kills.writer import GROUP, ShardFindings, ShardJob

RUNNING_EFFECTS_MAX: Final = 500
JITTER_SECONDS: Final = 0.004  # an effect takes about so long: before, in or after it
SEALING_SECONDS: Final = 0.08  # children are at work for about so long
RECOVERY_SECONDS_MIN: Final = 0.05
LOOK_SECONDS: Final = 0.001


@dataclass(slots=True)
class Tally:
    """What was done to the shard and what was found in it."""

    landed: Counter[str] = field(default_factory=Counter)  # by what the process was at
    missed_count: int = 0  # it had ended by itself
    log_count: int = 0
    acknowledged_count: int = 0  # rows, by those that wrote them
    checkpoint_count: int = 0
    roll_count: int = 0
    leftover_count: int = 0  # kills that left a half-written segment
    checked_count: int = 0  # recoveries compared with the ledger
    compared_count: int = 0  # rows read back in those
    torn_tail_count: int = 0
    unheard_count: int = 0  # batches found that nobody had acknowledged yet
    lost_count: int = 0
    invented_count: int = 0
    orphan_seconds: float = 0.0  # the longest that a child outlived its parent
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.landed.values())

    def among(self, word: str) -> int:
        """Return how many landed where `word` is part of what the process was at."""
        return sum(count for phase, count in self.landed.items() if word in phase)

    def note_end(self, said: ShardTestimony) -> None:
        """Count what a writer did before it was ended."""
        self.checkpoint_count += said.sealed_count
        self.roll_count += said.rolled_count
        self.problems += said.problems

    def note_found(self, recovered: ShardFindings, found: Found) -> None:
        """Count what a verifier found."""
        self.checked_count += 1
        self.compared_count += found.row_count
        self.torn_tail_count += recovered.is_torn
        self.unheard_count += found.unheard_count
        self.lost_count += found.lost_count
        self.invented_count += found.invented_count
        self.problems += found.problems

    def as_json(self) -> dict[str, object]:
        return {
            "landed": dict(self.landed.most_common()),
            "in_recovery": self.among("recovery"),
            "in_sealing": self.among("sealing"),
            "beside_a_checkpoint": self.among("beside"),
            "missed": self.missed_count,
            "logs": self.log_count,
            "rows_acknowledged": self.acknowledged_count,
            "checkpoints": self.checkpoint_count,
            "rolls": self.roll_count,
            "half_written_segments": self.leftover_count,
            "recoveries_checked": self.checked_count,
            "rows_compared": self.compared_count,
            "torn_tails": self.torn_tail_count,
            "batches_unheard": self.unheard_count,
            "lost": self.lost_count,
            "invented": self.invented_count,
            "orphan_seconds": round(self.orphan_seconds, 2),
            "problems": self.problems,
        }


@dataclass(slots=True)
class Trial:
    """A shard and its ledger over many lives: what all harnesses of real processes share."""

    paths: Paths
    chance: Random
    plant: str = ""
    tears_writes: bool = False
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.1  # that a recovery takes: a guess until one was timed
    effects: int = 12  # that it has: likewise
    _workload: ShardWorkload = field(init=False)
    _before: ShardFindings | None = None  # what the last verifier recovered
    _rows: int = 0  # in the ledger, when the last verifier was through

    def begin_log(self) -> None:
        """Forget the shard and its ledger, and begin a new one."""
        if Path(self.paths.data).exists():
            shutil.rmtree(self.paths.data)
        Path(self.paths.ledger).unlink(missing_ok=True)
        self._workload = ShardWorkload(self.chance.getrandbits(32))
        self._before, self._rows = None, 0
        self.tally.log_count += 1

    def process(self, task: Literal["write", "verify"]) -> ShardProcess:
        """Start the next life."""
        job = ShardJob(
            self._workload,
            task,
            life=self.chance.getrandbits(32),
            tears_writes=self.tears_writes,
            plant=self.plant if task == "write" else "",
        )
        return ShardProcess(job, self.paths)

    def judge_end(self, said: ShardTestimony) -> None:
        """Judge a process that was ended: what it showed must be what a verifier saw."""
        self.tally.note_end(said)
        before, now = self._before, said.recovered
        if before is None or now is None:
            return
        if (before.head, before.digest) != (now.head, now.digest):
            self.tally.problems.append(
                f"two recoveries differ: op {before.head} first, op {now.head} then"
            )

    def verify(self) -> None:
        """Recover in a process of its own, left in peace, and compare everything."""
        written = _row_count(self.paths.ledger)
        self.tally.acknowledged_count += written - self._rows
        with self.process("verify") as verifier:
            verifier.wait()
        said = verifier.testimony
        if said.recovered is None or said.found is None or not said.is_done:
            self.tally.problems.append(f"no audit: {said.failed or 'see its trace'}")
            return
        self._before, self._rows = said.recovered, _row_count(self.paths.ledger)
        self.seconds = max(RECOVERY_SECONDS_MIN, said.recovered.seconds)
        self.effects = max(1, said.recovery_effects)
        self.tally.note_found(said.recovered, said.found)

    def await_moment(self, writer: ShardProcess) -> None:
        """Choose when to end a writer, by what it did rather than by the clock."""
        said = writer.testimony
        aim = self.chance.random()
        if aim < 0.4:
            self.await_recovery_moment(writer)
            return
        writer.await_that("the end of recovery", lambda _: said.recovered is not None)
        self._await_effects(writer, self.chance.randint(1, RUNNING_EFFECTS_MAX))
        if aim < 0.75:
            writer.listen(SECONDS_MAX, lambda _: said.is_writing)
            self._await_half_a_file(writer)

    def await_recovery_moment(self, writer: ShardProcess) -> None:
        """Choose when to end a recovery: in its scan, at an effect, or while it seals."""
        said = writer.testimony
        aim = self.chance.random()
        if aim < 0.25:
            writer.listen(self.chance.uniform(0, self.seconds))
        elif aim < 0.5:
            self._await_effects(writer, self.chance.randint(1, self.effects))
        else:
            writer.listen(SECONDS_MAX, lambda _: said.is_writing or said.recovered is not None)
            self._await_half_a_file(writer)

    def has_leftover(self) -> bool:
        """Say whether there is a segment that is being written, or was left so."""
        segments = Path(self.paths.data, "groups", GROUP, "segments")
        return segments.exists() and any(is_leftover(one.name) for one in segments.iterdir())

    def _await_effects(self, writer: ShardProcess, count: int) -> None:
        wanted = writer.testimony.effect_count + count
        writer.listen(SECONDS_MAX, lambda said: said.effect_count >= wanted)
        writer.listen(self.chance.uniform(0, JITTER_SECONDS))

    def _await_half_a_file(self, writer: ShardProcess) -> None:
        """Wait until a child has begun a file, or for any moment of its work."""
        said = writer.testimony
        if self.chance.random() < 0.5:
            writer.listen(self.chance.uniform(0, SEALING_SECONDS))
            return
        while said.is_writing and not self.has_leftover() and writer.is_alive:
            writer.listen(LOOK_SECONDS)
        writer.listen(self.chance.uniform(0, JITTER_SECONDS))


def _row_count(ledger: str) -> int:
    return sum(rows.end - rows.start for rows in Account.read(ledger).rows.values())
