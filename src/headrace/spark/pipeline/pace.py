"""When a driver looks for rows, and how many it takes, so that they are in the table in time.

Without a target it looks again after `interval`, and at once after a round. With one, the looks
are so far apart that a row which just misses one is still in time with the next:

    look k ... rows of round k ...   look k+1 ... rows of round k+1 ... commit k+1
        ^ a row comes just after           so: period + a round <= target

The longest of the last rounds stands for the next one. Fewer commits are fewer small files.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

USED: Final = 0.8  # of the target; the rest is a reserve
WAIT_MIN: Final = 0.1  # between looks that find nothing
ROUNDS: Final = 5  # whose times are expected of the next
ROWS_MIN: Final = 10_000  # a round of fewer takes no less time
TURNS: Final = 3  # rounds in a row that change whether the target counts as kept


@dataclass(slots=True)
class Pace:
    """The pace of one driver. Pure: the caller has the clock."""

    interval: float
    target: float | None = None
    is_late: bool = False  # the target is not kept
    slowest: float = 0.0  # seconds to the table of the rows of the last round
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    _turned: int = 0  # rounds in a row that speak against `is_late`

    def done(self, seconds: float, row_count: int, slowest: float | None) -> None:
        """Take in a round: how long it took, and the slowest of its rows, if known."""
        self._seconds.append(seconds)
        self._rates.append(row_count / max(seconds, 1e-9))
        if self.target is None or slowest is None:
            return
        self.slowest = slowest
        self._turned = self._turned + 1 if (slowest > self.target) != self.is_late else 0
        if self._turned >= TURNS:
            self.is_late, self._turned = not self.is_late, 0

    def wait(self, since_look: float, *, found: bool) -> float:
        """Return the seconds until the next look is due. `found`: the last one had rows."""
        if self.target is None:
            return 0.0 if found else self.interval
        period = USED * self.target - max(self._seconds, default=0.0)
        return max(0.0 if found else WAIT_MIN, period - since_look)

    def row_count_max(self, most: int) -> int:
        """Return how many rows the next round may take.

        As long as rows are in time, those of a burst come in rounds that take half of the
        target. A driver that is behind takes as many as it may: that catches up soonest.
        """
        if self.target is None or not self._rates or self.slowest > self.target:
            return most
        return min(most, max(ROWS_MIN, int(max(self._rates) * self.target / 2)))
