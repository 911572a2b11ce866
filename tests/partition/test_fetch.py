"""Rows on their way to a reader: answers keep their size, whatever the rows are."""

import pyarrow as pa
import pytest
from tests.partition.shards import KEY, SCHEMA, WRITER, a_shard, layered, some_rows
from xxhash import xxh3_128_digest

from headrace.errors import BadRequest, Behind, Expired
from headrace.model.batch import decode
from headrace.model.ids import Offset
from headrace.model.schema import SYSTEM_FIELDS
from headrace.partition.fetch import FetchedRows, Wanted, fetch
from headrace_lab.shard.shard import appending, publishing, staging, trimming


def fetched(shard, start=0, end=None, size_max=4_000, columns=None) -> FetchedRows:
    asked = Wanted(
        KEY, Offset(start), None if end is None else Offset(end), size_max, columns, 1
    )
    return fetch(shard.store.reader, asked)


def walk(shard, **options):
    """Fetch everything, answer by answer."""
    answers, place, end = [], 0, shard.partition.end
    while place < end:
        answer = fetched(shard, place, **options)
        assert answer.next > place
        answers.append(answer)
        place = answer.next
    return answers


def values(piece, body, columns):
    """Read the rows of a part, without what the system adds to all of them."""
    whole = pa.schema([*SYSTEM_FIELDS, *SCHEMA])
    names = whole.names if columns is None else columns
    schema = SCHEMA if piece.is_entry else pa.schema([whole.field(name) for name in names])
    rows = decode(body, schema, piece.row_count)
    return rows.select(columns or SCHEMA.names).to_pylist()


@pytest.mark.parametrize("columns", [None, ("_offset", "id")])
@pytest.mark.parametrize("size_max", [1, 700, 4_000, 1 << 20])
def test_every_row_comes_once_and_no_answer_is_larger_than_asked(size_max, columns):
    """From segments, carry files and the journal alike; one part may always come."""
    shard = a_shard()
    layered(shard)
    offset = 0
    found = []
    for answer in walk(shard, size_max=size_max, columns=columns):
        size = sum(len(body) for _, body in answer.parts)
        assert size <= size_max or len(answer.parts) == 1
        for piece, body in answer.parts:
            assert piece.first <= offset < piece.first + piece.row_count
            found += values(piece, body, columns)[offset - piece.first :]
            offset = piece.first + piece.row_count
        assert answer.next == offset
    assert offset == 190
    names = columns or SCHEMA.names
    expected = some_rows(0, 190).append_column("_offset", pa.array(range(190)))
    assert found == expected.select(names).to_pylist()


def test_rows_that_were_sealed_together_leave_in_slices():
    """A segment's row group may be larger than any frame."""
    shard = a_shard()
    rows = pa.record_batch([list(range(50)), ["x" * 2_000] * 50], schema=SCHEMA)
    shard.one(appending(KEY, rows, WRITER, 1))
    shard.checkpoint()
    assert not shard.partition.runs
    answers = walk(shard, size_max=10_000)
    assert len(answers) > 10
    for answer in answers:
        assert sum(len(body) for _, body in answer.parts) <= 10_000


def test_a_row_larger_than_any_answer_gets_one_of_its_own():
    shard = a_shard()
    for version, size in enumerate((10, 9_000, 10), start=1):
        rows = pa.record_batch([[version], ["x" * size]], schema=SCHEMA)
        shard.one(appending(KEY, rows, WRITER, version))
    assert [answer.next for answer in walk(shard, size_max=4_000)] == [1, 2, 3]


def test_ranges_that_cannot_be_are_refused():
    shard = a_shard()
    shard.append(10)
    with pytest.raises(Behind):
        fetched(shard, 0, 11)
    with pytest.raises(Behind):
        fetched(shard, 11)
    with pytest.raises(BadRequest):
        fetched(shard, 5, 4)
    with pytest.raises(BadRequest):
        fetched(shard, -1)
    shard.one(trimming(KEY, Offset(5)))
    with pytest.raises(Expired):
        fetched(shard, 4)
    assert fetched(shard, 10).parts == []


def test_an_entry_says_the_checksum_that_its_producer_gave_it():
    shard = a_shard()
    proposal = appending(KEY, some_rows(0, 3), WRITER, 1)
    shard.one(proposal)
    ((piece, body),) = fetched(shard).parts
    assert bytes(body) == bytes(proposal.body)
    assert piece.checksum == shard.store.group.journal.read(shard.head).header.body_checksum


@pytest.mark.parametrize("columns", [None, ("_offset", "id")])
def test_every_part_says_the_checksum_of_its_bytes(columns):
    """Segments, carry files, the journal, and rows that were staged."""
    shard = a_shard()
    layered(shard)
    staged = shard.one(staging(KEY, some_rows(190, 5), b"another of tests", 1, (bytes(16), 0)))
    shard.one(publishing(KEY, b"another of tests", 1, [staged.receipt]))
    parts = [
        part for answer in walk(shard, size_max=1, columns=columns) for part in answer.parts
    ]
    last, _ = parts[-1]
    assert last.first + last.row_count == 195
    for piece, body in parts:
        assert (piece.size, piece.checksum) == (len(body), xxh3_128_digest(body))
