"""The faults of a memory disk: what a hook sees and may answer, and what a power cut may keep.

An `Effect` is one call that changes a disk. A `Fault` is what happens to it. A `Pending` is one
change that is not yet durable; `choices` lists the subsets that a test should let survive.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Literal

SECTOR_SIZE = 512  # what a disk writes as a whole; counted from the start of the file
SAMPLE_COUNT = 64  # random subsets tried when there are too many pending changes for all

EffectKind = Literal[
    "create",
    "write",
    "append",
    "truncate",
    "sync",
    "rename",
    "link",
    "unlink",
    "sync-dir",
    "make-child",
]
PendingKind = Literal["write", "truncate", "add-name", "drop-name"]
Ranges = tuple[tuple[int, int], ...]  # (start, end) within the data of one write


class Crashed(BaseException):
    """The process is dead. Not an Exception, so that no handler of the code under test runs."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One call that changes the disk, as its hook sees it before it happens."""

    number: int  # from 1 over the life of one disk; a clone counts anew
    kind: EffectKind
    path: str  # of the file or directory changed; for a rename the new path
    size: int  # bytes written, or the new size of a truncate


@dataclass(frozen=True, slots=True)
class Fail:
    """The call raises `errno`. Of a write, `done` bytes happened; of anything else, nothing."""

    errno: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class LoseSync:
    """The sync raises, and what was pending will never be durable, though reads still see it.

    So does ext4: the pages are marked clean, and the next sync succeeds without them.
    `drop_cache` brings reads back to what the disk has.
    """

    errno: int = errno.EIO


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies before the effect; of a write, `done` bytes are in the cache already."""

    done: int = 0


@dataclass(frozen=True, slots=True)
class CrashAfter:
    """The process dies when the effect has happened and before the call returns."""


Fault = Fail | LoseSync | Crash | CrashAfter


@dataclass(frozen=True, slots=True)
class Pending:
    """One change that a power cut may lose. A rename is two: a name added, a name dropped."""

    index: int  # its place in `MemoryDisk.pending()`, until the disk changes again
    kind: PendingKind
    path: str  # the file's path now, or the path that is added or dropped
    position: int = 0
    size: int = 0  # bytes written, or the new size of a truncate
    sector_count: int = 0  # sectors that a write touches

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True, slots=True)
class Keep:
    """A pending change that reached the platter.

    `ranges` are the parts of a write that landed, None for all of it. The file reaches at least
    to the end of each: an empty range at the end of the data makes the file grow by zeros.
    """

    index: int
    ranges: Ranges | None = None


def sectors(position: int, size: int) -> Ranges:
    """Split a write at the borders of sectors: ranges within its data."""
    starts = [0, *range(SECTOR_SIZE - position % SECTOR_SIZE, size, SECTOR_SIZE)]
    return tuple(zip(starts, [*starts[1:], size], strict=True)) if size else ()


def choices(pending: Sequence[Pending], rng: Random, bound: int) -> Iterator[list[Keep]]:
    """Yield different ways in which a power cut may treat `pending`.

    Every subset while there are at most `bound` changes, a sample beyond; then each write torn,
    and overlapping writes landing in the wrong order.
    """
    seen: set[tuple[Keep, ...]] = set()
    for kept in _candidates(pending, rng, bound):
        key = tuple(kept)
        if key not in seen:
            seen.add(key)
            yield kept


def _candidates(pending: Sequence[Pending], rng: Random, bound: int) -> Iterator[list[Keep]]:
    whole = [Keep(change.index) for change in pending]
    if len(whole) <= bound:
        for count in range(len(whole) + 1):
            yield from (list(kept) for kept in combinations(whole, count))
    else:
        yield from _sample(whole, rng)
    for place, change in enumerate(pending):
        if change.kind == "write":
            for ranges in _torn(change, rng):
                torn = Keep(change.index, ranges)
                yield [*whole[:place], torn]
                yield [*whole[:place], torn, *whole[place + 1 :]]
    yield from _reordered(pending, whole)


def _sample(whole: list[Keep], rng: Random) -> Iterator[list[Keep]]:
    yield []
    yield whole
    for place, keep in enumerate(whole):
        yield [keep]
        yield whole[:place] + whole[place + 1 :]
        yield whole[:place]
    for _ in range(SAMPLE_COUNT):
        yield [keep for keep in whole if rng.random() < 0.5]


def _torn(write: Pending, rng: Random) -> Iterator[Ranges]:
    parts = sectors(write.position, write.size)
    yield ((write.size, write.size),)
    if len(parts) > 1:
        yield parts[:1]
        yield parts[-1:]
        yield tuple(part for part in parts if rng.random() < 0.5)
    if write.size > 1:
        yield ((0, rng.randrange(1, write.size)),)


def _reordered(pending: Sequence[Pending], whole: list[Keep]) -> Iterator[list[Keep]]:
    writes = [(place, change) for place, change in enumerate(pending) if change.kind == "write"]
    for (first, one), (second, other) in combinations(writes, 2):
        overlap = one.position < other.end and other.position < one.end
        if one.path == other.path and overlap:
            kept = list(whole)
            kept[first], kept[second] = kept[second], kept[first]
            yield kept
