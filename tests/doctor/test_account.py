"""A salvage is whole only where that is proven: whatever else is lost is said."""

import re
import shutil
from pathlib import Path

import pytest
from tests.doctor import harm
from tests.doctor.two_shards import FIRST, LATE, METADATA, NOTES, ROWS, SECOND, ids

from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.doctor.salvage.salvage_report import Account
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.partition.segments.segment import parse_name


def newest_journal(group):
    return max((group / "journal").glob("*.wal"))


def a_group_is_gone(log):
    shutil.rmtree(log / FIRST)


def a_small_group_is_gone(log):
    shutil.rmtree(log / SECOND)


def a_journal_has_other_bytes(log):
    shutil.copy(log / "node.toml", newest_journal(log / FIRST))


def no_journal_file_is_left(log):
    newest_journal(log / FIRST).unlink()


def a_journal_is_cut_in_its_header(log):
    harm.cut(newest_journal(log / FIRST), 3_000)


def a_journal_is_cut_behind_its_last_frame(log):
    last = harm.frames(log / FIRST)[-1]
    harm.cut(last.file, last.position)


def a_journal_is_of_another_group(log):
    shutil.copy(newest_journal(log / SECOND), newest_journal(log / FIRST))


def metadata_is_cut_in_its_header(log):
    harm.cut(newest_journal(log / METADATA), 3_000)
    (log / COPY_NAME).unlink()


def metadata_is_gone(log):
    shutil.rmtree(log / METADATA)
    (log / COPY_NAME).unlink()


HARMS = [
    a_group_is_gone,
    a_small_group_is_gone,
    a_journal_has_other_bytes,
    no_journal_file_is_left,
    a_journal_is_cut_in_its_header,
    a_journal_is_cut_behind_its_last_frame,
    a_journal_is_of_another_group,
    metadata_is_cut_in_its_header,
    metadata_is_gone,
]


@pytest.mark.parametrize("do", HARMS, ids=lambda one: one.__name__)
def test_what_cannot_be_counted_is_still_lost(killed, tmp_path, do):
    do(killed)
    found = examine(str(killed))
    assert found.damage
    assert not any(one.lost.startswith("nothing") for one in found.damage)
    account = salvage(str(killed), str(tmp_path / "new"))
    assert account.lost
    assert not account.is_whole


def test_the_account_counts_what_came_over(killed, tmp_path, counts):
    a_small_group_is_gone(killed)
    account = salvage(str(killed), str(tmp_path / "new"))
    assert account.lost == [f"{SECOND}: every row of 2 topics"]
    found = ids(tmp_path / "new")
    assert found[NOTES, 0] == found[LATE, 0] == []
    assert found[ROWS, 1] == list(range(counts[ROWS, 1]))


def test_what_is_behind_an_unreadable_journal_is_not_called_a_copy(killed):
    a_journal_is_cut_in_its_header(killed)
    (one,) = examine(str(killed)).damage
    assert one.kind == "journal-header"
    # How far `heads` had come when the node was killed, nobody decides.
    assert re.search(r"what followed op (78|79|8\d) is unknown", one.lost)


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_whole_log_is_whole(request, tmp_path, name, counts):
    log = request.getfixturevalue(name)
    account = salvage(str(log), str(tmp_path / "new"))
    assert account.is_whole
    assert account.notes == []
    assert ids(tmp_path / "new") == {key: list(range(count)) for key, count in counts.items()}


def test_a_topic_without_its_name_is_a_loss(killed, tmp_path):
    metadata_is_cut_in_its_header(killed)
    account: Account = salvage(str(killed), str(tmp_path / "new"))
    assert any("the name, the retention and the key" in said for said in account.lost)


def test_a_segment_whose_rows_still_prove_themselves_ends_no_salvage(stopped, tmp_path, counts):
    """Its one row group is whole, and its file is not: all rows come over."""
    path = min((stopped / FIRST / "segments").iterdir())
    harm.flip(path, path.read_bytes().rindex(b"parquet-cpp-arrow"), 1)
    (one,) = examine(str(stopped), deep=True).damage
    assert one.what.endswith("every row group can still be proven")
    account = salvage(str(stopped), str(tmp_path / "new"))
    assert account.is_whole
    assert ids(tmp_path / "new") == {key: list(range(count)) for key, count in counts.items()}


def test_a_newest_journal_file_without_a_header_is_told_once(log):
    harm.cut(newest_journal(log / harm.SHARD), 3_000)
    assert [one.kind for one in examine(str(log)).damage] == ["journal-header"]


def test_a_lost_segment_is_promised_only_if_entries_have_all_its_rows(log, tmp_path):
    """An older snapshot knows its first entries; those of the rest went with a journal file."""
    expected = harm.newest_segment_gone(log)
    older, newest = sorted(int(one.stem) for one in (log / harm.SHARD / "snapshots").iterdir())
    parsed = parse_name(Path(expected.file).name)
    assert parsed is not None
    between = [one for one in harm.frames(log / harm.SHARD) if older < one.header.op < newest]
    next(one for one in between if one.header.namespace == parsed[0]).file.unlink()
    (one,) = [each for each in examine(str(log)).damage if each.file == expected.file]
    assert "--salvage finds" not in one.lost
    assert salvage(str(log), str(tmp_path / "new")).missing_rows
