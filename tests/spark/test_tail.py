"""Small files of the tail are replaced by the segment that has their rows, and only then."""

import json
from collections import Counter
from contextlib import nullcontext

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import seal_all
from tests.spark.test_pipeline import a_definition, ids, run, table_of
from tests.spark.test_prove import prove
from tests.spark.test_segment_copy import digests, files_of, places_of, segments_of

from headrace.client.read.lease import LeasedFile, LeasedPartition
from headrace.spark.pipeline.pipeline import Pipeline, opened
from headrace.spark.pipeline.sealed_rows import SealedRows
from headrace.spark.pipeline.tail import replacements, segment_places
from headrace.spark.tables.data_files import FilePlace, LiveFile, live_files
from headrace.spark.worker.files import PREFIX


def in_small_files(spark, tmp_path, topic, start, end, step=10, **changes):
    """Load rows in rounds of `step`, each of which leaves a file."""
    for first in range(start, end, step):
        topic.append(rows(first, min(first + step, end)), partition=0)
        run(spark, a_definition(tmp_path, **changes))


def replaced(spark, tmp_path, **changes):
    with opened(spark, a_definition(tmp_path, **changes)) as pipeline:
        return pipeline.compact(files_min=1_000)


def whole(tmp_path, count):
    found = table_of(tmp_path)
    assert places_of(found) == Counter((0, number) for number in range(count))
    assert sorted(found["id"].to_pylist()) == list(range(count))
    assert prove(tmp_path)[0] == 0


def test_the_segment_takes_the_place_of_its_rows_files(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 60)
    assert replaced(spark, tmp_path) == 0  # nothing is sealed
    seal_all(tmp_path / "data")
    assert replaced(spark, tmp_path) == 6
    assert digests(files_of(tmp_path)) == digests(segments_of(topic))
    whole(tmp_path, 60)
    assert replaced(spark, tmp_path) == 0
    entry = DeltaTable(str(tmp_path / "table")).history(1)[0]
    assert entry["headrace"] == "headrace:orders"
    assert not table_changes(tmp_path)


