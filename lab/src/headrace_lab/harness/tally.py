"""The result of a harness run: what was done, its outcomes, and what went wrong."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Numbers under a few headings. What had no effect is not counted as landed."""

    cases: int = 0
    landed: Counter[str] = field(default_factory=Counter)  # faults, damages or ends, by kind
    found: Counter[str] = field(default_factory=Counter)  # what came of them
    counts: Counter[str] = field(default_factory=Counter)  # whatever else is one number
    more: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many landed."""
        return self.landed.total()

    def among(self, word: str) -> int:
        """Return how many landed where `word` is part of the kind."""
        return sum(count for kind, count in self.landed.items() if word in kind)

    def merge(self, other: "Tally") -> None:
        """Add what another part of the run came to."""
        self.cases += other.cases
        self.landed.update(other.landed)
        self.found.update(other.found)
        self.counts.update(other.counts)
        for heading, counter in other.more.items():
            self.more[heading].update(counter)
        self.failures += other.failures

    def figures(self) -> dict[str, Any]:
        """Return what is told at the end; the failures are told apart."""
        headings = {"landed": self.landed, "found": self.found, **self.more}
        return {
            "cases": self.cases,
            **dict(sorted(self.counts.items())),
            "landed_count": self.count,
            **{name: dict(sorted(each.items())) for name, each in headings.items() if each},
        }
