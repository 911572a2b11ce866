"""Compares the rows of a topic with what its producers sent and their ledgers record.

Each producer numbers its rows from 0 and has its own partition, so a row belongs at the offset
of its number: the check needs no trust in the node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

COMPARED: Final = ("source", "number", "_partition", "_offset")
_SHOWN_MAX: Final = 3  # problems of one kind that are listed one by one


@dataclass(frozen=True, slots=True)
class Told:
    """One line of a ledger: rows from `start` to before `end` of a partition are on disk."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Claim:
    """One producer's record: how many rows it sent, and which were acknowledged."""

    source: int  # also its partition
    sent: int
    told: tuple[Told, ...]

    @property
    def acknowledged(self) -> int:
        return sum(each.end - each.start for each in self.told)


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome. Everything except `found` should be 0, without problems."""

    found: int
    lost: int  # acknowledged, but missing
    twice: int
    invented: int  # found, but never sent
    problems: tuple[str, ...]


def compare(rows: pa.Table, claims: Sequence[Claim]) -> Compared:
    """Check `rows`, which have the columns COMPARED; each partition in order of offsets."""
    lost = twice = invented = 0
    problems: list[str] = []
    for claim in claims:
        own = rows.filter(pc.equal(rows["_partition"], claim.source))
        is_sent = pc.and_(
            pc.equal(own["source"], claim.source),
            pc.and_(pc.greater_equal(own["number"], 0), pc.less(own["number"], claim.sent)),
        )
        numbers = own.filter(is_sent)["number"]
        distinct = numbers.unique()
        there = pc.sum(pc.less(distinct, claim.acknowledged)).as_py() or 0
        lost += claim.acknowledged - there
        twice += len(numbers) - len(distinct)
        invented += own.num_rows - len(numbers)
        problems += _problems(claim, there, len(numbers) - len(distinct))
        problems += _misplaced(claim, own)
    invented += rows.num_rows - sum(_count(rows, claim.source) for claim in claims)
    if invented:
        problems.append(f"{invented:,} rows were never sent")
    return Compared(rows.num_rows, lost, twice, invented, tuple(problems))


def _count(rows: pa.Table, partition: int) -> int:
    return int(pc.sum(pc.equal(rows["_partition"], partition)).as_py() or 0)


def _problems(claim: Claim, there: int, twice: int) -> Iterator[str]:
    who, acknowledged = f"producer {claim.source}", claim.acknowledged
    if there < acknowledged:
        gone = acknowledged - there
        yield f"{who}: {gone:,} of {acknowledged:,} acknowledged rows are lost"
    if twice:
        yield f"{who}: {twice:,} rows are there more than once"
    ranges = sorted((each.start, each.end) for each in claim.told)
    steps = [(0, 0), *ranges]
    odd = [after for before, after in pairwise(steps) if after[0] != before[1]]
    for start, end in odd[:_SHOWN_MAX]:
        yield f"{who}: its ledger has offsets {start:,} to {end:,} out of order"


def _misplaced(claim: Claim, own: pa.Table) -> Iterator[str]:
    """Find rows whose offset differs from their number."""
    wrong = own.filter(pc.not_equal(own["number"], own["_offset"]))
    for row in wrong.slice(0, _SHOWN_MAX).to_pylist():
        yield (
            f"producer {claim.source}: at offset {row['_offset']:,} is row {row['number']:,} "
            f"of producer {row['source']}"
        )