def table_changes(tmp_path):
    """Return whether the newest entry of the table's log says that rows changed."""
    newest = max((tmp_path / "table" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    files = [one[kind] for one in actions for kind in ("add", "remove") if kind in one]
    assert files
    return any(one["dataChange"] for one in files)


def test_what_is_left_of_a_file_that_reaches_further_is_written_again(
    spark, tmp_path, topic, monkeypatch
):
    in_small_files(spark, tmp_path, topic, 0, 40)
    topic.append(rows(40, 45), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(45, 50), partition=0)
    # Both in one file, of which the segment has the first half.
    with monkeypatch.context() as without, opened(spark, a_definition(tmp_path)) as pipeline:
        without.setattr(Pipeline, "_sealed", lambda *_, **__: nullcontext(SealedRows()))
        assert pipeline.round().file_count == 1
    assert replaced(spark, tmp_path) == 5
    assert len(files_of(tmp_path)) == len(segments_of(topic)) + 1
    whole(tmp_path, 50)


def test_files_that_were_put_together_are_replaced_too(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 40)
    with opened(spark, a_definition(tmp_path)) as pipeline:
        assert pipeline.compact(files_min=8) == 4
    in_small_files(spark, tmp_path, topic, 40, 60)
    seal_all(tmp_path / "data")
    assert replaced(spark, tmp_path) == 3
    assert digests(files_of(tmp_path)) == digests(segments_of(topic))
    whole(tmp_path, 60)


def test_rows_that_others_deleted_do_not_come_back(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 60)
    DeltaTable(str(tmp_path / "table")).delete("id = 17")
    seal_all(tmp_path / "data")
    assert replaced(spark, tmp_path) == 0
    assert ids(tmp_path) == [number for number in range(60) if number != 17]


def test_rows_that_a_transform_wrote_are_not_replaced(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 30, sql="select * from source")
    in_small_files(spark, tmp_path, topic, 30, 60)
    seal_all(tmp_path / "data")
    assert replaced(spark, tmp_path) == 0
    whole(tmp_path, 60)


def test_rows_of_a_transform_are_not_replaced_after_they_were_put_together(
    spark, tmp_path, topic
):
    in_small_files(spark, tmp_path, topic, 0, 20, sql="select * from source")
    in_small_files(spark, tmp_path, topic, 20, 40)
    with opened(spark, a_definition(tmp_path)) as pipeline:
        assert pipeline.compact(files_min=4) == 4
    in_small_files(spark, tmp_path, topic, 40, 60)
    seal_all(tmp_path / "data")
    assert replaced(spark, tmp_path) == 0
    whole(tmp_path, 60)


def test_a_delete_between_the_look_and_the_commit_wins(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 60)
    seal_all(tmp_path / "data")

    def delete(step):
        if step == "after replacements":
            DeltaTable(str(tmp_path / "table")).delete("id = 17")

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = delete
        assert pipeline.compact(files_min=1_000) == 0
    assert ids(tmp_path) == [number for number in range(60) if number != 17]


def test_an_append_of_others_meanwhile_does_not_matter(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 60)
    seal_all(tmp_path / "data")

    def append(step):
        if step == "after replacements":
            more = table_of(tmp_path).slice(0, 1).drop_columns("id")
            more = more.append_column("id", pa.array([900]))
            write_deltalake(str(tmp_path / "table"), more, mode="append")

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = append
        assert pipeline.compact(files_min=1_000) == 6
    assert 900 in ids(tmp_path)
    assert len(ids(tmp_path)) == 61


def test_a_column_that_the_table_lacks_is_waited_for(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 30)
    seal_all(tmp_path / "data")
    topic.evolve({**SCHEMA, "price": "float64"})
    assert replaced(spark, tmp_path) == 0
    topic.append([{"id": 30, "name": "n30", "price": 1.0}], partition=0)
    run(spark, a_definition(tmp_path))  # which looks for small files, too
    assert len(files_of(tmp_path)) == 2
    assert set(digests(segments_of(topic))) < set(digests(files_of(tmp_path)))
    whole(tmp_path, 31)


def test_segments_are_not_put_together_by_rows(spark, tmp_path, topic):
    for start in range(0, 40, 10):
        topic.append(rows(start, start + 10), partition=0)
        seal_all(tmp_path / "data")
    run(spark, a_definition(tmp_path))
    with opened(spark, a_definition(tmp_path)) as pipeline:
        assert pipeline.compact(files_min=2) == 0
    assert digests(files_of(tmp_path)) == digests(segments_of(topic))


def test_what_runs_at_once_replaces_its_tail_by_itself(spark, tmp_path, topic):
    for start in range(40):
        topic.append(rows(start, start + 1), partition=0)
    with opened(spark, a_definition(tmp_path, batch_rows=1)) as pipeline:
        for count, _ in enumerate(pipeline.run(once=True), 1):
            if count == 20:
                seal_all(tmp_path / "data")
    assert len(files_of(tmp_path)) < 25
    whole(tmp_path, 40)


CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@given(CUTS, CUTS, st.sets(st.integers(0, 7)), st.integers(0, 20))
def test_what_goes_and_what_comes_have_the_same_rows(sizes, sealed, gone, first):
    """Files with gaps, segments over them, and rows that the log has trimmed."""
    files, place = [], 0
    for number, size in enumerate(sizes):
        if number not in gone:
            name = f"{PREFIX}orders-0-{number:032x}.parquet"
            files.append(LiveFile(name, size, size, FilePlace(0, place, place + size)))
        place += size
    segments, end = [], 0
    for size in sealed:
        segments.append(LeasedFile(f"s{end}", end, end + size, 1, size, b"", b"digest"))
        end += size
    top = max(place, end)
    log = LeasedPartition(0, 1, 1, min(first, top), end, top, tuple(segments))
    taken = set()
    for one in replacements(files, [log]):
        assert taken.isdisjoint(one.files)
        taken |= set(one.files)
        old = Counter(n for file in one.files for n in range(file.place.start, file.place.end))
        covered = [(file.start, file.end) for file in one.segments]
        edges = [(one.start, covered[0][0]), (covered[-1][1], one.end)]
        new = Counter(n for start, stop in [*covered, *edges] for n in range(start, stop))
        assert old == new
        assert set(new.values()) == {1}
        assert min(new) >= log.first
        assert len(one.files) > len(one.segments)
        assert not {file.place for file in one.files} & segment_places([log])


@pytest.mark.usefixtures("topic")
def test_places_are_known_from_statistics(spark, tmp_path, topic):
    in_small_files(spark, tmp_path, topic, 0, 20)
    found = live_files(DeltaTable(str(tmp_path / "table")))
    assert {one.place for one in found} == {FilePlace(0, 0, 10), FilePlace(0, 10, 20)}
