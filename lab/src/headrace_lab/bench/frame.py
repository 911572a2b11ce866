"""The common frame of all benches: alternating rounds, medians, spread, ratio.

A case compares two sides. A side is a context manager created once per case: entering prepares
it, leaving cleans up, and it yields a function that measures one round and returns a rate. A
round keeps its own time, so work outside its clock does not count.

    @contextmanager
    def appends() -> Iterator[Round]:
        with a_journal() as journal:
            yield lambda: rate(entry_count, lambda: append_all(journal, entries))
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter

Round = Callable[[], float]
Side = Callable[[], AbstractContextManager[Round]]

# Odd, so that a median is one of the rates; enough for one slow round not to matter.
ROUND_COUNT = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. Both sides return rates in `unit`: more is better."""

    name: str
    unit: str
    ours: Side
    reference: str  # what the other side is, in words
    limit: Side  # the machine's own limit, measured the same way
    floor: float | None = None  # the least ratio accepted
    figures: Callable[[], Mapping[str, float]] = dict  # more that was seen, asked at the end


@dataclass(frozen=True, slots=True)
class Result:
    """What the rounds of one case came to."""

    name: str
    unit: str
    ours: float
    reference: str
    reference_value: float
    ratio: float
    spread: float
    floor: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        """Say whether the ratio reaches the floor; without a floor it always does."""
        return self.floor is None or self.ratio >= self.floor


def measure(
    case: Case,
    rounds: int,
    tell: Callable[[str], None],
    before: Callable[[], None] = lambda: None,
) -> Result:
    """Warm up, run `rounds` rounds of each side in turn, and sum them up.

    `before` is called before each round of either side, outside its clock.
    """
    assert rounds > 0
    ours: list[float] = []
    limit: list[float] = []
    with case.ours() as run_ours, case.limit() as run_limit:
        turns = [(run_ours, ours), (run_limit, limit)]
        tell(f"{case.name}: warming up")
        for run_side, _ in turns:
            before()
            run_side()
        for number in range(1, rounds + 1):
            tell(f"{case.name}: round {number} of {rounds}")
            for run_side, rates in turns:
                before()
                rates.append(run_side())
            turns.reverse()
    return sum_up(case, ours, limit)


def sum_up(case: Case, ours: Sequence[float], limit: Sequence[float]) -> Result:
    """Turn the rates of both sides into figures."""
    assert len(ours) == len(limit)
    assert min(*ours, *limit) > 0
    our_median, limit_median = statistics.median(ours), statistics.median(limit)
    return Result(
        name=case.name,
        unit=case.unit,
        ours=our_median,
        reference=case.reference,
        reference_value=limit_median,
        ratio=our_median / limit_median,
        spread=max(spread(ours), spread(limit)),
        floor=case.floor,
        figures=case.figures(),
    )


def spread(rates: Sequence[float]) -> float:
    """Give (90th - 10th percentile) / median; a single rate does not spread."""
    if len(rates) == 1:
        return 0.0
    deciles = statistics.quantiles(rates, n=10, method="inclusive")
    return (deciles[-1] - deciles[0]) / statistics.median(rates)


def rate(amount: float, work: Callable[[], object]) -> float:
    """Do `work` once, and give `amount` per second."""
    started = perf_counter()
    work()
    # A clock may stand still over very little work; its own step is then the truest answer.
    return amount / max(perf_counter() - started, 1e-9)


def scaled(count: int, scale: float) -> int:
    """Give `count` at `scale`, and at least one."""
    return max(1, round(count * scale))
