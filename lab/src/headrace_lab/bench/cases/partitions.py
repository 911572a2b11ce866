"""The same batches over 1 to 10,000 partitions, until sealed.

Batches of 64 KiB go to one partition after the other, 16 in a commit group, until every row is
in a segment. The reference sends the same batches to one partition. Opening the partitions is
outside the clock; carrying what is too little for a segment, and writing a file for each
partition in the end, is inside. A round is long enough that small runs come due while others
are still appended to: sixteen Seals.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.partition.reader import Key
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.cases.ingest import WRITER, a_shard
from headrace_lab.bench.frame import Case, Round, Side, rate, scaled
from headrace_lab.bench.rows import KIB, ROW_SIZE, SCHEMA, Rows
from headrace_lab.shard.shard import appending, opening

BATCH_SIZE = 64 * KIB
BATCH_COUNT = 131_072  # 8 GiB
# A prime: every partition gets all of them in turn, so that its segments compress as badly as
# those of one partition.
_DISTINCT = 251
_GROUP_COUNT = 16  # batches in one commit group
_TELL_SIZE = 1024 * MIB  # appended between two lines of progress
_COUNTS = {10: 0.8, 100: 0.8, 1_000: 0.8, 10_000: None}


def cases(directory: Path, scale: float) -> list[Case]:
    """Each number of partitions beside one. The largest is shown, and has no floor."""
    rows, count = _rows(), scaled(BATCH_COUNT, scale)
    return [
        Case(
            name=f"{partition_count:,} partitions",
            unit="MiB/s",
            ours=_spreading(directory / "many", rows, count, partition_count),
            reference="the same batches to one partition",
            limit=_spreading(directory / "one", rows, count, 1),
            floor=floor,
        )
        for partition_count, floor in _COUNTS.items()
    ]


def _rows() -> Rows:
    """Cut larger batches into distinct ones of our size, each with buffers of its own."""
    step = BATCH_SIZE // ROW_SIZE
    slices = [
        whole.slice(start, step)
        for whole in Rows.of(MIB).batches
        for start in range(0, whole.num_rows, step)
    ]
    return Rows([pa.concat_batches([one]) for one in slices[:_DISTINCT]])


def _spreading(path: Path, rows: Rows, count: int, partition_count: int) -> Side:
    keys = [Key(Namespace(number), Revision(1)) for number in range(partition_count)]

    @contextmanager
    def spreading() -> Iterator[Round]:
        def one_round() -> float:
            with a_shard(path) as pump:
                for start in range(0, len(keys), _GROUP_COUNT):
                    some = keys[start : start + _GROUP_COUNT]
                    pump.append(
                        [opening(key, [SCHEMA], Revision(1), Revision(1)) for key in some]
                    )

                def work() -> None:
                    for start in range(0, count, _GROUP_COUNT):
                        group = range(start, min(start + _GROUP_COUNT, count))
                        pump.append([_append(keys, rows, number) for number in group])
                        _tell(partition_count, group.stop, count)
                    pump.finish()

                size = count * BATCH_SIZE
                return rate(size / MIB, work)

        yield one_round

    return spreading


def _append(keys: list[Key], rows: Rows, number: int) -> EntryProposal:
    version = number // len(keys) + 1
    return appending(keys[number % len(keys)], rows[number], WRITER, version)


def _tell(partition_count: int, done: int, count: int) -> None:
    """Say how far a long round is, now and then."""
    if done * BATCH_SIZE % _TELL_SIZE == 0:
        gib = 1024 * MIB / BATCH_SIZE
        line = (
            f"  over {partition_count:,}: {done / gib:.0f} of {count / gib:.0f} GiB appended\n"
        )
        sys.stderr.write(line)
