"""Cut the power of a real file system under a writer, again and again, also while it recovers.

`python -m headrace_lab.commands.powercut` runs this. Each session is a cut under load, then
none to two cuts in the middle of the recovery from it, then a recovery that is left in peace
and compared with everything acknowledged. A cut counts only where it landed. Planted writers
that acknowledge what is not durable run first and have to be caught.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

import msgspec
from rich.console import Console

from headrace.cli.demo.child_process import SECONDS_MAX
from headrace_lab.counter.testimony import Testimony, Writer
from headrace_lab.counter.witness import Witness
from headrace_lab.counter.workload import Replay, Workload
from headrace_lab.counter.writer import Job, Plant
from headrace_lab.disk.loopdisk import LoopDisk, Switch, loop_disk

FILE_SIZE = 1024 * 1024  # small: rolls, recycling and checkpoints come often
GROUP_COUNT_MAX = 12
BODY_SIZE_MAX = 48 * 1024
SEAL_EVERY = 160
LOG_SESSIONS: Final = 5  # then a new log begins, so that making one is cut as well
WRITING_SECONDS_MAX = 0.6
JITTER_SECONDS = 0.002  # an effect takes about so long: a cut lands before, in or after it
PLANTED_CUT_COUNT = 12  # a bug that loses what was acknowledged is seen at the first cuts
PLANTS: Final[tuple[Plant, ...]] = ("ack-before-sync", "ack-after-failed-sync")
SESSION_COUNT_FACTOR = 4  # sessions tried for each cut wanted, before giving up

_NOUNS = (
    ("superblock", "superblock"),
    (".snap", "snapshot"),
    (".wal", "journal file"),
    ("spare", "spare files"),
    ("journal", "journal names"),
    ("snapshots", "snapshot names"),
)


@dataclass(slots=True)
class Tally:
    """What was done to the disk and what was found on it."""

    landed: Counter[str] = field(default_factory=Counter)  # by what the process was at
    places: Counter[str] = field(default_factory=Counter)  # by the last effect before the cut
    missed_count: int = 0  # the process was through before the cut came
    session_count: int = 0
    log_count: int = 0
    acknowledged_count: int = 0  # entries, all in commit groups that a writer said were durable
    checkpoint_count: int = 0
    roll_count: int = 0
    checked_count: int = 0  # recoveries compared with all that was acknowledged
    torn_tail_count: int = 0
    rewritten_count: int = 0  # frames
    unheard_count: int = 0  # entries found that nobody had acknowledged yet
    problems: list[str] = field(default_factory=list)

    @property
    def cut_count(self) -> int:
        return sum(self.landed.values())

    @property
    def in_recovery(self) -> int:
        return self.landed["recovery"]

    def has_landed(self, cuts: int) -> bool:
        """Enough cuts, and at least a third of them in the middle of a recovery."""
        return self.cut_count >= cuts and 3 * self.in_recovery >= self.cut_count

    def as_json(self) -> dict[str, object]:
        return {
            "cuts": self.cut_count,
            "landed": dict(sorted(self.landed.items())),
            "places": dict(self.places.most_common()),
            "missed": self.missed_count,
            "sessions": self.session_count,
            "logs": self.log_count,
            "acknowledged": self.acknowledged_count,
            "checkpoints": self.checkpoint_count,
            "rolls": self.roll_count,
            "recoveries_checked": self.checked_count,
            "torn_tails": self.torn_tail_count,
            "frames_rewritten": self.rewritten_count,
            "entries_unheard": self.unheard_count,
            "problems": self.problems,
        }


@dataclass(slots=True)
class PowerCuts:
    """One run on one disk."""

    disk: LoopDisk
    seed: int
    plant: Plant = ""
    tell: Callable[[Tally], None] = lambda tally: None
    tally: Tally = field(default_factory=Tally)
    _chance: Random = field(init=False)
    _witness: Witness = field(init=False)
    _job: Job = field(init=False)
    _effects: int = 12  # of a recovery: a guess until one was counted
    _seconds: float = 0.1  # that a recovery takes: likewise

    def run(self, cuts: int) -> Tally:
        """Cut until enough landed, or something was lost."""
        self._chance = Random(f"{self.seed} cuts {self.plant}")
        for session in range(SESSION_COUNT_FACTOR * cuts):
            if self.tally.has_landed(cuts) or self.tally.problems:
                break
            if session % LOG_SESSIONS == 0:
                self._begin_log()
            self._session()
            self.tell(self.tally)
        return self.tally

    def _begin_log(self) -> None:
        data = self.disk.mount / "data"
        if data.exists():
            shutil.rmtree(data)
        workload = Workload(
            self._chance.getrandbits(32),
            group_count_max=GROUP_COUNT_MAX,
            body_size_max=BODY_SIZE_MAX,
            seal_every=SEAL_EVERY,
        )
        self._witness = Witness(Replay(workload))
        self._job = Job(
            data=str(data),
            workload=workload,
            file_size=FILE_SIZE,
            is_tapped=True,
            plant=self.plant,
        )
        self.tally.log_count += 1

    def _session(self) -> None:
        self.tally.session_count += 1
        self._cut_writer()
        for _ in range(self._chance.randint(0, 2)):
            self._cut_recovery()
        self._check()

    def _cut_writer(self) -> None:
        with self.disk.armed() as switch, Writer(self._life()) as writer:
            writer.await_that("recovery", _has_begun)
            writer.listen(self._chance.uniform(0, WRITING_SECONDS_MAX))
            if self._chance.random() < 0.5:
                self._aim_at_sync(writer)
            _cut(switch, writer)
        said = writer.testimony
        head = said.findings.head if said.findings else said.promised
        self.tally.acknowledged_count += max(0, said.promised - head)
        self.tally.checkpoint_count += said.sealed_count
        self.tally.roll_count += said.rolled_count
        self._after_cut(said, landed=said.failed is not None)

    def _aim_at_sync(self, writer: Writer) -> None:
        """Wait for the next sync of a commit group: inside it a tail is torn."""
        before = writer.testimony.effect_count
        writer.listen(
            SECONDS_MAX,
            lambda said: said.effect_count > before and _place(said) == "sync of journal file",
        )
        writer.listen(self._chance.uniform(0, JITTER_SECONDS))

    def _cut_recovery(self) -> None:
        """Cut at a random effect of the recovery, or at a random time: mostly in its scan."""
        with self.disk.armed() as switch, Writer(self._life(task="recover")) as writer:
            writer.await_that("recovery", _has_begun)
            if self._chance.random() < 0.6:
                wanted = self._chance.randint(1, self._effects)
                writer.listen(
                    SECONDS_MAX,
                    lambda said: said.effect_count >= wanted or said.findings is not None,
                )
                writer.listen(self._chance.uniform(0, JITTER_SECONDS))
            else:
                writer.listen(self._chance.uniform(0, self._seconds))
            _cut(switch, writer)
        said = writer.testimony
        # It had said that it began before the cut, and failed before it said that it ended.
        self._after_cut(said, landed=said.failed is not None and said.findings is None)

    def _after_cut(self, said: Testimony, landed: bool) -> None:
        """Judge what was said; count the cut by what it landed in; switch on again."""
        self._witness.hear(said)
        if said.failed is None and not said.is_done:
            self._witness.problems.append("a process did not say why it ended: see its trace")
        if landed:
            is_first = self._witness.tried == 0
            phase = "creation" if said.phase == "recovery" and is_first else said.phase
            self.tally.landed[phase] += 1
            self.tally.places[_place(said)] += 1
        else:
            self.tally.missed_count += 1
        self.disk.power_off()
        self.disk.power_on()

    def _check(self) -> None:
        acknowledged = self._witness.acknowledged
        found = self._witness.audit(self._life())
        self.tally.checked_count += 1
        self.tally.problems = list(self._witness.problems)
        if found.findings is None:
            return
        report = found.findings.report
        self.tally.torn_tail_count += report.cut is not None
        self.tally.rewritten_count += report.rewritten
        self.tally.unheard_count += max(0, found.findings.head - acknowledged)
        self._effects = max(1, found.effect_count)
        self._seconds = report.seconds

    def _life(self, task: Literal["write", "recover"] = "write") -> Job:
        life = self._chance.getrandbits(32)
        return msgspec.structs.replace(self._job, life=life, task=task)


def _cut(switch: Switch, writer: Writer) -> None:
    """Cut, and hear the writer out. See `loopdisk` for why its promises end at the cut."""
    writer.testimony.is_dark = True
    switch.cut()
    writer.wait()


def _has_begun(said: Testimony) -> bool:
    return said.is_recovering or said.findings is not None


def _place(said: Testimony) -> str:
    """Where a cut landed: the last effect that was about to happen."""
    if said.effect is None:
        return "before any effect"
    kind, name = said.effect
    noun = next((noun for part, noun in _NOUNS if part in name), "group names")
    return f"{kind.removesuffix('-dir')} of {noun}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One whole command: the planted bugs, then the cuts that count."""

    seed: int
    planted: dict[str, Tally]
    tally: Tally
    cuts: int
    seconds: float

    @property
    def is_caught(self) -> bool:
        return all(tally.problems for tally in self.planted.values())

    @property
    def holds(self) -> bool:
        return self.is_caught and not self.tally.problems and self.tally.has_landed(self.cuts)

    def as_json(self) -> dict[str, object]:
        return {
            "powercut": "held" if self.holds else "failed",
            "seed": self.seed,
            **self.tally.as_json(),
            "planted": {
                bug: {
                    "caught": bool(tally.problems),
                    "cuts": tally.cut_count,
                    "seen": tally.problems[:1],
                }
                for bug, tally in self.planted.items()
            },
            "seconds": round(self.seconds, 1),
        }


