"""A shard and its ledger over the lives of many processes, each ended at some moment."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar, Final

import msgspec

from headrace.cli.demo.child_process import SECONDS_MAX
from headrace.storage.atomic import is_leftover
from headrace_lab.disk.loopdisk import LoopDisk
from headrace_lab.harness.process import GROUP, LabProcess, Testimony
from headrace_lab.harness.trial import JITTER_SECONDS, Task, Trial
from headrace_lab.shard.kills.audit import Found
from headrace_lab.shard.kills.ledger import ShardAccount, size_of, void_since
from headrace_lab.shard.kills.workload import ShardWorkload
from headrace_lab.shard.kills.writer import ShardFindings, ShardJob

RUNNING_EFFECTS_MAX: Final = 500
SEALING_SECONDS: Final = 0.08  # children are at work for about so long
RECOVERY_SECONDS_MIN: Final = 0.05
LOOK_SECONDS: Final = 0.001


@dataclass(slots=True)
class ShardTestimony(Testimony):
    """Everything one process said; `writer.py` has the grammar."""

    found: Found | None = None
    is_writing: bool = False  # its children are at work

    recovered_as: ClassVar = ShardFindings

    def at_recovery(self) -> str:
        return "recovery, sealing" if self.is_writing else "recovery"

    def at_work(self) -> str:
        """What its owning thread is at, and what goes on beside."""
        if self.sealing is None:
            return "appends alone"
        return "appends, sealing beside" if self.is_writing else "appends, checkpoint beside"

    @property
    def ended_in_recovery(self) -> bool:
        """A recovery had begun, and could not end, or not without leaving a seal."""
        if self.recovered is None:
            return self.failed is not None
        return bool(self.recovered.unmended)

    def hear_more(self, word: str, rest: str) -> None:
        match word:
            case "writing" | "written":
                self.is_writing = word == "writing"
            case "audited":
                self.found = msgspec.json.decode(rest, type=Found)
            case _:
                Testimony.hear_more(self, word, rest)


ShardProcess = LabProcess[ShardTestimony]


@dataclass(slots=True, kw_only=True)
class ShardTrial(Trial[ShardTestimony]):
    """Its ledger is not on the same disk, if that one is cut."""

    data: str
    ledger: str
    tears_writes: bool = False
    _workload: ShardWorkload = field(init=False)
    _before: ShardFindings | None = None  # what the last verifier recovered
    _rows: int = 0  # in the ledger, when the last verifier was through

    shares: ClassVar = {"recovery": 4, "sealing": 8}

    def begin_log(self) -> None:
        if Path(self.data).exists():
            shutil.rmtree(self.data)
        Path(self.ledger).unlink(missing_ok=True)
        self._workload = ShardWorkload(self.chance.getrandbits(32))
        self._before, self._rows = None, 0
        self.tally.counts["logs"] += 1

    def process(self, task: Task) -> ShardProcess:
        job = ShardJob(
            self._workload,
            task,
            life=self.chance.getrandbits(32),
            tears_writes=self.tears_writes,
            plant=self.plant if task == "write" else "",
        )
        text = msgspec.json.encode(job).decode()
        module = "headrace_lab.shard.kills.writer"
        return LabProcess(ShardTestimony(), module, self.data, self.ledger, text)

    def judge_end(self, said: ShardTestimony) -> None:
        """Judge a writer that was ended: what it showed must be what a verifier saw."""
        self.tally.counts["checkpoints"] += said.sealed_count
        self.tally.counts["journal files begun"] += said.rolled_count
        self.tally.failures += said.problems
        before, now = self._before, said.recovered
        if before is None or now is None:
            return
        if (before.head, before.digest) != (now.head, now.digest):
            self.tally.failures.append(
                f"two recoveries differ: op {before.head} first, op {now.head} then"
            )

    @contextmanager
    def dark(self, process: ShardProcess) -> Iterator[None]:
        size = size_of(self.ledger)
        yield
        void_since(self.ledger, size)

    def verify(self) -> None:
        written = _row_count(self.ledger)
        self.tally.counts["rows acknowledged"] += written - self._rows
        with self.process("verify") as verifier:
            verifier.wait()
        said = verifier.testimony
        if said.recovered is None or said.found is None or not said.is_done:
            self.tally.failures.append(f"no audit: {said.failed or 'see its trace'}")
            return
        self._before, self._rows = said.recovered, _row_count(self.ledger)
        self.seconds = max(RECOVERY_SECONDS_MIN, said.recovered.seconds)
        self.effects = max(1, said.recovery_effects)
        self._note(said.recovered, said.found)

    def _note(self, recovered: ShardFindings, found: Found) -> None:
        tally = self.tally
        tally.cases += 1
        tally.counts["rows read back"] += found.row_count
        tally.counts["rows lost"] += found.lost_count
        tally.counts["rows invented"] += found.invented_count
        tally.found["torn tails cut"] += recovered.is_torn
        tally.found["batches that nobody had acknowledged yet"] += found.unheard_count
        tally.failures += found.problems

    def await_moment(self, writer: ShardProcess) -> None:
        """Choose when to end a writer, by what it did rather than by the clock."""
        said = writer.testimony
        aim = self.chance.random()
        if aim < 0.4:
            self.await_recovery_moment(writer)
            return
        writer.await_that("the end of recovery", lambda _: said.recovered is not None)
        self.await_effects(writer, self.chance.randint(1, RUNNING_EFFECTS_MAX))
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
            self.await_effects(writer, self.chance.randint(1, self.effects))
        else:
            writer.listen(SECONDS_MAX, lambda _: said.is_writing or said.recovered is not None)
            self._await_half_a_file(writer)

    def has_leftover(self) -> bool:
        """Say whether there is a segment that is being written, or was left so."""
        segments = Path(self.data, "groups", GROUP, "segments")
        return segments.exists() and any(is_leftover(one.name) for one in segments.iterdir())

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
    return sum(rows.end - rows.start for rows in ShardAccount.read(ledger).rows.values())


def on_disk(disk: LoopDisk, ledgers: str, seed: int, plant: str = "") -> ShardTrial:
    """Prepare a trial on a disk whose power is cut; its ledger is in `ledgers`."""
    return ShardTrial(
        data=str(disk.mount / "data"),
        ledger=str(Path(ledgers, "ledger")),
        chance=Random(f"{seed} shard cuts {plant}"),
        plant=plant,
        tears_writes=True,
    )
