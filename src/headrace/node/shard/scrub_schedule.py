"""When a node reads all its files again, and how fast. The caller supplies the clock.

Nothing of it is kept on disk. A node that has started begins after `FIRST_S`; its caller begins
each pass at a random place, so that also the files of a node that is restarted each day all
have their turn.
"""

from dataclasses import dataclass, field
from typing import Final

FIRST_S: Final = 3600.0  # after a start: whoever comes back wants the disk for more than this


@dataclass(slots=True)
class ScrubSchedule:
    """Passes `every` so many seconds, of at most `rate` bytes a second."""

    every: float
    rate: int
    started_at: float
    _due_at: float = field(init=False)
    _paid_until: float = float("-inf")  # when as many bytes were due as have been read

    def __post_init__(self) -> None:
        self._due_at = self.started_at + min(FIRST_S, self.every)

    def is_due(self, now: float) -> bool:
        """Say whether the next pass may begin. One that is under way is not begun again."""
        return now >= self._due_at

    def begin(self, now: float) -> None:
        """Note that a pass begins: the next is due `every` seconds after it."""
        self._due_at = now + self.every

    def pause(self, size: int, now: float) -> float:
        """Note that `size` bytes were read; return how long to wait for the next ones.

        Time in which nothing was read is not made up for.
        """
        self._paid_until = max(self._paid_until, now) + size / self.rate
        return self._paid_until - now
