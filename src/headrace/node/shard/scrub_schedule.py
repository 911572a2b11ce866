"""When a node rereads all its files, and how fast. The caller supplies the clock.

No state is kept on disk. After a start, the first pass begins after `FIRST_S`; the caller
begins each pass at a random place, so that a node restarted daily still covers all its files.
"""

from dataclasses import dataclass, field
from typing import Final

FIRST_S: Final = 3600.0  # after a start, when the disk is needed for more urgent work


@dataclass(slots=True)
class ScrubSchedule:
    """One pass per `every` seconds, at most `rate` bytes per second."""

    every: float
    rate: int
    started_at: float
    _due_at: float = field(init=False)
    _paid_until: float = float("-inf")  # until when the rate allows the bytes read so far

    def __post_init__(self) -> None:
        self._due_at = self.started_at + min(FIRST_S, self.every)

    def is_due(self, now: float) -> bool:
        """Return whether the next pass may begin."""
        return now >= self._due_at

    def begin(self, now: float) -> None:
        """Record the beginning of a pass: the next is due `every` seconds later."""
        self._due_at = now + self.every

    def pause(self, size: int, now: float) -> float:
        """Record that `size` bytes were read; return how long to pause.

        Idle time is not made up for.
        """
        self._paid_until = max(self._paid_until, now) + size / self.rate
        return self._paid_until - now
