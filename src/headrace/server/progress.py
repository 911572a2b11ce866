"""Whether bytes still move: what a sweep knows of a frame that comes, or of answers that go."""

from dataclasses import dataclass

from headrace.server.limits import PROGRESS_SIZE_MIN, Limits


@dataclass(slots=True)
class Progress:
    """Sizes are running totals of a connection."""

    since: float
    target: int | None  # the size that must be reached in frame_timeout; None: not known
    mark_size: int
    mark_at: float

    @classmethod
    def begin(cls, now: float, size: int, target: int | None = None) -> "Progress":
        """Start to look, at a total of `size`."""
        return cls(now, target, size, now)

    def is_stuck(self, now: float, size: int, limits: Limits) -> bool:
        """Tell whether too little moved for too long, or the whole took too long."""
        if now - self.since >= limits.frame_timeout:
            return True
        if now - self.mark_at < limits.stall_timeout:
            return False
        if size - self.mark_size < PROGRESS_SIZE_MIN:
            return True
        self.mark_size, self.mark_at = size, now
        return False

    def is_through(self, size: int) -> bool:
        """Tell whether all that was waited for has moved."""
        return self.target is not None and size >= self.target
