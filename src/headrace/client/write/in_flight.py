"""The client's half of the writer rule: versions of batches, and the meaning of failures.

A batch keeps its version and its bytes until the log has reported its outcome. One that is
given up leaves a gap, and those after it need other versions. That is safe only if no copy of
them can still arrive under the old ones:

    given up              those after it
    not appended          cannot have been appended either: the log accepts no gap. They move
                          down; or, if a copy of one may still be under way, they start again
                          under a new writer, as the gap blocks the copies under the old one
    perhaps appended      those of which a copy may have arrived are unknown too; the others
                          start again under a new writer
"""

from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.client.connect.channel import HolderEnded
from headrace.client.values.answers import Range
from headrace.errors import (
    HeadraceError,
    Refused,
    Rejected,
    TimedOut,
    Unavailable,
    Unknown,
    WriterUnknown,
)

# The log remembers 64 versions of a writer: batches in flight can always be repeated.
COUNT_MAX: Final = 32
# Refusals after which both sides disagree on the count of versions.
_BROKEN: Final = frozenset({"writer_conflict", "too_old"})


@dataclass(slots=True, eq=False)
class Draft:
    """One batch on its way to a partition."""

    body: memoryview
    row_count: int
    schema_id: int
    checksum: bytes
    deadline: float
    done: Future[Range]
    version: int = 0
    error: HeadraceError | None = None  # of the latest attempt
    is_doubtful: bool = False  # a copy may have been appended, or may still be


@dataclass(slots=True)
class InFlight:
    """The batches of one writer and partition with a version but no verdict."""

    writer: bytes
    new_writer: Callable[[], bytes]
    drafts: deque[Draft] = field(default_factory=deque)  # by version, dense
    next_version: int = 1
    is_known: bool = False  # the log has acknowledged a version of this writer
    is_forgotten: bool = False  # and no longer knows it

    @property
    def has_room(self) -> bool:
        return len(self.drafts) < COUNT_MAX

    def add(self, draft: Draft) -> None:
        """Give a batch the next version."""
        assert self.has_room
        draft.version = self.next_version
        self.next_version += 1
        self.drafts.append(draft)

    def on_appended(self, draft: Draft) -> None:
        """Note that the log has it, newly or from before."""
        self.is_known = True
        self.drafts.remove(draft)

    def on_failed(self, draft: Draft, error: HeadraceError) -> None:
        """Note how an attempt failed. `settle` draws the consequences."""
        draft.error = error
        if isinstance(error, WriterUnknown):
            # Before the first acknowledgement this only means that version 1 is missing.
            self.is_forgotten = self.is_known
        elif isinstance(error, Refused):
            draft.is_doubtful |= error.code in _BROKEN
        elif not isinstance(error, Rejected | Unavailable):
            draft.is_doubtful = True

    def settle(self, now: float) -> list[tuple[Draft, HeadraceError]]:
        """Give up the hopeless, renumber the rest if needed; return those given up.

        Called when no attempt is under way.
        """
        given_up: list[tuple[Draft, HeadraceError]] = []
        if self.is_forgotten:
            given_up += self._begin_anew(keep_doubtful=False)
        while self.drafts and is_hopeless(self.drafts[0], now):
            front = self.drafts.popleft()
            given_up.append((front, verdict(front)))
            if front.is_doubtful:
                given_up += self._begin_anew(keep_doubtful=False)
            elif any(each.is_doubtful for each in self.drafts):
                given_up += self._begin_anew(keep_doubtful=True)
            else:
                self._number(front.version)
        return given_up

    def sendable(self, now: float) -> list[Draft]:
        """Return the batches to send again: up to the first that will be given up."""
        found = []
        for draft in self.drafts:
            if is_hopeless(draft, now):
                break
            found.append(draft)
        return found

    def _begin_anew(self, *, keep_doubtful: bool) -> list[tuple[Draft, HeadraceError]]:
        lost = [] if keep_doubtful else [each for each in self.drafts if each.is_doubtful]
        self.drafts = deque(each for each in self.drafts if each not in lost)
        for draft in self.drafts:
            draft.is_doubtful = False
        self.writer = self.new_writer()
        self.is_known = self.is_forgotten = False
        self._number(1)
        return [(each, verdict(each)) for each in lost]

    def _number(self, first: int) -> None:
        for version, draft in enumerate(self.drafts, first):
            draft.version = version
        self.next_version = first + len(self.drafts)


def is_hopeless(draft: Draft, now: float) -> bool:
    """Say whether another attempt is useless."""
    return draft.deadline <= now or _is_final(draft.error)


def verdict(draft: Draft) -> HeadraceError:
    """Return the error that the caller gets for a batch that is given up."""
    error = draft.error
    if not draft.is_doubtful:
        if error is None or isinstance(error, WriterUnknown):
            return TimedOut("the batch could not be appended in time")
        return error
    if error is not None and _is_final(error) and not isinstance(error, Rejected | Unavailable):
        return error
    reason = "no answer in time" if error is None else Exception.__str__(error)
    return Unknown(
        f"the batch may or may not have been appended: {reason}",
        hint="Check the end of the partition before you append it again",
    )


def _is_final(error: HeadraceError | None) -> bool:
    if isinstance(error, HolderEnded):
        return True
    return error is not None and not isinstance(error, Unavailable | Unknown)
