"""What sealed rows cost the node's processor, as rows and as files, next to unsealed rows.

Rows like those of TPC-H's lineitem: four decimals, four strings of few values, dates, numbers
and a comment. Spark's worker reads them from a real node over TCP, or fetches the segments.
Both sides give MiB of Arrow buffers for each second that the node's process used; the seconds
that the reader took for all of them are among the figures. Rows are in the page cache, and
segments have been opened before.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.public import connect
from headrace.client.read.lease import LeasedPartition
from headrace.client.sync import Topic
from headrace.errors import Unavailable
from headrace.model.schema import SYSTEM_FIELDS
from headrace.partition.machine.segment_cut import SEGMENT_SIZES
from headrace.spark.worker.fetch_file import SealedFile, fetch_file
from headrace.spark.worker.link import Link
from headrace.spark.worker.read import LogAddress, Span, rows_of
from headrace.storage.lock import LOCK_NAME
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Case, Round, Side, scaled
from headrace_lab.bench.serving import a_server
from headrace_lab.bench.spark_rows import TOPIC, UNSEALED, Shape, fill

_COUNT: Final = 256  # MiB
_COUNT_MIN: Final = 32  # each partition has a segment
_SEALED: Final = ("seal.age=2s",)
_SEALING_SECONDS: Final = 120.0
_SPENT_MIN: Final = 0.3  # of processor time in a round: the system counts it by 10 ms
_BATCH_ROWS: Final = 25_000
_SEEDS: Final = 100  # more than a batch needs
_WORDS: Final = ("carefully", "final", "deposits", "sleep", "furiously", "ironic", "boldly")

Read = Callable[[Topic, str, LeasedPartition, bytes], None]


def cases(directory: Path, scale: float) -> list[Case]:
    """Sealed rows as rows, and as files."""
    size = max(_COUNT_MIN, scaled(_COUNT, scale)) * MIB
    made = []
    for name, read in (("sealed rows", _read_rows), ("sealed rows as files", _fetch_files)):
        took: dict[str, float] = {}
        made.append(
            Case(
                name=name,
                unit="MiB/s of the node's processor",
                ours=_side(directory, size, _SEALED, read, took, "seconds, sealed"),
                reference="unsealed rows",
                limit=_side(directory, size, UNSEALED, _read_rows, took, "seconds, unsealed"),
                figures=took.copy,
            )
        )
    return made


def _side(
    directory: Path,
    size: int,
    settings: tuple[str, ...],
    read: Read,
    took: dict[str, float],
    word: str,
) -> Side:
    @contextmanager
    def reading() -> Iterator[Round]:
        path = directory / f"sealed-{secrets.token_hex(4)}"
        with a_server(path, *settings) as address, connect(address, timeout=60.0) as log:
            fill(address, _LINES, size)
            topic = log.topic(TOPIC)
            if settings == _SEALED:
                _wait_until_sealed(topic)
            pid = _pid_of(path)
            with topic.lease_files() as lease:

                def one_round() -> float:
                    began, used = time.perf_counter(), _processor_seconds(pid)
                    spent = passes = 0.0
                    while spent < _SPENT_MIN:
                        for one in lease.partitions:
                            read(topic, address, one, lease.id)
                        spent, passes = _processor_seconds(pid) - used, passes + 1
                    took[word] = (time.perf_counter() - began) / passes
                    rows = sum(end - start for start, end in map(_range_of, lease.partitions))
                    return rows * _ROW_SIZE * passes / MIB / spent

                yield one_round
        shutil.rmtree(path, ignore_errors=True)

    return reading


def _range_of(one: LeasedPartition) -> tuple[int, int]:
    """Return the sealed rows of a partition, or all if none is sealed."""
    return one.first, one.sealed_end if one.files else one.end


def _read_rows(topic: Topic, address: str, one: LeasedPartition, lease_id: bytes) -> None:
    del lease_id
    view = topic.core.view
    start, end = _range_of(one)
    exact = pa.schema([*SYSTEM_FIELDS, *topic.schema])
    span = Span(
        where=LogAddress(address, None, "bench", ""),
        topic=topic.name,
        partition=one.partition,
        namespace=one.namespace,
        created=one.created,
        start=start,
        end=end,
        version=view.version,
        schemas=tuple((v, s.serialize().to_pybytes()) for v, s in view.schemas.items()),
        exact=exact.serialize().to_pybytes(),
    )
    if sum(rows.num_rows for rows in rows_of(span)) != end - start:
        raise Unavailable("the reader got other rows than it asked for")


def _fetch_files(topic: Topic, address: str, one: LeasedPartition, lease_id: bytes) -> None:
    del topic
    with Link(address, None, "bench") as link:
        for file in one.files:
            if file.digest is None:
                raise Unavailable("the node does not tell the digests of its files")
            sealed = SealedFile(
                Path(file.path).name,
                one.namespace,
                one.created,
                file.start,
                file.end,
                file.size,
                file.digest,
            )
            for _ in fetch_file(link, lease_id, sealed):
                pass


def _pid_of(path: Path) -> int:
    """Return the process that holds a data directory."""
    (line, *_) = (path / LOCK_NAME).read_text().splitlines()
    return int(line.removeprefix("pid="))


_TICKS: Final = os.sysconf("SC_CLK_TCK")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _wait_until_sealed(topic: Topic) -> None:
    """Wait until all but what is too small for a segment is in one."""
    end = time.monotonic() + _SEALING_SECONDS
    while time.monotonic() < end:
        with topic.lease_files() as lease:
            rest = max(one.end - one.sealed_end for one in lease.partitions)
            has_files = all(one.files for one in lease.partitions)
        if has_files and rest * _ROW_SIZE <= SEGMENT_SIZES.size_min:
            return
        time.sleep(0.5)
    raise Unavailable("the rows are not sealed")


def _batch(seed: int) -> pa.RecordBatch:
    seeds = count(seed * _SEEDS)

    def some(*values: str) -> pa.Array:
        return pa.array(values).take(whole(0, len(values)))

    def whole(least: int, end: int) -> pa.Array:
        chance = pc.random(_BATCH_ROWS, initializer=next(seeds))
        return pc.floor(pc.add(pc.multiply(chance, end - least), least)).cast(pa.int64())

    def money(least: int, end: int) -> pa.Array:
        return pc.divide(whole(least, end).cast(pa.float64()), 100).cast(pa.decimal128(15, 2))

    def day() -> pa.Array:
        return whole(8_000, 10_500).cast(pa.int32()).cast(pa.date32())

    return pa.RecordBatch.from_pydict(
        {
            "orderkey": whole(1, 6_000_000).sort(),
            "partkey": whole(1, 100_000),
            "suppkey": whole(1, 5_000),
            "linenumber": whole(1, 8),
            "quantity": money(100, 5_000),
            "extendedprice": money(90_000, 10_000_000),
            "discount": money(0, 10),
            "tax": money(0, 8),
            "returnflag": some("A", "N", "R"),
            "linestatus": some("O", "F"),
            "shipdate": day(),
            "commitdate": day(),
            "receiptdate": day(),
            "shipinstruct": some("DELIVER IN PERSON", "COLLECT COD", "NONE"),
            "shipmode": some("AIR", "FOB", "MAIL", "RAIL", "SHIP"),
            "comment": pc.binary_join_element_wise(*(some(*_WORDS) for _ in range(4)), " "),
        }
    )


_SAMPLE: Final = _batch(0)
_ROW_SIZE: Final[float] = _SAMPLE.nbytes / len(_SAMPLE)
_LINES: Final = Shape("lines of orders", _SAMPLE.schema, lambda: [_batch(n) for n in range(8)])
