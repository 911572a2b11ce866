"""Behind a lost entry the log is read on: what is known stays exact, and the rest is said."""

import pytest
from tests.doctor import harm, two_shards
from tests.doctor.two_shards import FIRST, LATE, METADATA, NOTES, ROWS, SECOND, ids

from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.journal.entry import HEADER_SIZE
from headrace.journal.frame import PREFIX_SIZE
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.partition.machine.operations import APPEND, OpenPartition, Publish, SetSchema

PARTS = {"prefix": 30, "header": PREFIX_SIZE + 90, "body": PREFIX_SIZE + HEADER_SIZE + 1}


def rot(group, operation, part):
    hit = two_shards.frame(group, operation)
    harm.flip(hit.file, hit.position + PARTS[part])
    return hit


@pytest.mark.campaign(2)
@pytest.mark.parametrize("part", ["header", "body"])
@pytest.mark.parametrize("command", [OpenPartition, SetSchema], ids=lambda one: one.__name__)
def test_a_lost_command_that_metadata_tells_costs_no_row(
    stopped, tmp_path, counts, command, part
):
    rot(stopped / SECOND, command.operation, part)
    account = salvage(str(stopped), str(tmp_path / "new"))
    assert not account.is_whole
    found = ids(tmp_path / "new")
    assert found == {key: list(range(count)) for key, count in counts.items()}


def test_rows_that_cannot_be_given_a_place_are_counted(stopped, tmp_path, counts):
    """Nothing tells of the partition: neither its OpenPartition nor the metadata."""
    rot(stopped / SECOND, OpenPartition.operation, "body")
    for path in (stopped / METADATA / "journal").glob("*.wal"):
        path.write_bytes(b"")
    (stopped / COPY_NAME).unlink()
    account = salvage(str(stopped), str(tmp_path / "new"))
    assert not any(LATE in key for key in ids(tmp_path / "new"))
    rows = counts[LATE, 0]
    assert any(f"{rows} rows of an unknown partition" in said for said in account.lost)


@pytest.mark.parametrize("part", ["header", "body"])
def test_behind_a_lost_publish_old_offsets_are_unsure(stopped, tmp_path, counts, part):
    """It gave offsets to rows of its transaction: all that follow are shifted."""
    rot(stopped / FIRST, Publish.operation, part)
    account = salvage(str(stopped), str(tmp_path / "new"))
    found = ids(tmp_path / "new")
    for one in account.partitions:
        if one.topic == ROWS:
            end = counts[ROWS, one.partition]
            before = list(range(end - 16))
            assert found[ROWS, one.partition] == [*before, *range(end - 10, end)]
            assert one.unsure_from == end - 16
            assert [each.exact for each in one.ranges] == [True, False]


@pytest.mark.parametrize(
    "operation", [APPEND, SetSchema.operation], ids=["Append", "SetSchema"]
)
def test_a_bad_prefix_costs_no_entry_that_is_whole(stopped, tmp_path, counts, operation):
    hit = rot(stopped / SECOND, operation, "prefix")
    (one,) = examine(str(stopped)).damage
    assert (one.kind, one.first_op) == ("journal-entry", hit.header.op)
    assert one.lost.startswith("nothing: the entry itself is intact")
    assert one.lost_rows == ()
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    assert ids(tmp_path / "new")[NOTES, 0] == list(range(counts[NOTES, 0]))


def test_entries_behind_two_bad_prefixes_are_found(stopped, tmp_path, counts):
    for hit in harm.frames(stopped / SECOND)[3:5]:
        harm.flip(hit.file, hit.position + PARTS["prefix"])
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    assert ids(tmp_path / "new")[NOTES, 0] == list(range(counts[NOTES, 0]))


def test_a_bad_prefix_in_the_metadata_costs_no_name(stopped, tmp_path, counts):
    hit = harm.frames(stopped / METADATA)[1]
    harm.flip(hit.file, hit.position + PARTS["prefix"])
    (stopped / COPY_NAME).unlink()
    (one,) = examine(str(stopped)).damage
    assert one.lost.startswith("nothing: the entry itself is intact")
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    assert ids(tmp_path / "new").keys() == counts.keys()
