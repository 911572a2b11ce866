"""A pipeline goes on elsewhere in one commit, and the proof knows what became of the rows."""

from contextlib import closing

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from tests.cli.terminal import Terminal
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, ids, run, table_of
from tests.spark.test_pipeline_status import a_file, a_report, told
from tests.spark.test_prove import prove, recomputed

from headrace.spark.pipeline import driver_reports
from headrace.spark.pipeline.definition import load
from headrace.spark.pipeline.pipeline import (
    OFFSET,
    PARTITION,
    Pipeline,
    TableAhead,
    TableBehind,
    opened,
)
from headrace.spark.pipeline.table_reset import carry_out, planned
from headrace.spark.source_options import parse
from headrace.spark.tables import table_features
from headrace.spark.tables.table_record import LogSource, TablePlace, create, look
from headrace.spark.topic_source import TopicSource


@pytest.fixture
def filled(spark, tmp_path, topic):
    """A table with rows 0 to 99, from both partitions."""
    topic.append(rows(0, 60), partition=0)
    topic.append(rows(60, 100), partition=1)
    run(spark, a_definition(tmp_path))
    return tmp_path / "table"


def append_foreign(table, *numbers):
    schema = DeltaTable(str(table)).to_pyarrow_table().schema
    none = [None] * len(numbers)
    extra = {"id": list(numbers), "name": none, PARTITION: none, OFFSET: none}
    write_deltalake(str(table), pa.table(extra, schema=schema), mode="append")


def a_record(pipeline):
    return look(pipeline.definition.table, pipeline.source)


def test_a_truncated_table_is_filled_again_and_proven(spark, tmp_path, topic, filled):
    found = told("reset", a_file(tmp_path), "--truncate", "--yes")
    assert (found["changed"], found["version"]) == (True, 2)
    assert (found["deleted"], found["again"], found["gone"], found["skipped"]) == (
        100,
        100,
        0,
        0,
    )
    assert ids(tmp_path) == []
    assert sum(each.lag for each in topic.cursors("pipeline.orders")) == 100
    assert {each.hold for each in topic.cursors("pipeline.orders")} == {True}
    assert prove(tmp_path)[1]["in_table"] == 0
    assert recomputed(spark, a_file(tmp_path)).in_log == 0
    assert [each.row_count for each in run(spark, a_definition(tmp_path))] == [100]
    assert ids(tmp_path) == list(range(100))
    assert prove(tmp_path)[0] == 0


def test_rows_of_others_stay_even_in_a_file_with_ours(spark, tmp_path, filled):
    append_foreign(filled, 1_000, 1_001)
    DeltaTable(str(filled)).optimize.compact()  # now one file has both
    append_foreign(filled, 1_002)
    found = told("reset", a_file(tmp_path), "--truncate", "--yes")
    assert (found["deleted"], found["kept"]) == (100, 3)
    assert ids(tmp_path) == [1_000, 1_001, 1_002]
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == [*range(100), 1_000, 1_001, 1_002]
    assert (prove(tmp_path)[0], prove(tmp_path, "--own-only")[0]) == (6, 0)


