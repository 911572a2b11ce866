"""When something that failed may be tried again: a table, and no timer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.model.backoff import ExponentialBackoff
from headrace.partition.reader import Key

DELAY_MS: Final = 1_000  # after the first failure
DELAY_MAX_MS: Final = 60_000  # what was repaired is found within a minute
_BACKOFF: Final = ExponentialBackoff(DELAY_MS, DELAY_MAX_MS)


class ReconcileWork(StrEnum):
    """What is done for one life. Each has a budget of its own: none holds up another."""

    BUILD = "build"
    SCHEMA = "schema"  # its key is that of a topic: partition 0, and the topic's `created`
    REMOVAL = "removal"


@dataclass(frozen=True, slots=True)
class Failure:
    """How often one thing failed for one cause, and when it may be tried again."""

    work: ReconcileWork
    key: Key
    cause: str
    attempt_count: int
    until_ms: int


@dataclass(slots=True)
class RetryTable:
    """Failures that are not over, each with a delay of its own for (work, life, cause)."""

    _failures: dict[tuple[ReconcileWork, Key], dict[str, Failure]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return for how many works something is recorded."""
        return len(self._failures)

    def fail(self, work: ReconcileWork, key: Key, cause: str, now_ms: int) -> None:
        """Note a failure: twice the delay of the one before it for this cause."""
        known = self._failures.setdefault((work, key), {})
        before = known.get(cause)
        count = 1 + (before.attempt_count if before else 0)
        known[cause] = Failure(work, key, cause, count, now_ms + delay_ms(count))

    def is_held(self, work: ReconcileWork, key: Key, now_ms: int) -> bool:
        """Say whether it is too early, for any cause, to do this work again."""
        causes = self._failures.get((work, key), {})
        return any(now_ms < each.until_ms for each in causes.values())

    def clear(self, work: ReconcileWork, key: Key) -> None:
        """Forget the failures of what was done at last."""
        self._failures.pop((work, key), None)

    def prune(self, is_wanted: Callable[[ReconcileWork, Key], bool]) -> None:
        """Forget the failures of what nobody wants any more."""
        for work, key in [each for each in self._failures if not is_wanted(*each)]:
            del self._failures[work, key]

    def failures(self) -> list[Failure]:
        """Return what is recorded, the most stubborn first."""
        every = [each for causes in self._failures.values() for each in causes.values()]
        return sorted(every, key=lambda each: -each.attempt_count)


def delay_ms(attempt_count: int) -> int:
    """Return how long to wait after so many failures."""
    return int(_BACKOFF.after(attempt_count))
