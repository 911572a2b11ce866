"""A group of counters on real files, over the lives of many processes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar, Final

import msgspec

from headrace.cli.demo.child_process import SECONDS_MAX
from headrace_lab.counter.witness import GroupTestimony, Witness
from headrace_lab.counter.workload import GroupWorkload, Replay
from headrace_lab.counter.writer import GroupJob, Plant
from headrace_lab.disk.loopdisk import LoopDisk
from headrace_lab.harness.process import LabProcess
from headrace_lab.harness.trial import Task, Trial

FILE_SIZE: Final = 1024 * 1024  # small: rolls, recycling and checkpoints come often
GROUP_COUNT_MAX: Final = 12
BODY_SIZE_MAX: Final = 48 * 1024
SEAL_EVERY: Final = 160
WRITING_SECONDS_MAX: Final = 0.6
# What power cuts must show; a kill alone is blind to these.
POWER_PLANTS: Final[tuple[Plant, ...]] = ("ack-before-sync", "ack-after-failed-sync")


class Writer(LabProcess[GroupTestimony]):
    """A running writer."""

    def __init__(self, job: GroupJob) -> None:
        text = msgspec.json.encode(job).decode()
        super().__init__(GroupTestimony(), "headrace_lab.counter.writer", text)


@dataclass(slots=True, kw_only=True)
class GroupTrial(Trial[GroupTestimony]):
    """Its witness holds it to what its processes acknowledged."""

    data: str
    witness: Witness = field(init=False)
    _job: GroupJob = field(init=False)

    shares: ClassVar = {"recovery": 3}

    def begin_log(self) -> None:
        if Path(self.data).exists():
            shutil.rmtree(self.data)
        workload = GroupWorkload(
            self.chance.getrandbits(32),
            group_count_max=GROUP_COUNT_MAX,
            body_size_max=BODY_SIZE_MAX,
            seal_every=SEAL_EVERY,
        )
        self.witness = Witness(Replay(workload), problems=self.tally.failures)
        self._job = GroupJob(self.data, workload, file_size=FILE_SIZE)
        self.tally.counts["logs"] += 1

    def process(self, task: Task) -> Writer:
        life = self.chance.getrandbits(32)
        plant = self.plant if task == "write" else ""
        return Writer(msgspec.structs.replace(self._job, life=life, task=task, plant=plant))

    def await_moment(self, writer: LabProcess[GroupTestimony]) -> None:
        writer.listen(self.chance.uniform(0, WRITING_SECONDS_MAX))
        if self.chance.random() < 0.5:
            # The next sync of a commit group: inside it a tail is torn.
            before = writer.testimony.effect_count
            writer.listen(SECONDS_MAX, lambda said: said.effect_count > before and _syncs(said))
            self.await_effects(writer, 0)

    def await_recovery_moment(self, verifier: LabProcess[GroupTestimony]) -> None:
        """At a random effect of the recovery, or at a random time: mostly in its scan."""
        if self.chance.random() < 0.6:
            self.await_effects(verifier, self.chance.randint(1, self.effects))
        else:
            verifier.listen(self.chance.uniform(0, self.seconds))

    def judge_end(self, said: GroupTestimony) -> None:
        counts = self.tally.counts
        head = said.recovered.head if said.recovered else said.promised
        counts["entries acknowledged"] += max(0, said.promised - head)
        counts["checkpoints"] += said.sealed_count
        counts["journal files begun"] += said.rolled_count
        self.witness.hear(said)

    def judge_recovery(self, said: GroupTestimony) -> None:
        self.witness.hear(said)

    def phase(self, said: GroupTestimony) -> str:
        """What a process is at; a recovery of nothing is a creation."""
        is_first = not self.witness.tried
        return "creation" if said.phase == "recovery" and is_first else said.phase

    @contextmanager
    def dark(self, process: LabProcess[GroupTestimony]) -> Iterator[None]:
        process.testimony.is_dark = True
        yield

    def verify(self) -> None:
        acknowledged = self.witness.acknowledged
        with self.process("verify") as verifier:
            verifier.wait()
        said = verifier.testimony
        self.witness.audit(said)
        self.tally.cases += 1
        if said.recovered is None:
            return
        report = said.recovered.report
        self.tally.found["torn tails cut"] += report.cut is not None
        self.tally.found["frames written again"] += report.rewritten
        unheard = max(0, said.recovered.head - acknowledged)
        self.tally.found["entries that nobody had acknowledged yet"] += unheard
        self.effects = max(1, said.recovery_effects)
        self.seconds = report.seconds


def _syncs(said: GroupTestimony) -> bool:
    return said.effect is not None and said.effect[0] == "sync" and ".wal" in said.effect[1]


def on_disk(disk: LoopDisk, _: str, seed: int, plant: str = "") -> GroupTrial:
    """Prepare a trial on a disk whose power is cut."""
    data = str(disk.mount / "data")
    return GroupTrial(data=data, chance=Random(f"{seed} cuts {plant}"), plant=plant)