def test_a_table_without_lineage_is_emptied_whole(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    changes = {"sql": "select id, name from source", "lineage": False}
    run(spark, a_definition(tmp_path, **changes))
    with opened(spark, a_definition(tmp_path, **changes)) as pipeline:
        plan = planned(
            a_record(pipeline), pipeline.topic_source.bounds(), {0: 0, 1: 0}, truncate=True
        )
        assert (plan.deleted, plan.kept) == (10, 0)
        assert carry_out(a_record(pipeline), plan)
        list(pipeline.run(once=True))
    assert ids(tmp_path) == list(range(10))


def test_going_back_over_rows_that_stay_is_refused(tmp_path, filled):
    said = told("reset", a_file(tmp_path), "--to", "earliest", "--yes", code=2)
    assert (
        "rows 0 to 59 of partition 0 are already in the table and would be duplicated" in said
    )
    assert "--truncate" in said
    assert DeltaTable(str(filled)).version() == 1


def test_rows_that_are_skipped_are_never_called_equal(spark, tmp_path, topic, filled):
    topic.append(rows(100, 130), partition=0)
    found = told("reset", a_file(tmp_path), "--to", "latest", "--yes")
    assert (found["skipped"], found["deleted"]) == (30, 0)
    topic.append(rows(130, 140), partition=0)
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == [*range(100), *range(130, 140)]
    code, proof = prove(tmp_path)
    assert (code, proof["holds"], proof["skipped"], proof["missing"]) == (7, False, 30, 0)
    assert (proof["compared"], proof["in_table"]) == (110, 110)
    table = DeltaTable(str(filled))
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    assert prove(tmp_path)[1]["skipped"] == 30
    again = recomputed(spark, a_file(tmp_path))
    assert (again.skipped, again.is_wrong, again.holds) == (30, False, False)
    table.delete("id = 135")
    assert prove(tmp_path)[0] == 6


def test_a_table_that_is_truncated_to_the_end_says_what_it_lacks(
    spark, tmp_path, topic, filled
):
    topic.trim(20, partition=0, past_hold=True)
    found = told("reset", a_file(tmp_path), "--truncate", "--to", "latest", "--yes")
    assert (found["deleted"], found["gone"], found["again"]) == (100, 100, 0)
    code, proof = prove(tmp_path)
    assert (code, proof["holds"], proof["skipped"]) == (7, False, 80)  # the log has no more
    topic.append(rows(100, 110), partition=0)
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(100, 110))
    code, proof = prove(tmp_path)
    assert (code, proof["skipped"], proof["in_table"], proof["missing"]) == (7, 80, 10, 0)
    told("reset", a_file(tmp_path), "--truncate", "--yes")
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(20, 110))
    assert prove(tmp_path)[0] == 0  # all that the log has came again


def test_a_new_table_that_is_moved_on_says_what_it_lacks(spark, tmp_path, topic):
    run(spark, a_definition(tmp_path))  # the table is made, and empty
    topic.append(rows(0, 60), partition=0)
    assert told("reset", a_file(tmp_path), "--to", "latest", "--yes")["skipped"] == 60
    topic.append(rows(60, 70), partition=0)
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(60, 70))
    code, proof = prove(tmp_path)
    assert (code, proof["holds"], proof["skipped"], proof["compared"]) == (7, False, 60, 10)
    assert recomputed(spark, a_file(tmp_path)).skipped == 60


def test_a_pipeline_whose_rows_were_trimmed_goes_on_without_them(
    spark, tmp_path, topic, filled
):
    topic.append(rows(100, 130), partition=0)
    topic.trim(70, partition=0, past_hold=True)
    with pytest.raises(TableBehind, match=r"""reset FILE --to '{"0": 70}'"""):
        run(spark, a_definition(tmp_path))
    assert told("reset", a_file(tmp_path), "--to", '{"0": 70}', "--yes")["skipped"] == 10
    run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == [*range(100), *range(110, 130)]
    code, found = prove(tmp_path)
    assert (code, found["skipped"], found["not_compared"]) == (7, 10, 60)


def test_a_row_in_a_skipped_range_is_foreign(tmp_path, topic, filled):
    topic.append(rows(100, 130), partition=0)
    told("reset", a_file(tmp_path), "--to", "latest", "--yes")
    schema = table_of(tmp_path).schema
    extra = {"id": [70], "name": ["x"], PARTITION: [0], OFFSET: [70]}
    write_deltalake(str(filled), pa.table(extra, schema=schema), mode="append")
    code, found = prove(tmp_path)
    assert (code, found["foreign"], found["findings"][0]["start"]) == (6, 1, 70)


def test_skips_that_follow_one_another_are_one(spark, tmp_path, topic, filled):
    with opened(spark, load(a_file(tmp_path))) as pipeline:
        for end in (70, 80):
            topic.append(rows(0, 10), partition=0)
            bounds = pipeline.topic_source.bounds()
            places = {n: each.end for n, each in bounds.items()}
            assert carry_out(
                a_record(pipeline),
                planned(a_record(pipeline), bounds, places, truncate=False),
            )
            assert a_record(pipeline).skips == {0: [(60, end)], 1: []}
        topic.append(rows(0, 10), partition=0)
        pipeline.round()
        topic.append(rows(0, 10), partition=0)
        bounds = pipeline.topic_source.bounds()
        places = {n: each.end for n, each in bounds.items()}
        plan = planned(a_record(pipeline), bounds, places, truncate=False)
        assert carry_out(a_record(pipeline), plan)
        assert a_record(pipeline).skips[0] == [(60, 80), (90, 100)]
        assert a_record(pipeline).ranges(0) == [(0, 60), (80, 90)]


