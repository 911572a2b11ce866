"""Exponential backoff as a pure table; the caller supplies the clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.model.backoff import ExponentialBackoff
from headrace.partition.reader import Key

DELAY_MS: Final = 1_000  # after the first failure
DELAY_MAX_MS: Final = 60_000  # a repair is noticed within a minute
_BACKOFF: Final = ExponentialBackoff(DELAY_MS, DELAY_MAX_MS)


class ReconcileWork(StrEnum):
    """A kind of work on one life. Each has its own budget: none blocks another."""

    BUILD = "build"
    SCHEMA = "schema"  # its key is that of a topic: partition 0, and the topic's `created`
    REMOVAL = "removal"


@dataclass(frozen=True, slots=True)
class Failure:
    """How often some work failed for one cause, and when it may be retried."""

    work: ReconcileWork
    key: Key
    cause: str
    attempt_count: int
    until_ms: int


@dataclass(slots=True)
class RetryTable:
    """Unresolved failures, each with its own delay per (work, life, cause)."""

    _failures: dict[tuple[ReconcileWork, Key], dict[str, Failure]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of works with recorded failures."""
        return len(self._failures)

    def fail(self, work: ReconcileWork, key: Key, cause: str, now_ms: int) -> None:
        """Record a failure: doubles the delay for this cause."""
        known = self._failures.setdefault((work, key), {})
        before = known.get(cause)
        count = 1 + (before.attempt_count if before else 0)
        known[cause] = Failure(work, key, cause, count, now_ms + delay_ms(count))

    def is_held(self, work: ReconcileWork, key: Key, now_ms: int) -> bool:
        """Return whether it is too early, for any cause, to retry this work."""
        causes = self._failures.get((work, key), {})
        return any(now_ms < each.until_ms for each in causes.values())

    def clear(self, work: ReconcileWork, key: Key) -> None:
        """Forget the failures of work that has succeeded."""
        self._failures.pop((work, key), None)

    def prune(self, is_wanted: Callable[[ReconcileWork, Key], bool]) -> None:
        """Forget the failures of work that is no longer wanted."""
        for work, key in [each for each in self._failures if not is_wanted(*each)]:
            del self._failures[work, key]

    def failures(self) -> list[Failure]:
        """Return all failures, those with the most attempts first."""
        every = [each for causes in self._failures.values() for each in causes.values()]
        return sorted(every, key=lambda each: -each.attempt_count)


def delay_ms(attempt_count: int) -> int:
    """Return the delay after this many failures."""
    return int(_BACKOFF.after(attempt_count))
