"""A machine over the lives of many processes, each ended at some moment, and the outcome.

The common part of kills and power cuts: what to start next, when to end it, and what must hold
afterwards. The machine is a `Trial`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final, Generic, Literal

from rich.console import Console

from headrace.cli.demo.child_process import SECONDS_MAX
from headrace_lab.harness.process import LabProcess, T
from headrace_lab.harness.tally import Tally

JITTER_SECONDS: Final = 0.004  # an effect takes about so long: before, in or after it

HELD, FAILED = 0, 1  # how a command ends

Task = Literal["write", "verify"]
Tell = Callable[[Tally], None]


@dataclass(slots=True, kw_only=True)
class Trial(ABC, Generic[T]):
    """One machine on real files over many lives."""

    chance: Random
    plant: str = ""
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.1  # that a recovery takes: a guess until one was timed
    effects: int = 12  # that it has: likewise

    shares: ClassVar[Mapping[str, int]]  # one of so many cuts has to land there

    @abstractmethod
    def begin_log(self) -> None:
        """Forget the machine and all that is known of it, and begin a new one."""

    @abstractmethod
    def process(self, task: Task) -> LabProcess[T]:
        """Start the next life."""

    @abstractmethod
    def await_moment(self, writer: LabProcess[T]) -> None:
        """Choose when to end a writer."""

    @abstractmethod
    def await_recovery_moment(self, verifier: LabProcess[T]) -> None:
        """Choose when to end a recovery."""

    @abstractmethod
    def judge_end(self, said: T) -> None:
        """Judge a writer that was ended."""

    @abstractmethod
    def verify(self) -> None:
        """Recover in a process of its own, left in peace, and compare everything."""

    def judge_recovery(self, said: T) -> None:
        """Judge a recovery that was ended."""

    def phase(self, said: T) -> str:
        """What a process is at."""
        return said.phase

    def has_leftover(self) -> bool:
        """Say whether a file of a checkpoint is half written, or was left so."""
        return False

    @contextmanager
    def dark(self, process: LabProcess[T]) -> Iterator[None]:
        """Cut the power inside: what is acknowledged from here on is void."""
        yield

    def await_effects(self, process: LabProcess[T], count: int) -> None:
        """Wait for so many effects more, and a little."""
        wanted = process.testimony.effect_count + count
        process.listen(SECONDS_MAX, lambda said: said.effect_count >= wanted)
        process.listen(self.chance.uniform(0, JITTER_SECONDS))

    def note_orphans(self, seconds: float) -> None:
        """Count the longest that a child outlived its parent."""
        counts = self.tally.counts
        counts["orphan ms"] = max(counts["orphan ms"], round(1000 * seconds))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One whole command: the planted bugs, then the run that counts."""

    name: str
    seed: int
    planted: dict[str, Tally]
    tally: Tally
    is_whole: bool  # enough landed
    seconds: float

    @property
    def missed(self) -> list[str]:
        """The planted bugs that nobody saw."""
        return [name for name, tally in self.planted.items() if not tally.failures]

    @property
    def holds(self) -> bool:
        return self.is_whole and not self.missed and not self.tally.failures

    def as_json(self) -> dict[str, object]:
        return {
            self.name: "held" if self.holds else "failed",
            "seed": self.seed,
            **self.tally.figures(),
            "failures": self.tally.failures,
            "planted": {
                name: {
                    "caught": bool(tally.failures),
                    "at": tally.count,
                    "seen": tally.failures[:1],
                }
                for name, tally in self.planted.items()
            },
            "seconds": round(self.seconds, 1),
        }

    def show(self, console: Console) -> None:
        """Print it for people."""
        tally = self.tally
        console.print(f"{tally.count} landed, {tally.cases} times everything was compared")
        headings = {"in": tally.landed, "found": tally.found, **tally.more}
        for heading, counter in headings.items():
            for kind, count in counter.most_common():
                console.print(f"{heading:<12} {count:9,}  {kind}")
        for what, count in tally.counts.items():
            console.print(f"{'':<12} {count:9,}  {what}")
        for name, planted in self.planted.items():
            seen = planted.failures[:1]
            caught = f"caught at {planted.count}: {seen[0]}" if seen else "MISSED"
            console.print(f"planted bug  {name}: {caught}")
        for failure in tally.failures:
            console.print(f"PROBLEM      {failure}")
        verdict = "HELD: nothing acknowledged lost, none invented" if self.holds else "FAILED"
        console.print(f"{verdict} (seed {self.seed}, {self.seconds:.0f} s)")

    def tell(self, console: Console, *, in_json: bool) -> int:
        """Print it, and return the exit code."""
        if in_json:
            console.print(json.dumps(self.as_json(), indent=2))
        else:
            self.show(console)
        return HELD if self.holds else FAILED