def test_a_driver_that_is_about_to_commit_loses_to_a_reset(spark, tmp_path, topic, filled):
    topic.append(rows(100, 130), partition=0)
    with opened(spark, a_definition(tmp_path)) as pipeline:

        def on_step(step):
            if step == "after files":
                pipeline.on_step = lambda step: None
                bounds = pipeline.topic_source.bounds()
                record = a_record(pipeline)
                plan = planned(record, bounds, {0: 0, 1: 0}, truncate=True)
                assert carry_out(record, plan)

        pipeline.on_step = on_step
        assert pipeline.round() is None
        assert pipeline.lost == 1
        list(pipeline.run(once=True))
    assert ids(tmp_path) == list(range(130))
    assert prove(tmp_path)[0] == 0


def test_a_reset_that_somebody_overtakes_changes_nothing(spark, tmp_path, filled):
    with opened(spark, a_definition(tmp_path)) as pipeline:
        record = a_record(pipeline)
        plan = planned(record, pipeline.topic_source.bounds(), {0: 0, 1: 0}, truncate=True)
        append_foreign(filled, 1_000)
        assert not carry_out(record, plan)
    assert ids(tmp_path) == [*range(100), 1_000]


def test_a_reset_while_it_runs_is_refused(tmp_path, log, filled):
    driver_reports.tell(driver_reports.make(log), a_report(host="far", pid=7))
    said = told("reset", a_file(tmp_path), "--truncate", "--yes", code=2)
    assert "orders runs on far, process 7" in said
    assert "headrace pipeline stop orders" in said


def test_the_name_is_asked_for(tmp_path, filled):
    said = told("reset", a_file(tmp_path), "--truncate", code=1)
    assert "pipeline orders was not reset" in said
    for typed, code in (("others", 1), ("orders", 0)):
        with Terminal("pipeline", "reset", str(a_file(tmp_path)), "--truncate") as terminal:
            terminal.read_until("Type its name to continue", 60)
            terminal.press(f"{typed}\n")
            assert terminal.wait() == code
    assert DeltaTable(str(filled)).version() == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no position is given"),
        (("--to", "soon"), "'soon' is not a valid position"),
        (("--to", '{"0": 61}'), "partition 0 cannot resume at offset 61"),
        (("--to", '{"7": 1}'), "has no partition 7"),
    ],
)
def test_a_place_that_cannot_be_is_told(tmp_path, filled, words, said):
    assert said in told("reset", a_file(tmp_path), *words, "--yes", code=2)


def test_what_would_happen_is_told_and_not_done(tmp_path, topic, filled):
    topic.trim(20, partition=0, past_hold=True)
    found = told("reset", a_file(tmp_path), "--truncate", "--dry-run")
    assert (found["changed"], found["deleted"]) == (False, 100)
    assert (found["again"], found["gone"]) == (80, 20)  # the log has 20 no more
    assert ids(tmp_path) == list(range(100))
    found = told("reset", a_file(tmp_path), "--to", '{"1": 40}', "--yes")
    assert (found["changed"], found["version"]) == (False, 1)  # it is there already


