"""What a task finds out about a file before Spark's own scan may read it."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.spark.sealing import seal_all

import headrace
from headrace.spark.worker.probe import Expected, checked

SCHEMA = {"id": "int64", "tags": "list<string>"}
ROWS = [{"id": number, "tags": ["a"] * (number % 3)} for number in range(100)]


@pytest.fixture
def segment(tmp_path):
    """Return a segment as the log knows it, and the schemas of its topic."""
    with headrace.open(tmp_path / "data") as log:
        topic = log.create_topic("orders", SCHEMA)
        topic.append(ROWS)
        seal_all(tmp_path / "data")
        with topic.lease_files() as lease:
            (file,) = lease.partitions[0].files
            schemas = lease.view.schemas
    expected = Expected(
        file.path, file.start, file.end, file.version, file.size, file.row_digest
    )
    return expected, {
        version: each.serialize().to_pybytes() for version, each in schemas.items()
    }


def test_a_segment_as_it_was_sealed_has_no_flaw(segment):
    file, schemas = segment
    assert checked([file, file], schemas, [0, 1]) == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "/nowhere/x.parquet"}, "/nowhere/x.parquet: No such file or directory"),
        ({"size": 1}, "but the log has 1"),
        ({"row_digest": bytes(16)}, "rows of another log"),
        ({"start": 1, "end": 101}, "row group 0 does not have the offsets from 1 on"),
        ({"end": 101}, "rows up to 100, but the log has rows up to 101"),
    ],
)
def test_a_file_that_is_another_is_named_with_what_is_wrong(segment, change, said):
    file, schemas = segment
    found = checked([replace(file, **change)], schemas, [0])
    assert isinstance(found, str)
    assert said in found


def test_other_columns_than_the_topics_are_a_flaw(segment):
    file, _ = segment
    other = pa.schema([("id", pa.int64()), ("name", pa.string())])
    found = checked([file], {1: other.serialize().to_pybytes()}, [0])
    assert found == f"{file.path}: other columns than the topic's"


def test_only_the_footers_of_its_share_are_read_by_a_task(segment):
    file, schemas = segment
    strange = replace(file, row_digest=bytes(16))
    assert checked([file, strange], schemas, [0]) == {0: 2}
    assert isinstance(checked([file, strange], schemas, [1]), str)


@pytest.mark.parametrize("word", [b"_offset", b"tags", b"headrace.row_digest"])
def test_a_flip_in_what_a_footer_says_of_its_columns_is_a_flaw(segment, tmp_path, word):
    file, schemas = segment
    with open(file.path, "rb") as opened:
        data = opened.read()
    places = [found.start() for found in re.finditer(re.escape(word), data)]
    assert places
    for position in places:
        flipped = bytearray(data)
        flipped[position] ^= 1
        path = tmp_path / f"{position}.parquet"
        path.write_bytes(flipped)
        found = checked([replace(file, path=str(path))], schemas, [0])
        assert isinstance(found, str)


def test_a_file_that_is_no_parquet_is_a_flaw(segment, tmp_path):
    file, schemas = segment
    path = tmp_path / "x.parquet"
    path.write_bytes(bytes(file.size))
    found = checked([replace(file, path=str(path))], schemas, [0])
    assert found.startswith(f"{path}: its footer cannot be read: ")
