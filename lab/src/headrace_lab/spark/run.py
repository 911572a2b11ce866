"""Runs chaos, one run after another: strikes, the end of all work, and the comparison."""

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from headrace.cli.demo import steps
from headrace.cli.demo.child_process import Silent
from headrace.cli.demo.transcript import Transcript
from headrace.errors import HeadraceError
from headrace_lab.harness.mutants import Mutant
from headrace_lab.spark.check import Checked, check, failed_check
from headrace_lab.spark.cluster import Cluster
from headrace_lab.spark.driver import Settings
from headrace_lab.spark.gated_workers import MODULE
from headrace_lab.spark.names import KILLS_DRIVER, OF_COPIES, Point
from headrace_lab.spark.plants import command_of
from headrace_lab.spark.process import HASTE, ChaosDriver, Garage
from headrace_lab.spark.s3_proxy import S3Proxy
from headrace_lab.spark.s3_server import KEYS, S3Server
from headrace_lab.spark.scene import Bucket, ChaosScene
from headrace_lab.spark.strikes import Kill, strike

LOG: Final = "chaos.log"  # what happened when, in seconds
TRIES: Final = 3  # for a moment that was missed
LANDED_MIN: Final = 3  # kills at a point, if it was planned so often: one may be luck
EXECUTORS: Final = 2
LOCAL_MASTER: Final = "local[2,4]"  # two tasks at once, and four attempts of each
OF_COPY_RUNS: Final = frozenset(OF_COPIES)
LOCAL_CONF: Final = {
    "spark.python.daemon.module": MODULE,
    "spark.driver.memory": "1g",
    **HASTE,
}


@dataclass(slots=True)
class Run:
    """The steps and findings of one run."""

    number: int
    points: Sequence[Point]
    strikes: list[Kill] = field(default_factory=list)
    checked: Checked | None = None
    silence: str = ""  # what did not happen in time
    executors: tuple[str, ...] = ()  # of a cluster: those that were seen to read
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return self.checked is not None and not self.checked.problems

    @property
    def is_broken(self) -> bool:
        """A row is wrong. One that is missing may be late, if the run did not end."""
        if self.checked is None or not self.checked.problems:
            return False
        return not self.silence or bool(self.checked.twice or self.checked.invented)


@dataclass(slots=True)
class ChaosReport:
    """All runs, and what they were to show."""

    seed: int
    is_cluster: bool
    is_bucket: bool = False  # the table is in a bucket of an S3
    planned: Counter[Point] = field(default_factory=Counter)  # for all runs
    promised: Counter[Point] = field(default_factory=Counter)  # for those that were begun
    runs: list[Run] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def landed(self) -> Counter[Point]:
        return Counter(one.point for run in self.runs for one in run.strikes if one.is_landed)

    @property
    def recovered(self) -> Counter[Point]:
        return Counter(
            one.point
            for run in self.runs
            for one in run.strikes
            if one.is_landed and one.evidence
        )

    @property
    def is_broken(self) -> bool:
        """A row was lost, duplicated, invented or changed."""
        return any(run.is_broken for run in self.runs)

    @property
    def missing(self) -> list[str]:
        """What was promised but not shown."""
        found = [
            f"{one}: landed {self.landed[one]} times, expected {min(count, LANDED_MIN)} or more"
            for one, count in (self.planned | self.promised).items()
            if self.landed[one] < min(count, LANDED_MIN)
        ]
        found += [
            f"{one}: recovery seen after {self.recovered[one]} of {count} kills"
            for one, count in self.landed.items()
            if self.recovered[one] < count
        ]
        found += [f"run {run.number}: {run.silence}" for run in self.runs if run.silence]
        if self.is_cluster:
            found += [
                f"run {run.number}: {len(run.executors)} of {EXECUTORS} executors read rows"
                for run in self.runs
                if len(run.executors) < EXECUTORS
            ]
        return found