def cut_all(cuts: int, seed: int, tell: Callable[[Tally], None]) -> Outcome:
    """Run the planted bugs, then the cuts. CannotCut if this machine does not allow it."""
    started = time.monotonic()
    with loop_disk() as disk:
        planted: dict[str, Tally] = {
            plant: PowerCuts(disk, seed, plant).run(PLANTED_CUT_COUNT) for plant in PLANTS
        }
        tally = PowerCuts(disk, seed, tell=tell).run(cuts)
    return Outcome(seed, planted, tally, cuts, time.monotonic() - started)


def show(console: Console, outcome: Outcome) -> None:
    """Print an outcome for people."""
    tally = outcome.tally
    rows = [
        ("cuts", f"{tally.cut_count} landed, {tally.missed_count} came too late"),
        *(("", f"{count:4}  in {phase}") for phase, count in tally.landed.most_common()),
        ("just before", "what a process was about to do when the power went"),
        *(("", f"{count:4}  {place}") for place, count in tally.places.most_common()),
        (
            "written",
            f"{tally.acknowledged_count:,} entries acknowledged, in {tally.log_count} logs",
        ),
        ("", f"{tally.checkpoint_count} checkpoints, {tally.roll_count} journal files begun"),
        ("recovered", f"{tally.checked_count} times in peace, each compared with all of it"),
        (
            "",
            f"{tally.torn_tail_count} torn tails cut, {tally.rewritten_count} frames rewritten",
        ),
        ("", f"{tally.unheard_count} entries there that nobody had acknowledged yet"),
        *(
            ("planted bug", f"{bug}: {_caught(planted)}")
            for bug, planted in outcome.planted.items()
        ),
        *(("PROBLEM", problem) for problem in tally.problems),
    ]
    for label, text in rows:
        console.print(f"{label:<12} {text}")
    verdict = "HELD: no acknowledged entry lost, none invented" if outcome.holds else "FAILED"
    console.print(f"{verdict} (seed {outcome.seed}, {outcome.seconds:.0f} s)")


def _caught(planted: Tally) -> str:
    if not planted.problems:
        return "MISSED"
    return f"caught at cut {planted.cut_count}: {planted.problems[0]}"
