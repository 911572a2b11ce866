"""Builders of segments: rows of every kept type, and files around them."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xxhash import xxh3_128_digest

from headrace.model.ids import Offset, Op
from headrace.model.schema import canonical
from headrace.partition.segments import segment_writer
from headrace.partition.segments.segment import SegmentInfo, segment_schema
from headrace.partition.segments.segment_reader import open_segment
from headrace.partition.segments.segment_writer import write_segment
from headrace.storage import stream

FORMATS = (1, 2)
FORM = FORMATS[-1]  # of what is written without another word
FIRST = 100
START_US = 1_700_000_000_000_000
NAN = float("nan")

PLACE = pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])
INNER = pa.map_(pa.int32(), pa.bool_())
USER = canonical(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("small", pa.int8()),
            pa.field("flag", pa.bool_()),
            pa.field("single", pa.float32()),
            pa.field("double", pa.float64()),
            pa.field("text", pa.string()),
            pa.field("blob", pa.binary()),
            pa.field("price", pa.decimal128(38, 4)),
            pa.field("day", pa.date32()),
            pa.field("seen", pa.timestamp("us", tz="UTC")),
            pa.field("nothing", pa.string()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("matrix", pa.list_(pa.list_(pa.int32()))),
            pa.field("place", PLACE),
            pa.field("counts", pa.map_(pa.string(), pa.int64())),
            pa.field("deep", pa.map_(pa.string(), pa.struct([("m", INNER)]))),
            pa.field("a.b", pa.int32()),
        ]
    )
)


def a_value(name, n):
    """Return what column `name` has in its row `n`: every seventh null, wherever one may be."""
    if name == "id":
        return n * 3
    if name == "nothing" or (n + len(name)) % 7 == 0:
        return None
    return {
        "small": n % 256 - 128,
        "flag": n % 3 == 0,
        "single": [NAN, -0.0, 0.5, float("inf")][n % 4],
        "double": [n / 7, NAN, -0.0, 5e-324][n % 4],
        "text": ["", "\N{SNOWMAN}", f"text {n}", "a\0b"][n % 4],
        "blob": bytes([n % 256]) * (n % 5),
        "price": Decimal(n * 10**30 + n) / 10**4,
        "day": n - 50,
        "seen": n * 1_000_003,
        "tags": [[], ["x", None, f"{n}"], [""]][n % 3],
        "matrix": [[], [[]], [None, [n, None]], [[1], [2, 3]]][n % 4],
        "place": {"x": None if n % 2 else NAN, "names": [f"n{n}"] if n % 5 else None},
        "counts": [[], [("k", n)], [("k", None), ("k", n), ("a", 0)]][n % 3],
        "deep": [("d", {"m": [(n, None)]}), ("e", None), ("f", {"m": None})][: n % 4],
        "a.b": n,
    }[name]


def a_batch(count=60, *, first=FIRST, schema=USER, times=None):
    """Return rows of every kept type, with the system's columns in front."""
    numbers = range(first, first + count)
    times = times or [START_US + n // 10 * 1000 for n in range(count)]
    columns = [
        pa.array([3] * count, pa.int32()),
        pa.array(numbers, pa.int64()),
        pa.array(times, pa.timestamp("us", tz="UTC")),
        *(pa.array([a_value(f.name, n) for n in numbers], f.type) for f in schema),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(schema))


def an_info(first=FIRST, end=FIRST + 60, **changes):
    info = SegmentInfo(
        cluster=b"c" * 16,
        group=1,
        namespace=0xABC,
        created=9,
        first=Offset(first),
        end=Offset(end),
        first_op=Op(5),
        seal_op=Op(40),
        tip=b"t" * 16,
        schema_id=2,
    )
    return replace(info, **changes)


def a_segment(root, batch=None, *, name=None, schema=USER, form=None, **changes):
    """Write a segment with the rows of `batch` and return its info and digests."""
    batch = batch or a_batch(schema=schema)
    first = batch.column("_offset")[0].as_py()
    info = an_info(first, first + batch.num_rows, **changes)
    with root.create(name or info.name) as storage:
        return info, write_segment(storage, info, schema, [batch], form or FORM)


def opened(root, info, digests, name=None):
    return open_segment(root.open(name or info.name), info, digests)


def rows(batches):
    """Return rows that compare by what is printed of them: NaN is NaN, -0.0 is not 0.0."""
    return [str(row) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module", params=FORMATS)
def each_format(request):
    """Write segments of one format after the other."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "FORM", request.param)
        yield request.param


@contextmanager
def small_groups(row_count):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_writer, "ROW_GROUP_ROWS_MAX", row_count)
        yield


@contextmanager
def small_blocks(size=64):
    """What is opened meanwhile is checked in such blocks: tell small row groups apart."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "BLOCK_SIZE", size)
        yield


def a_footer(disk, name):
    return pq.read_metadata(pa.BufferReader(disk.content(name)))


def a_resealed_file(disk, name, **changes):
    """Write the rows under `name` anew, with other words about themselves; return digests."""
    table = pq.read_table(pa.BufferReader(disk.content(name)))
    words = a_footer(disk, name).metadata
    del words[b"ARROW:schema"]
    for key, value in changes.items():
        words.pop(f"headrace.{key}".encode())
        if value is not None:
            words[f"headrace.{key}"] = value
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(words), sink)
    data = sink.getvalue().to_pybytes()
    disk.put(name, data)
    return xxh3_128_digest(data), len(data)


def replaced(batch, name, values):
    index = batch.schema.get_field_index(name)
    field = batch.schema.field(index)
    return batch.set_column(index, field, pa.array(values, field.type))
