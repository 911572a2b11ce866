"""Runs many seeds in several processes: what they did and found, and what never landed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from statistics import median

from headrace_lab.cluster.cluster import SeedOutcome, run_seed
from headrace_lab.cluster.swarm import PROMISED

CHUNK = 4  # seeds in one job: results come often, and processes are not asked too often
# A run this short may by chance lack a kind of fault; a longer one may not.
SEEDS_FOR_ALL_KINDS = 100


@dataclass(slots=True)
class SimReport:
    """What a run of many seeds did."""

    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    requests: int = 0
    view_changes: int = 0
    primary_crashes: int = 0
    transfers: int = 0
    landed: Counter[str] = field(default_factory=Counter)
    faults_of_each: list[int] = field(default_factory=list)
    views_of_each: list[int] = field(default_factory=list)
    events_least: int = 0
    requests_least: int = 0
    halts: Counter[str] = field(default_factory=Counter)
    violations: list[SeedOutcome] = field(default_factory=list)

    def add(self, outcome: SeedOutcome) -> None:
        tally = outcome.tally
        first = self.seeds == 0
        self.seeds += 1
        self.events += tally.events
        self.requests += tally.requests
        self.view_changes += tally.view_changes
        self.primary_crashes += tally.primary_crashes
        self.transfers += tally.transfers
        self.landed.update(tally.landed)
        self.faults_of_each.append(sum(tally.landed.values()))
        self.views_of_each.append(tally.view_changes)
        self.events_least = tally.events if first else min(self.events_least, tally.events)
        least = tally.requests if first else min(self.requests_least, tally.requests)
        self.requests_least = least
        self.halts.update(outcome.halts)
        if outcome.violation is not None:
            self.violations.append(outcome)

    @property
    def faults_median(self) -> float:
        return median(self.faults_of_each) if self.faults_of_each else 0.0

    @property
    def views_median(self) -> float:
        return median(self.views_of_each) if self.views_of_each else 0.0

    @property
    def missing(self) -> list[str]:
        """The promised kinds of fault that never landed, in a run long enough to say so."""
        if self.seeds < SEEDS_FOR_ALL_KINDS:
            return []
        return [kind for kind in PROMISED if not self.landed[kind]]


@dataclass(frozen=True, slots=True)
class SimPlan:
    """What to run."""

    first: int
    count: int
    replicas: int | None = None
    is_safe: bool = True
    jobs: int = 1
    budget: float | None = None  # seconds


def run(plan: SimPlan, tell: Callable[[SimReport], None] = lambda _: None) -> SimReport:
    """Run the seeds of a plan; stop early at the first violation or when the time is over."""
    report, started = SimReport(), time.monotonic()
    for outcome in _outcomes(plan, started):
        report.add(outcome)
        report.seconds = time.monotonic() - started
        tell(report)
    report.seconds = time.monotonic() - started
    return report


def _outcomes(plan: SimPlan, started: float) -> Iterator[SeedOutcome]:
    end = plan.first + plan.count
    chunks = [(first, min(first + CHUNK, end)) for first in range(plan.first, end, CHUNK)]
    if plan.jobs == 1:
        for first, stop in chunks:
            found = run_chunk(first, stop, plan.replicas, plan.is_safe)
            yield from found
            if _is_over(plan, started) or any(one.violation for one in found):
                return
        return
    with ProcessPoolExecutor(plan.jobs) as pool:
        running: set[Future[list[SeedOutcome]]] = set()
        waiting = iter(chunks)
        is_over = False
        while True:
            while not is_over and len(running) < plan.jobs:
                chunk = next(waiting, None)
                if chunk is None:
                    break
                running.add(pool.submit(run_chunk, *chunk, plan.replicas, plan.is_safe))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                yield from found
                is_over = is_over or any(one.violation for one in found)
            is_over = is_over or _is_over(plan, started)


def _is_over(plan: SimPlan, started: float) -> bool:
    return plan.budget is not None and time.monotonic() - started >= plan.budget


def run_chunk(first: int, stop: int, replicas: int | None, is_safe: bool) -> list[SeedOutcome]:
    """Run some seeds, in a process of their own."""
    found = []
    for seed in range(first, stop):
        found.append(run_seed(seed, replicas, is_safe=is_safe))
        if found[-1].violation is not None:
            break
    return found
