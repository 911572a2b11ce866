"""Exponential backoff as a pure table; the caller supplies the clock and the jitter."""

from dataclasses import dataclass
from typing import Final

_DOUBLINGS_MAX: Final = (
    64  # more than any of ours needs to reach `longest`; avoids huge numbers
)


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Waits that double from `first` to `longest`, in the caller's unit."""

    first: float
    longest: float
    free: int = 0  # failures without a wait

    def after(self, failure_count: int) -> float:
        """Return how long to wait after `failure_count` failures in a row."""
        assert failure_count >= 1
        if failure_count <= self.free:
            return 0.0
        doublings = min(failure_count - self.free - 1, _DOUBLINGS_MAX)
        return min(self.first * 2.0**doublings, self.longest)