class Chaos:
    """The runs of one command. `tell` gets a sentence whenever something has happened."""

    def __init__(
        self,
        directory: Path,
        report: ChaosReport,
        tell: Callable[[str], None],
        *,
        budget: float | None = None,
        plant: str = "",
    ) -> None:
        """Make them ready. After `budget` seconds no run is begun."""
        self._directory, self._report, self._on_word = directory, report, tell
        self._began = time.monotonic()
        self._budget, self._plant = math.inf if budget is None else budget, plant
        self._chance = Random(report.seed)
        self._driver: ChaosDriver | None = None
        self._deaths = 0  # of drivers, still to come
        self._s3: S3Server | None = None
        self._proxy: S3Proxy | None = None

    def perform(self, plan: Sequence[Sequence[Point]], *, keep: bool) -> None:
        """Do all runs; directories of runs that held are removed unless they are kept."""
        self._directory.mkdir(parents=True, exist_ok=True)
        node = Mutant("", "node", ((steps, "COMMAND", command_of(self._plant)),))
        with node.planted(), ExitStack() as exits:
            if self._report.is_bucket:
                self._tell("starting an S3, and a proxy before it")
                os.environ.update(KEYS)
                self._s3 = exits.enter_context(S3Server())
                self._proxy = exits.enter_context(S3Proxy(self._s3.endpoint))
            if self._report.is_cluster:
                self._tell("starting a Spark cluster: a master and two workers")
                with Cluster(self._directory / "cluster") as cluster:
                    self._all(plan, cluster.settings(), keep=keep)
            else:
                settings = Settings(LOCAL_MASTER, dict(LOCAL_CONF), self._plant)
                self._all(plan, settings, keep=keep)
        self._report.seconds = time.monotonic() - self._began

    def _all(self, plan: Sequence[Sequence[Point]], settings: Settings, *, keep: bool) -> None:
        self._deaths = sum(point in KILLS_DRIVER for points in plan for point in points)
        self._report.planned.update(point for points in plan for point in points)
        with Garage(settings, self._directory) as garage:
            for number, points in enumerate(plan, 1):
                if time.monotonic() - self._began > self._budget:
                    return
                self._report.promised.update(points)
                run = Run(number, points)
                self._report.runs.append(run)
                self._one(run, garage)
                if run.holds and not keep:
                    shutil.rmtree(self._place(run))

    def _tell(self, text: str) -> None:
        with open(self._directory / LOG, "a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - self._began:8.2f}  {text}\n")
        self._on_word(text)

    def _place(self, run: Run) -> Path:
        return self._directory / f"run-{run.number}"

    def _one(self, run: Run, garage: Garage) -> None:
        began = time.monotonic()
        place = self._place(run)
        place.mkdir()
        transcript = Transcript(self._report.seed, Console(quiet=True))
        bucket = None
        if self._s3 is not None and self._proxy is not None:
            bucket = Bucket.made(self._s3, self._proxy)
        with ChaosScene(
            transcript,
            place,
            garage,
            bucket,
            is_watching=self._report.is_cluster,
            is_copy=not OF_COPY_RUNS.isdisjoint(run.points),
        ) as scene:
            try:
                self._tell(f"run {run.number}: starting a driver")
                scene.begin(self._driver if self._driver and self._driver.is_alive else None)
                scene.await_work()
                self._strike_all(scene, run, garage)
                self._tell(f"run {run.number}: waiting until table and copy have all rows")
                scene.finish()
                run.executors = scene.pair or tuple(scene.reading())
            except (Silent, HeadraceError) as error:
                run.silence = str(error)
            scene.stage.sources.finish()
            claims = scene.stage.sources.claims()
            try:
                run.checked = check(scene.stage.address, scene.location, claims)
            except HeadraceError as error:
                run.checked = failed_check(claims, error)
            self._driver = scene.driver if not run.silence else None
            if run.silence:
                garage.clear()
        run.seconds = time.monotonic() - began

    def _strike_all(self, scene: ChaosScene, run: Run, garage: Garage) -> None:
        for point in run.points:
            for _ in range(TRIES):
                if self._deaths > 0:  # drivers are still to die: the next one gets warm
                    garage.prepare()
                self._tell(f"run {run.number}: {point}")
                found = strike(scene, point, self._chance)
                run.strikes.append(found)
                self._tell(
                    f"run {run.number}: killed {found.pid}: {found.evidence or 'nothing'}"
                )
                if found.is_landed:
                    self._deaths -= point in KILLS_DRIVER
                    break
