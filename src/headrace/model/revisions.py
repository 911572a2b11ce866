"""Revisions: counts of metadata changes, distinct between histories.

    revision := counter << 20 | first 20 bits of the checksum of the entry that raised it

Numbers below 2^20 predate stamps: plain counts, which compare as such; the first stamp has
counter 1 and is above them all. Two different stamps with one counter come from two
histories: one of them was lost, and its log continued from an earlier point. No other code
shifts, masks or compares revisions, except for equality.
"""

from enum import Enum
from typing import Final

from headrace.model.ids import Revision

STAMP_BITS: Final = 20
COUNTER_MAX: Final = 2**32 - 1  # so a revision is below 2^52, and exact in any JSON reader


class Order(Enum):
    """How one revision relates to another."""

    BEFORE = "before"
    SAME = "same"
    AFTER = "after"
    BRANCHED = "branched"  # of another history: neither before nor after


def stamp(counter: int, checksum: bytes) -> Revision:
    """Return the revision created by an entry with this checksum."""
    assert 1 <= counter <= COUNTER_MAX
    bits = int.from_bytes(checksum[:4], "big") >> (32 - STAMP_BITS)
    return Revision(counter << STAMP_BITS | bits)


def counter_of(revision: int) -> int:
    """Return the count of stamped changes; 0 for a number that predates stamps."""
    return revision >> STAMP_BITS


def is_stamped(revision: int) -> bool:
    """Say whether a number belongs to one history only; a plain count may be of several."""
    return counter_of(revision) != 0


def shown(revision: int) -> int:
    """Return a revision as people see it: the number of changes."""
    return counter_of(revision) or revision


def compare(first: int, second: int) -> Order:
    """Compare `first` with `second`."""
    if first == second:
        return Order.SAME
    counters = counter_of(first), counter_of(second)
    if counters[0] == counters[1] != 0:
        return Order.BRANCHED
    return Order.BEFORE if first < second else Order.AFTER


def is_past(revision: int, limit: int) -> bool:
    """Say whether `revision` is certainly after `limit`, in the same history."""
    return compare(revision, limit) is Order.AFTER


def is_within(revision: int, limit: int) -> bool:
    """Say whether `revision` is certainly `limit` or before it, in the same history."""
    return compare(revision, limit) in (Order.BEFORE, Order.SAME)


def newest(first: Revision, second: Revision) -> Revision:
    """Return the later one; `first` if they branched."""
    return second if is_past(second, first) else first
