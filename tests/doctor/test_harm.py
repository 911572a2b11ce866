"""Each way to harm a log: what the doctor says of it, and what a salvage brings back."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.doctor import harm, logs
from tests.doctor.logs import Appended

from headrace.doctor.examine import Examination, examine
from headrace.doctor.findings.finding import Finding
from headrace.doctor.salvage.salvage import salvage
from headrace.doctor.salvage.salvage_report import Account, PartitionAccount

HARMS = list(harm.everything())


def found_in(examination: Examination, expected: harm.Expected) -> Finding:
    """Return the finding that names the kind and the file; fail with all there are."""
    for one in examination.findings:
        if (one.kind, one.file) == (expected.kind, expected.file):
            return one
    raise AssertionError([(one.severity, one.kind, one.where) for one in examination.findings])


@pytest.mark.parametrize("do", HARMS, ids=lambda one: one.__name__)
def test_the_doctor_names_the_file_the_place_and_the_rows(log, do):
    expected = do(log)
    examination = examine(str(log), deep=expected.deep)
    one = found_in(examination, expected)
    assert one.severity == expected.severity
    if expected.position is not None:
        assert one.position == expected.position
    assert one.first_op == expected.op
    lost = [(each.topic, each.partition, each.start, each.end) for each in one.lost_rows]
    assert sorted(lost) == sorted(expected.lost)
    assert one.what
    assert one.means
    assert bool(examination.damage) == (expected.severity == "damage")
    if expected.severity == "damage":
        assert one.next
    text = " ".join((one.what, one.means, one.lost, one.next)).lower()
    assert "delete" not in text


@pytest.mark.campaign(3)
@pytest.mark.parametrize("do", HARMS, ids=lambda one: one.__name__)
def test_a_salvage_brings_back_every_readable_row(log, tmp_path, appended, do):
    expected = do(log)
    account = salvage(str(log), str(tmp_path / "new"))
    check_rows(account, expected, appended, logs.read_tables(tmp_path / "new"))
    assert examine(str(tmp_path / "new")).findings == []  # every row was just read


def check_rows(account: Account, expected: harm.Expected, appended: Appended, new) -> None:
    """Compare the new log, row by row, with what was appended without what must be missing."""
    for one in account.partitions:
        key = (one.topic, one.partition)
        if key in expected.inexact:
            check_unsure(one, appended, new[key].to_pylist())
            continue
        gone = sorted((start, end) for *at, start, end in expected.gone if tuple(at) == key)
        assert [(each.start, each.end) for each in one.missing] == gone
        rows = appended.table(*key, new[key].schema)
        first, parts = rows["_offset"][0].as_py(), []
        start = first
        for hole_start, hole_end in [*gone, (first + len(rows), 0)]:
            parts.append(rows.slice(start - first, hole_start - start))
            start = hole_end
        check_kept(one, pa.concat_tables(parts), new[key])


def check_kept(one: PartitionAccount, kept: pa.Table, new: pa.Table) -> None:
    """The rows are the very ones, and the ranges say exactly which old row is which new one."""
    offsets = new["_offset"].to_pylist()
    assert offsets == list(range(len(kept)))
    values, expected = (each.drop_columns(["_offset"]) for each in (new, kept))
    assert values.combine_chunks().equals(expected.combine_chunks())
    mapped = [n for each in one.ranges for n in range(each.old_start, each.old_end)]
    assert mapped == kept["_offset"].to_pylist()
    assert [n for each in one.ranges for n in range(each.new_start, each.new_end)] == offsets
    assert all(each.exact for each in one.ranges)


def check_unsure(one: PartitionAccount, appended: Appended, new) -> None:
    """Where a lost entry hides its rows: all others are there, in order, and it is said."""
    values = [{k: v for k, v in row.items() if k != "_offset"} for row in new]
    rows = [
        {k: v for k, v in row.items() if k != "_offset"}
        for row in appended.kept(one.topic, one.partition)
    ]
    lost = len(rows) - len(values)
    assert lost >= 0
    cut = next((n for n, row in enumerate(values) if row != rows[n]), len(values))
    assert values == rows[:cut] + rows[cut + lost :]
    if lost:
        assert one.unsure_from == cut


def test_the_log_itself_is_healthy(healthy, appended):
    path, _ = healthy
    examination = examine(str(path), deep=True)
    assert examination.findings == []
    assert sum(one.segments for one in examination.groups) >= 3
    assert sum(one.carry_files for one in examination.groups) >= 1
    assert Path(path, "groups", "00001", "journal").is_dir()
