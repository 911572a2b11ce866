"""From an entry to rows: the system's columns, older schemas, staged bodies, bad ones."""

import pyarrow as pa
import pytest
from tests.partition.shards import NARROW, NEWER, SCHEMA, WIDE, some_rows

from headrace.errors import CorruptEntry, CorruptFile
from headrace.journal.entry import root, seal
from headrace.model import batch as batches
from headrace.model.ids import Offset, Op, View
from headrace.model.proposal import EntryProposal
from headrace.model.schema import encode_schema
from headrace.partition.machine.operations import APPEND, STAGE, encode_stage
from headrace.partition.segments.entry_rows import (
    EntryPlace,
    Schemas,
    placed,
    placed_together,
    rows_of,
)
from headrace_lab.counter.solo import SOLO


def an_entry(rows, *, schema_id=1, operation=APPEND, row_count=None, body=None):
    encoded = bytes(batches.encode(rows)) if body is None else body
    if operation == STAGE and body is None:
        encoded = encode_stage(b"s" * 16, 0) + encoded
    return seal(
        SOLO,
        EntryProposal(
            operation,
            encoded,
            schema_id=schema_id,
            row_count=rows.num_rows if row_count is None else row_count,
        ),
        op=Op(1),
        parent=root(SOLO),
        view=View(0),
        timestamp=1,
    )


def the_schemas(*schemas):
    encoded = {n: encode_schema(one) for n, one in enumerate(schemas, start=1)}
    return Schemas.decode(encoded, "journal")


@pytest.mark.parametrize("operation", [APPEND, STAGE])
def test_rows_are_those_that_were_appended_or_staged(operation):
    rows = some_rows(5, 7)
    found = rows_of(an_entry(rows, operation=operation), the_schemas(SCHEMA), 1, "path")
    assert found.equals(rows)


def test_older_rows_are_shown_in_a_newer_version():
    found = rows_of(an_entry(some_rows(0, 3)), the_schemas(SCHEMA, NEWER), 2, "path")
    assert found.schema.equals(NEWER)
    assert found["note"].null_count == 3
    found = rows_of(an_entry(some_rows(0, 3, NARROW)), the_schemas(NARROW, WIDE), 2, "path")
    assert found["id"].type == pa.int64()
    assert found["id"].to_pylist() == [0, 1, 2]


def test_the_systems_columns_come_first():
    found = placed(some_rows(5, 3), EntryPlace(7, Offset(100), 42))
    assert found.schema.names == ["_partition", "_offset", "_timestamp", "id", "name"]
    assert found["_partition"].to_pylist() == [7, 7, 7]
    assert found["_offset"].to_pylist() == [100, 101, 102]
    assert [one.value for one in found["_timestamp"]] == [42, 42, 42]
    assert [each.nullable for each in found.schema][:3] == [False] * 3


def test_columns_of_the_user_are_not_copied():
    rows = some_rows(0, 100)
    found = placed(rows, EntryPlace(0, Offset(0), 0))
    assert found["id"].buffers()[1].address == rows["id"].buffers()[1].address


@pytest.mark.parametrize(
    "entry",
    [
        an_entry(some_rows(0, 3, NARROW)),
        an_entry(some_rows(0, 3), row_count=4),
        an_entry(some_rows(0, 3), body=b""),
        an_entry(some_rows(0, 3), body=b"\xff" * 300),
        an_entry(some_rows(0, 3), operation=STAGE, body=b"short"),
        an_entry(some_rows(0, 3), operation=STAGE, body=bytes(64)),
    ],
    ids=["columns", "count", "empty", "rubbish", "short", "nothing"],
)
def test_a_body_that_is_no_batch_of_its_schema_is_a_corrupt_entry(entry):
    with pytest.raises(CorruptEntry, match="op 1 does not hold a batch of schema 1") as caught:
        rows_of(entry, the_schemas(SCHEMA), 1, "journal")
    assert caught.value.path == "journal"


def test_a_schema_that_is_none_is_named():
    with pytest.raises(CorruptFile, match="invalid schema in the log"):
        Schemas.decode({1: b"no schema"}, "journal")


@pytest.mark.parametrize("counts", [(4,), (3, 1, 5), (1,) * 40])
def test_rows_of_entries_together_are_those_of_each_one_after_the_other(counts):
    lots, each, first = [], [], 100
    for number, count in enumerate(counts):
        lots.append(some_rows(first, count))
        each.append(placed(lots[-1], EntryPlace(7, Offset(first), 1_000 + number)))
        first += count
    times = [1_000 + number for number in range(len(counts))]
    found = placed_together(lots, EntryPlace(7, Offset(100), times[0]), times)
    assert found.schema.equals(each[0].schema, check_metadata=True)
    assert found.equals(pa.concat_batches(each))
