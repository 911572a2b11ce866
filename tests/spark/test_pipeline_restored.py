"""A pipeline whose table was restored stops, and goes on by either way that it names."""

import pytest
from deltalake import DeltaTable
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, ids, run
from tests.spark.test_pipeline_reset import append_foreign
from tests.spark.test_pipeline_status import a_file, told
from tests.spark.test_prove import prove

from headrace.spark.pipeline.pipeline import opened
from headrace.spark.tables.table_errors import TableRestored

ANEW = "load its rows again: headrace pipeline reset FILE --truncate"


@pytest.fixture
def filled(spark, tmp_path, topic):
    """A table with rows 0 to 99 of partition 0, half of them in each of two versions."""
    topic.append(rows(0, 100), partition=0)
    run(spark, a_definition(tmp_path, batch_rows=50))
    return DeltaTable(str(tmp_path / "table"))


@pytest.fixture
def restored(filled, topic):
    """The same, restored to its version 1; there are rows to come, too."""
    filled.restore(1)
    topic.append(rows(100, 110), partition=0)
    return filled


def the_sentence(tmp_path):
    return (
        f"version 3 of the table at {tmp_path / 'table'} restored an older version, so the "
        "rows are not those that the table records. Two ways out: restore version 2 and "
        f"continue, or {ANEW}"
    )


def test_a_restored_table_stops_it_until_that_is_undone(spark, tmp_path, restored):
    append_foreign(tmp_path / "table", 1_000)
    with pytest.raises(TableRestored) as caught:
        run(spark, a_definition(tmp_path))
    assert str(caught.value) == the_sentence(tmp_path)
    assert ids(tmp_path) == [*range(50), 1_000]
    DeltaTable(str(tmp_path / "table")).restore(2)
    assert [each.row_count for each in run(spark, a_definition(tmp_path))] == [10]
    assert ids(tmp_path) == list(range(110))
    assert prove(tmp_path)[0] == 0


def test_a_truncation_brings_its_rows_again_and_other_resets_are_refused(
    spark, tmp_path, restored
):
    append_foreign(tmp_path / "table", 1_000)
    said = told("reset", a_file(tmp_path), "--to", "latest", "--yes", code=2)
    assert the_sentence(tmp_path) in " ".join(said.split())
    found = told("reset", a_file(tmp_path), "--truncate", "--yes")
    assert (found["changed"], found["deleted"], found["kept"]) == (True, 50, 1)
    assert (found["again"], found["gone"], found["version"]) == (100, 0, 5)
    assert [each.row_count for each in run(spark, a_definition(tmp_path))] == [110]
    assert ids(tmp_path) == [*range(110), 1_000]
    assert prove(tmp_path, "--own-only")[0] == 0


def test_it_is_checked_shown_and_proven_as_it_is(spark, tmp_path, topic, restored):
    with (
        opened(spark, a_definition(tmp_path)) as pipeline,
        pytest.raises(
            TableRestored, match=r"version 3 of .* older version, so the rows are not those"
        ),
    ):
        pipeline.check()
    with pytest.raises(TableRestored):
        run(spark, a_definition(tmp_path))
    status = told("status", a_file(tmp_path))
    assert (status["version"], status["ends"], status["lag"]) == (3, {"0": 100, "1": 0}, 10)
    assert status["report"]["state"] == "failed"
    assert status["report"]["note"].startswith(f"TableRestored: {the_sentence(tmp_path)[:80]}")
    code, proof = prove(tmp_path)
    assert (code, proof["missing"], proof["in_table"]) == (6, 50, 50)
    place = {"partition": 0, "start": 50, "end": 100}
    assert proof["findings"] == [{"kind": "missing", **place, "note": ""}]
    assert [each.next for each in topic.cursors("pipeline.orders")] == [100, 0]


@pytest.mark.parametrize("step", ["before files", "after files"])
def test_a_round_that_loses_to_a_restore_says_so(spark, tmp_path, topic, filled, step):
    topic.append(rows(100, 110), partition=0)
    with opened(spark, a_definition(tmp_path)) as pipeline:

        def restore(now):
            if now == step:
                DeltaTable(filled.table_uri).restore(1)

        pipeline.on_step = restore
        for act in (pipeline.round, pipeline.round, pipeline.compact):
            with pytest.raises(
                TableRestored, match=r"version [0-9]+ of the table at .* restored an older"
            ):
                act()
    assert ids(tmp_path) == list(range(50))


def test_a_driver_that_waits_for_rows_reads_what_others_commit_once(spark, tmp_path, filled):
    with opened(spark, a_definition(tmp_path)) as pipeline:
        append_foreign(tmp_path / "table", 1_000)
        assert pipeline.round() is None
        DeltaTable(filled.table_uri).create_checkpoint()
        (tmp_path / "table" / "_delta_log" / f"{3:020}.json").write_text("rot\n")
        assert pipeline.round() is None


def test_a_reset_that_was_taken_back_brings_no_row_twice(spark, tmp_path, filled):
    told("reset", a_file(tmp_path), "--truncate", "--yes")
    DeltaTable(filled.table_uri).restore(2)  # has rows that the table does not record
    with pytest.raises(TableRestored, match="restore version 3 and continue"):
        run(spark, a_definition(tmp_path))
    assert told("reset", a_file(tmp_path), "--truncate", "--yes")["deleted"] == 100
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(100))
    assert prove(tmp_path)[0] == 0


def test_a_table_that_was_restored_to_nothing_is_truncated_though_it_has_no_file(
    spark, tmp_path, topic, filled
):
    filled.restore(0)
    found = told("reset", a_file(tmp_path), "--truncate", "--to", "latest", "--yes")
    assert (found["changed"], found["deleted"], found["gone"]) == (True, 0, 100)
    topic.append(rows(100, 110), partition=0)
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(100, 110))
    code, proof = prove(tmp_path)
    assert (code, proof["skipped"], proof["missing"]) == (7, 100, 0)
