"""`headrace inspect`: each kind of file, whole and damaged, in words and as JSON."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import headrace_here
from tests.doctor import harm, logs
from tests.doctor.harm import SHARD

from headrace.cli.terminal.exits import Exit
from headrace.journal.journal_file import BLOCK_SIZE


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A log with files of every kind."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    logs.fill(path)
    return path


@pytest.fixture
def log(healthy, tmp_path):
    return shutil.copytree(healthy, tmp_path / "data")


def told(kind, path, *more):
    ended = headrace_here("inspect", kind, str(path), "--json", *more)
    assert ended.err == ""
    return ended.code, json.loads(ended.out)


def newest(room):
    return max(room.iterdir())


def files(log) -> dict:
    room = log / SHARD
    return {
        "journal": harm.frames(room)[-1].file,
        "snapshot": newest(room / "snapshots"),
        "segment": newest(room / "segments"),
        "superblock": room / "superblock.a",
        "carry": newest(room / "carry"),
    }


@pytest.mark.parametrize("kind", ["journal", "snapshot", "segment", "superblock", "carry"])
def test_a_whole_file_is_shown_without_a_flaw(healthy, kind):
    path = files(healthy)[kind]
    code, shape = told(kind, path)
    assert code == Exit.OK
    assert (shape["kind"], shape["size"], shape["flaws"]) == (kind, path.stat().st_size, [])
    ended = headrace_here("inspect", kind, str(path))
    assert ended.code == Exit.OK
    assert ended.out.splitlines()[-1] == "All checksums are correct."


@pytest.mark.parametrize("kind", ["journal", "snapshot", "segment", "superblock", "carry"])
def test_a_file_cut_to_pieces_is_told_without_a_trace(log, kind):
    path = files(log)[kind]
    data = path.read_bytes()
    for size in (3, len(data) // 2):
        path.write_bytes(data[:size])
        ended = headrace_here("inspect", kind, str(path))
        assert ended.code == Exit.INTEGRITY
        assert ended.err == ""


def test_every_frame_of_a_journal_file_is_shown_with_its_place(log):
    frames = [one for one in harm.frames(log / SHARD) if one.file == files(log)["journal"]]
    _, shape = told("journal", files(log)["journal"], "--limit", "0")
    (table,) = shape["tables"]
    shown = [(one["op"], one["position"]) for one in table["rows"] if one["frame"] == "entry"]
    assert shown == [(one.header.op, one.position) for one in frames]
    assert all(one["state"] == "ok" for one in table["rows"])


def test_frames_behind_a_bad_one_are_shown(log):
    expected = harm.prefix_rot(log)
    code, shape = told("journal", log / expected.file, "--limit", "0")
    assert code == Exit.INTEGRITY
    assert [one["position"] for one in shape["flaws"]] == [expected.position]
    ops = [one["op"] for one in shape["tables"][0]["rows"] if one["frame"] == "entry"]
    assert expected.op not in ops
    assert {expected.op - 1, expected.op + 1} <= set(ops)


def test_a_journal_file_without_a_header_shows_its_frames(log):
    expected = harm.both_header_blocks(log)
    code, shape = told("journal", log / expected.file)
    assert code == Exit.INTEGRITY
    assert [one["position"] for one in shape["flaws"]] == [0, BLOCK_SIZE]
    assert shape["fields"]["entries"] > 1


def test_a_limit_leaves_rows_out_and_counts_them(log):
    _, shape = told("journal", files(log)["journal"], "--limit", "1")
    (table,) = shape["tables"]
    assert len(table["rows"]) == 1
    assert table["left_out"] >= 1


def test_a_bad_page_is_named_by_its_row_group(log):
    expected = harm.segment_page(log)
    code, shape = told("segment", log / expected.file)
    assert code == Exit.INTEGRITY
    groups = shape["tables"][1]["rows"]
    assert [one["state"] == "ok" for one in groups] == [False, True]
    assert shape["fields"]["headrace.namespace"] == str(1 << 48)


def test_entries_of_a_carry_file_without_an_index_are_found(log):
    before = told("carry", log / harm.carries(log)[0][0])[1]["tables"][0]["rows"]
    expected = harm.carry_table(log)
    code, shape = told("carry", log / expected.file)
    assert code == Exit.INTEGRITY
    after = shape["tables"][0]["rows"]
    assert [(one["op"], one["position"]) for one in after] == [
        (one["op"], one["position"]) for one in before
    ]


def test_a_bad_entry_of_a_carry_file_is_named_by_its_op(log):
    expected = harm.carry_entry(log)
    code, shape = told("carry", log / expected.file)
    assert code == Exit.INTEGRITY
    (flaw,) = shape["flaws"]
    assert flaw["position"] == expected.position
    assert flaw["what"].startswith(f"op {expected.op}: body checksum")


def test_a_snapshot_shows_partitions_and_the_files_it_names(healthy):
    _, shape = told("snapshot", files(healthy)["snapshot"])
    titles = {one["title"]: one["rows"] for one in shape["tables"]}
    assert len(titles["partitions"]) == 6
    assert {one["file"] for one in titles["segments"]} == {
        one.name for one in (healthy / SHARD / "segments").iterdir()
    }


def test_a_file_that_is_not_there_exits_with_3(tmp_path):
    ended = headrace_here("inspect", "journal", str(tmp_path / "nothing.wal"))
    assert ended.code == Exit.NOT_FOUND
    assert ended.err.count("\n") == 1


def test_a_spare_is_said_to_be_one_and_has_no_flaw(healthy):
    (path, *_) = sorted((healthy / harm.METADATA / "journal" / "spare").iterdir())
    code, shape = told("journal", path)
    assert (code, shape["flaws"], shape["tables"]) == (Exit.OK, [], [])
    assert shape["fields"]["state"].startswith("a spare")
    ended = headrace_here("inspect", "journal", str(path))
    assert ended.code == Exit.OK
    assert ended.out.splitlines()[-1] == "A spare: it holds no rows, and none are read from it."


def test_a_live_journal_file_of_zeros_is_no_spare(log):
    path = files(log)["journal"]
    path.write_bytes(bytes(path.stat().st_size))
    assert told("journal", path)[0] == Exit.INTEGRITY


def test_rows_that_were_written_as_parquet_are_no_segment(tmp_path):
    path = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3]}), path)
    ended = headrace_here("inspect", "segment", str(path))
    assert ended.code == Exit.USAGE
    assert "is a Parquet file, but not a Headrace segment" in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("kind", ["journal", "snapshot", "segment", "superblock", "carry"])
def test_a_file_of_another_kind_is_sent_to_the_right_command(healthy, kind):
    other = "superblock" if kind == "journal" else "journal"
    path = files(healthy)[kind]
    ended = headrace_here("inspect", other, str(path))
    assert ended.code == Exit.USAGE
    assert f"`headrace inspect {kind} {path}`" in ended.err