def test_a_lost_record_of_skips_is_told(spark, tmp_path, filled):
    with opened(spark, a_definition(tmp_path)) as pipeline:
        record = a_record(pipeline)
        record._commit([], [], {record.source.of("0:skips"): 1})
        with pytest.raises(Exception, match="does not record which rows of partition 0"):
            a_record(pipeline)
        assert record.restart([], [], TablePlace({0: 0, 1: 0}, {0: 0, 1: 0}, {}))
        assert a_record(pipeline).skips == {0: [], 1: []}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_table_that_takes_no_commit_is_no_lost_race_and_its_rows_stay_held(
    tmp_path, topic, monkeypatch, is_known
):
    if not is_known:  # deltalake alone says no, at the commit
        monkeypatch.setattr(table_features, "_features", lambda protocol: iter(()))
    topic.append(rows(0, 10), partition=0)
    source, table = LogSource.reading("orders", topic), str(tmp_path / "table")
    record = create(table, source, pa.schema([("id", pa.int64())]))
    assert record.commit([], {0: 0, 1: 0}, {0: 4, 1: 0})
    DeltaTable(table).alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    )
    said = told("reset", a_file(tmp_path), "--truncate", "--yes", code=2)
    words = (
        "has rowTracking, which" if is_known else "rejects the commit: Unsupported table feat"
    )
    assert f"the table at {table} {words}" in said
    held = [each.next for each in topic.cursors("pipeline.orders")]
    assert held == ([] if is_known else [4, 0])  # nothing was begun, or it was taken back


class TestVanished:
    """The log was put back from a copy that is older than a partition in the table."""

    @pytest.fixture
    def record(self, tmp_path, topic):
        """A table that has brought rows of three partitions; the topic has two."""
        topic.append(rows(0, 10), partition=0)
        source = LogSource.reading("orders", topic)
        record = create(str(tmp_path / "table"), source, pa.schema([("id", pa.int64())]))
        place = TablePlace({0: 0, 1: 0, 2: 0}, {0: 4, 1: 0, 2: 7}, {2: [(3, 5)]})
        assert record.restart([], [], place)
        return look(str(tmp_path / "table"), source)

    def bounds_of(self, topic):
        return {each.partition: each for each in topic.bounds()}

    def test_a_round_is_refused_with_the_way_out(self, tmp_path, topic, record):
        definition = a_definition(tmp_path)
        with closing(TopicSource(parse(definition.options), "30s")) as topic_source:
            pipeline = Pipeline(None, definition, topic_source, lambda frame: frame)
            with pytest.raises(TableAhead) as caught:
                pipeline._choose(record)
        said = (
            "the table has rows of partition 2 up to 7, but the log of shop/orders has 2 partit"
        )
        assert str(caught.value).startswith(said)
        assert "headrace pipeline reset FILE --truncate" in caught.value.hint

    def test_a_reset_forward_is_refused_too(self, topic, record):
        with pytest.raises(TableAhead, match="has 2 partitions, numbered from 0"):
            planned(record, self.bounds_of(topic), {0: 10, 1: 0}, truncate=False)
        with pytest.raises(AssertionError):
            record.commit([], {0: 4, 1: 0}, {0: 10, 1: 0})

    def test_a_truncated_table_begins_anew_and_knows_nothing_of_it(self, topic, record):
        plan = planned(record, self.bounds_of(topic), {0: 0, 1: 0}, truncate=True)
        assert (plan.again, plan.gone) == (4, 5)
        assert carry_out(record, plan)
        after = look(record.table.table_uri, record.source)
        assert (after.ends, after.skips) == ({0: 0, 1: 0}, {0: [], 1: []})
        assert after.commit([], {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 9})  # it was made again
        after = look(record.table.table_uri, record.source)
        assert (after.ends[2], after.skips[2], after.ranges(2)) == (9, [], [(0, 9)])


def test_a_log_that_ends_before_the_table_is_left_by_a_truncation(tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    source, definition = LogSource.reading("orders", topic), a_definition(tmp_path)
    record = create(definition.table, source, pa.schema([("id", pa.int64())]))
    assert record.commit([], {0: 0, 1: 0}, {0: 99, 1: 0})
    record = look(definition.table, source)
    with closing(TopicSource(parse(definition.options), "30s")) as topic_source:
        pipeline = Pipeline(None, definition, topic_source, lambda frame: frame)
        with pytest.raises(TableAhead) as caught:
            pipeline._choose(record)
        assert "headrace pipeline reset FILE --truncate" in caught.value.hint
        told("reset", a_file(tmp_path), "--truncate", "--yes")
        record = look(definition.table, source)
        assert pipeline._choose(record) == ({0: 0, 1: 0}, {0: 10, 1: 0})
