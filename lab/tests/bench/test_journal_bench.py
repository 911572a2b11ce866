"""The benches of the journal run at the smallest size. Nothing here is timed."""

import json

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace_lab.bench.cases import journal, recovery
from headrace_lab.bench.frame import Case

LOADS = (
    "1 MiB entries one by one",
    "64 KiB entries, 16 in flight",
    "1 KiB entries one by one",
    "1 KiB entries, 64 in flight",
)
REFERENCES = ("growing file", "recycled file", "SQLite")
FIELDS = {"name", "ours", "unit", "reference", "reference_value", "ratio", "spread"}


def run(bench, data):
    """Run a bench through its command, as small as it gets."""
    options = ["--json", "--rounds", "1", "--scale", "0", "--data", str(data)]
    result = CliRunner().invoke(app, ["bench", bench, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def check_figures(printed, bench):
    assert set(printed) == {"bench", "cases"}
    assert printed["bench"] == bench
    for case in printed["cases"]:
        assert set(case) == FIELDS
        assert case["unit"] == "MiB/s"
        assert case["ours"] > 0
        assert case["reference_value"] > 0
        assert case["ratio"] == pytest.approx(case["ours"] / case["reference_value"])


def floors(cases: list[Case]):
    return {case.name: case.floor for case in cases if case.floor is not None}


def test_the_journal_bench_measures_each_load_beside_each_reference(tmp_path):
    printed = run("journal", tmp_path)
    check_figures(printed, "journal")
    names = [case["name"] for case in printed["cases"]]
    assert names == [f"{load}, {reference}" for load in LOADS for reference in REFERENCES]
    assert list(tmp_path.iterdir()) == []


def test_the_recovery_bench_measures_both_sizes(tmp_path, monkeypatch):
    can_drop, told = recovery.can_drop_cache, []

    def heard(directory):
        """A kernel may say one thing to the bench and another to a test that asks again."""
        told.append(can_drop(directory))
        return told[-1]

    monkeypatch.setattr(recovery, "can_drop_cache", heard)
    printed = run("recovery", tmp_path)
    check_figures(printed, "recovery")
    kinds = ("warm", "cold") if told == [True] else ("warm",)
    names = [case["name"] for case in printed["cases"]]
    assert names == [f"{size} entries, {kind}" for size in ("1 MiB", "1 KiB") for kind in kinds]
    assert len(told) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_floors_are_those_of_the_design(tmp_path):
    assert floors(journal.cases(tmp_path, 1.0)) == {
        "1 MiB entries one by one, growing file": 0.8,
        "1 MiB entries one by one, recycled file": 0.6,
        "64 KiB entries, 16 in flight, growing file": 0.7,
    }
    found = floors(recovery.cases(tmp_path, 1.0))
    assert found.pop("1 MiB entries, warm") == 0.5
    assert found in ({}, {"1 MiB entries, cold": 0.5})


def test_without_a_cache_to_drop_there_is_no_cold_case(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "can_drop_cache", lambda directory: False)
    names = [case.name for case in recovery.cases(tmp_path, 0.0)]
    assert names == ["1 MiB entries, warm", "1 KiB entries, warm"]


def test_with_a_cache_to_drop_each_load_is_measured_cold_too(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "can_drop_cache", lambda directory: True)
    names = [case.name for case in recovery.cases(tmp_path, 0.0)]
    assert names == [
        "1 MiB entries, warm",
        "1 MiB entries, cold",
        "1 KiB entries, warm",
        "1 KiB entries, cold",
    ]


def test_one_page_that_stays_does_not_say_that_the_cache_cannot_be_dropped(
    tmp_path, monkeypatch
):
    answers = iter([False, False, True])
    monkeypatch.setattr(recovery, "_is_cold_now", lambda probe: next(answers))
    assert recovery.can_drop_cache(tmp_path)


def test_a_cache_that_never_lets_go_cannot_be_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "_is_cold_now", lambda probe: False)
    assert not recovery.can_drop_cache(tmp_path)


def test_a_load_at_a_scale_keeps_the_size_of_its_groups():
    load = journal.JournalLoad("x", body_size=100, entry_count=4, group_count=50)
    assert load.at(0.1) == journal.JournalLoad("x", body_size=100, entry_count=4, group_count=5)
    assert load.group_size == 400
    assert [len(body) for body in load.bodies()] == [100] * 4
