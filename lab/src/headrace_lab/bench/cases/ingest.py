"""Appends to a partition, from Arrow batch to acknowledgement and on to sealed Parquet.

Ours encodes each batch, seals it into an entry, appends it durably and applies it, sequentially
in one process, while its child processes write segments. Batches are 1 MiB of 1 KiB rows.

    first     the first 512 MiB, before sealing pushes back: what a burst sees
    to seal   4 GiB until the last row is in a segment that was read back

The bare loop writes and fdatasyncs the same number of bytes into a growing file. The stores
encode and store the same batches, each durable before the next. One process that writes the
same rows as Parquet with the same settings gives the least that sealing alone would cost.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model.ids import Offset, Revision
from headrace.model.namespace import Namespace
from headrace.partition.reader import Key
from headrace.partition.segments.entry_rows import EntryPlace, placed
from headrace.partition.segments.segment import segment_schema
from headrace.partition.segments.segment_writer import (
    ROW_GROUP_SIZE_MAX,
    unrepeated,
    writer_settings,
)
from headrace.partition.shard_store import StoreOptions
from headrace.storage.file import FileDirectory
from headrace_lab.bench.bare import MIB, growing
from headrace_lab.bench.frame import Case, Round, Side, rate, scaled
from headrace_lab.bench.pump import Pump
from headrace_lab.bench.rows import ROW_SIZE, SCHEMA, Rows
from headrace_lab.bench.stores import STORES, storing
from headrace_lab.shard.shard import SoloShard, appending, opening

BATCH_SIZE = MIB
FIRST_COUNT = 512
SEALED_COUNT = 4096
_FILE_COUNT = 256  # batches in one file of the Parquet reference, as in one segment
_FIRST_FLOOR = 0.6
_SEALED_FLOOR = 0.5
KEY = Key(Namespace(0), Revision(1))
WRITER = b"bench ingest \0\0\0"


def cases(directory: Path, scale: float) -> list[Case]:
    """A burst beside the disk and beside other stores; then all the way to segments."""
    rows = Rows.of(BATCH_SIZE)
    first, sealed = scaled(FIRST_COUNT, scale), scaled(SEALED_COUNT, scale)
    bare = growing(directory, BATCH_SIZE, first)
    beside: list[tuple[str, Side, float]] = [
        ("the bare write + fdatasync loop", bare, _FIRST_FLOOR)
    ]
    for name in STORES:
        store = storing(name, directory, rows, first)
        if store is not None:
            beside.append((f"{name}, the same batches", store, 1.0))
    found = [
        Case(
            name=f"first {first} MiB",
            unit="MiB/s",
            ours=lambda: _ingesting(directory / "shard", rows, first, to_seal=False),
            reference=reference,
            limit=limit,
            floor=floor,
        )
        for reference, limit, floor in beside
    ]
    found.append(
        Case(
            name=f"{sealed} MiB until sealed",
            unit="MiB/s",
            ours=lambda: _ingesting(directory / "shard", rows, sealed, to_seal=True),
            reference="the lower of the bare loop and one process writing Parquet",
            limit=_lower(
                growing(directory, BATCH_SIZE, sealed),
                lambda: _writing_parquet(directory / "parquet", rows, sealed),
            ),
            floor=_SEALED_FLOOR,
        )
    )
    return found


def _lower(one: Side, other: Side) -> Side:
    """Measure both in each round, and give the lower rate."""

    @contextmanager
    def both() -> Iterator[Round]:
        with one() as run_one, other() as run_other:
            yield lambda: min(run_one(), run_other())

    return both


@contextmanager
def _ingesting(path: Path, rows: Rows, count: int, *, to_seal: bool) -> Iterator[Round]:
    def one_round() -> float:
        with a_shard(path) as pump:
            pump.append([opening(KEY, [SCHEMA], Revision(1), Revision(1))])

            def work() -> None:
                for number in range(count):
                    pump.append([appending(KEY, rows[number], WRITER, number + 1)])
                if to_seal:
                    pump.finish()

            return rate(count, work)

    yield one_round


@contextmanager
def a_shard(path: Path, options: StoreOptions | None = None) -> Iterator[Pump]:
    """Make a shard, of its usual size by default, with a pump, and remove it at the end."""
    with FileDirectory.open_root(str(path), create=True) as root:
        pump = Pump(SoloShard.open(root, options or StoreOptions()))
        try:
            yield pump
        finally:
            pump.close()
    shutil.rmtree(path)


def _first(rows: Rows, number: int) -> Offset:
    return Offset(number * rows[number].num_rows)


@contextmanager
def _writing_parquet(path: Path, rows: Rows, count: int) -> Iterator[Round]:
    """Write the same rows, system columns and all, into files as long as segments; MiB/s."""
    schema = segment_schema(SCHEMA)

    def work() -> None:
        for first in range(0, count, _FILE_COUNT):
            batches = [
                placed(rows[number], EntryPlace(0, _first(rows, number), number))
                for number in range(first, min(first + _FILE_COUNT, count))
            ]
            settings = writer_settings(schema, unrepeated(batches[0]))
            with open(path / f"{first}.parquet", "wb") as file:
                writer = pq.ParquetWriter(file, schema, **settings)
                table = pa.Table.from_batches(batches)
                writer.write_table(table, row_group_size=ROW_GROUP_SIZE_MAX // ROW_SIZE)
                writer.close()
                file.flush()
                os.fsync(file.fileno())

    def one_round() -> float:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return rate(count, work)

    yield one_round
    shutil.rmtree(path, ignore_errors=True)
