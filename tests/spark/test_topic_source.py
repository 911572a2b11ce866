"""What the driver asks of a topic before it goes on. No Spark."""

import json
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.spark.conftest import SCHEMA, rows

from headrace.errors import BadConfig
from headrace.model.ids import is_once
from headrace.spark.sink.data_sink import BatchWriter
from headrace.spark.source.data_source import BatchReader, StreamReader, spark_schema
from headrace.spark.source_options import parse
from headrace.spark.topic_source import (
    CheckpointAhead,
    LogReplaced,
    RowsLost,
    TopicRecreated,
    TopicSource,
)
from headrace.wire.write_messages import writer_of


@pytest.fixture
def topic_source(tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    options = parse({"topic": "shop/orders", "path": str(tmp_path / "data")})
    with closing(TopicSource(options, "30s")) as topic_source:
        yield topic_source


def test_places_up_to_the_end_are_taken_and_a_new_partition_begins_with_0(topic_source):
    assert topic_source.check(topic_source.offsets({0: 10})) == {0: 10, 1: 0}
    assert topic_source.check(topic_source.offsets({0: 4, 1: 0})) == {0: 4, 1: 0}


@pytest.mark.parametrize(("number", "place", "end"), [(0, 11, 10), (1, 1, 0)])
def test_a_place_that_the_log_does_not_reach_is_named(topic_source, number, place, end):
    text = f"at row {place} of partition {number}, but the log of shop/orders ends at {end}"
    with pytest.raises(CheckpointAhead, match=text):
        topic_source.check(topic_source.offsets({number: place}))


def test_places_in_another_log_are_refused_though_all_their_numbers_fit(topic_source):
    places = replace(topic_source.offsets({0: 4}), cluster="5f" * 16)
    with pytest.raises(
        LogReplaced, match=f"to log {'5f' * 16}, but .* is now log {'[0-9a-f]' * 32}"
    ):
        topic_source.check(places)


def test_a_partition_that_the_log_does_not_have_is_named(topic_source):
    text = (
        "at row 7 of partition 3, but the log of shop/orders has 2 partitions, numbered from 0"
    )
    with pytest.raises(CheckpointAhead, match=text):
        topic_source.check(topic_source.offsets({0: 4, 1: 0, 3: 7}))
    with pytest.raises(CheckpointAhead, match=text) as caught:
        topic_source.spans({0: (0, 4), 3: (2, 7)}, topic_source.schema(), topic_source.version)
    assert "start with a new checkpointLocation" in caught.value.hint


def batch(tmp_path, topic_source, **options):
    """Return the ranges that a batch with such options reads: partition, start, end."""
    given = {"topic": "shop/orders", "path": str(tmp_path / "data"), **options}
    reader = BatchReader(given, spark_schema(topic_source.schema()))
    with closing(reader._topic_source):
        found = [task.span for task in reader.partitions()]
        return [(span.partition, span.start, span.end) for span in found]


@pytest.mark.parametrize(
    ("options", "said", "next_step"),
    [
        (
            {"endingOffsets": '{"0": 4}'},
            "endingOffsets: has no offset for partition 1: shop/orders has partitions 0 to 1",
            'List each of them, for example {"0": 4, "1": 3}',
        ),
        (
            {"endingOffsets": "{}"},
            "endingOffsets: has no offset for partition 0: shop/orders has partitions 0 to 1",
            'List each of them, for example {"0": 10, "1": 3}',
        ),
        (
            {"startingOffsets": '{"1": 2}'},
            "startingOffsets: has no offset for partition 0: shop/orders has partitions 0 to 1",
            'List each of them, for example {"0": 0, "1": 2}',
        ),
        (
            {"endingOffsets": '{"0": 4, "1": 0, "9": 1}'},
            "endingOffsets: shop/orders has no partition 9",
            "It has 2, numbered from 0",
        ),
        (
            {"endingOffsets": '{"0": 11, "1": 0}'},
            "endingOffsets: row 11 of partition 0 is beyond the end of the log, which is 10",
            "Give at most 10",
        ),
        (
            {"startingOffsets": '{"0": 0, "1": 4}'},
            "startingOffsets: row 4 of partition 1 is beyond the end of the log, which is 3",
            "Give at most 3",
        ),
        (
            {"startingOffsets": '{"0": 7, "1": 0}', "endingOffsets": '{"0": 4, "1": 3}'},
            "endingOffsets: partition 0 ends before row 4, but begins with row 7",
            "Give 7 or more, or an earlier startingOffsets",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": '{"0": 10, "1": 1}'},
            "endingOffsets: partition 1 ends before row 1, but begins with row 3",
            "Give 3 or more, or an earlier startingOffsets",
        ),
        (
            {"startingTimestamp": "2200-01-01T00:00Z", "endingOffsets": '{"0": 4, "1": 3}'},
            "endingOffsets: partition 0 ends before row 4, but begins with row 10",
            "Give 10 or more, or an earlier startingTimestamp",
        ),
    ],
)
def test_a_range_that_cannot_be_is_refused_before_anything_is_read(
    tmp_path, topic_source, topic, options, said, next_step
):
    topic.append(rows(0, 3), partition=1)
    with pytest.raises(BadConfig) as caught:
        batch(tmp_path, topic_source, **options)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(next_step)


def test_a_range_that_is_said_is_read(tmp_path, topic_source, topic):
    topic.append(rows(0, 3), partition=1)
    assert batch(tmp_path, topic_source) == [(0, 0, 10), (1, 0, 3)]
    some = {"startingOffsets": '{"0": 4, "1": 3}', "endingOffsets": '{"0": 10, "1": 3}'}
    assert batch(tmp_path, topic_source, **some) == [(0, 4, 10)]


def test_a_plan_that_knows_the_topic_leaves_out_a_partition_that_came_later(
    tmp_path, topic_source, topic
):
    topic.append(rows(0, 3), partition=1)  # as if it was made after the plan
    some = {"startingOffsets": '{"0": 4}', "endingOffsets": '{"0": 10}'}
    assert batch(tmp_path, topic_source, **some, topicCreated=str(topic.created)) == [
        (0, 4, 10)
    ]


@pytest.fixture
def between(topic, topic_source):
    """A time behind rows 0 to 9 of partition 0, and before rows 10 to 14, in milliseconds."""
    last = topic.read(partition=0).to_table()["_timestamp"][-1].as_py()
    found = last.replace(microsecond=0)
    found += timedelta(milliseconds=last.microsecond // 1000 + 1)
    assert wait_until(lambda: datetime.now(UTC) > found)
    topic.append(rows(10, 15), partition=0)
    return found


def in_ms(time):
    return str((time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


@pytest.mark.parametrize("as_text", [datetime.isoformat, in_ms])
def test_a_range_is_cut_at_times_under_the_names_that_kafka_has(
    tmp_path, topic_source, between, as_text
):
    time = as_text(between)
    each = json.dumps({"0": time, "1": 0})
    assert batch(tmp_path, topic_source, startingTimestamp=time) == [(0, 10, 15)]
    assert batch(tmp_path, topic_source, endingTimestamp=time) == [(0, 0, 10)]
    assert batch(tmp_path, topic_source, startingOffsetsByTimestamp=each) == [(0, 10, 15)]
    assert batch(tmp_path, topic_source, endingOffsetsByTimestamp=each) == [(0, 0, 10)]
    assert batch(tmp_path, topic_source, endingTimestamp="2000-01-01T00:00Z") == []
    assert batch(tmp_path, topic_source, endingTimestamp="2200-01-01T00:00Z") == [(0, 0, 15)]


@pytest.mark.parametrize(
    ("options", "said", "next_step"),
    [
        (
            {"startingOffsetsByTimestamp": '{"0": 0}'},
            "startingOffsetsByTimestamp: has no time for partition 1",
            'for example {"0": "1970-01-01T00:00:00+00:00", "1": "2026-11-15T10:00Z"}',
        ),
        (
            {"endingOffsetsByTimestamp": '{"0": 0, "1": 0, "7": 0}'},
            "endingOffsetsByTimestamp: shop/orders has no partition 7",
            "It has 2, numbered from 0",
        ),
        (
            {"startingOffsets": "latest", "endingTimestamp": "2000-01-01T00:00Z"},
            "endingTimestamp: partition 0 ends before row 0, but begins with row 15",
            "Give a later time, or an earlier startingOffsets",
        ),
        (
            {"startingTimestamp": "-1h", "startingOffsetsByTimestampStrategy": "error"},
            "startingTimestamp: partition 1 has no row since ",
            "to begin at the end of that partition",
        ),
    ],
)
def test_times_that_cannot_be_meant_are_refused(
    tmp_path, topic_source, between, options, said, next_step
):
    with pytest.raises(BadConfig) as caught:
        batch(tmp_path, topic_source, **options)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(next_step)


def test_a_task_has_no_more_rows_than_was_said(tmp_path, topic_source):
    assert batch(tmp_path, topic_source, maxRecordsPerPartition="4") == [
        (0, 0, 3),
        (0, 3, 6),
        (0, 6, 10),
    ]


def test_a_batch_waits_for_its_rows_unless_it_is_the_first_or_waits_too_long(
    tmp_path, topic_source, topic
):
    def ends(reader, start):
        answer = reader.latestOffset(start, reader.getDefaultReadLimit())
        return answer["partitions"]["0"], answer

    options = {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "8"}
    reader = stream(tmp_path, topic_source, **options, maxTriggerDelay="1h")
    with closing(reader._topic_source):
        first, place = ends(reader, reader.initialOffset())
        assert (first, ends(reader, place)[0]) == (8, 8)
        topic.append(rows(10, 13), partition=0)
        assert wait_until(lambda: ends(reader, place)[0] == 13)
    reader = stream(tmp_path, topic_source, **options, maxTriggerDelay="1us")
    with closing(reader._topic_source):
        assert ends(reader, reader.initialOffset())[0] == 8
        assert ends(reader, topic_source.offsets({0: 12, 1: 0}).to_json())[0] == 13
    reader = stream(tmp_path, topic_source, **options)
    with closing(reader._topic_source):
        assert ends(reader, reader.initialOffset())[0] == 8
        reader.prepareForTriggerAvailableNow()
        assert ends(reader, topic_source.offsets({0: 12, 1: 0}).to_json())[0] == 13


def wait_until(found, seconds=10.0):
    end = time.monotonic() + seconds
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def stream(tmp_path, topic_source, **options):
    given = {"topic": "shop/orders", "path": str(tmp_path / "data"), **options}
    return StreamReader(given, spark_schema(topic_source.schema()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": '{"0": 4}'}, "startingOffsets: has no offset for partition 1"),
        ({"startingOffsets": '{"0": 11, "1": 0}'}, "startingOffsets: row 11 of partition 0"),
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
    ],
)
def test_a_stream_begins_with_rows_that_are_there_and_has_no_end(
    tmp_path, topic_source, options, said
):
    with pytest.raises(BadConfig) as caught:
        stream(tmp_path, topic_source, **options).initialOffset()
    assert str(caught.value).startswith(said)


def test_an_end_is_refused_by_a_stream_that_goes_on_from_its_checkpoint(tmp_path, topic_source):
    place = topic_source.offsets({0: 4, 1: 0}).to_json()
    reader = stream(tmp_path, topic_source, endingOffsets='{"0": 5, "1": 0}')
    with pytest.raises(BadConfig, match="endingOffsets: a stream has no end"):
        reader.latestOffset(place, reader.getDefaultReadLimit())


def test_a_query_with_a_group_holds_its_rows_before_the_first_is_read(
    tmp_path, topic_source, topic
):
    reader = stream(tmp_path, topic_source, groupId="billing")
    with closing(reader._topic_source):
        place = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        held = topic.cursors("billing")
    assert [(one.partition, one.next, one.hold) for one in held] == [(0, 0, True), (1, 0, True)]
    assert place["partitions"] == {"0": 10, "1": 0}
    topic.trim(10, partition=0)
    assert topic.bounds()[0].first == 0


def test_a_batch_that_is_played_again_holds_its_rows_from_its_start_on(
    tmp_path, topic_source, topic
):
    reader = stream(tmp_path, topic_source, groupId="billing")
    with closing(reader._topic_source):
        start, end = (topic_source.offsets({0: n, 1: 0}).to_json() for n in (4, 8))
        reader.partitions(start, end)
    assert [(one.next, one.hold) for one in topic.cursors("billing")] == [(4, True), (0, True)]


def test_a_query_that_shall_not_hold_is_seen_and_keeps_nothing(tmp_path, topic_source, topic):
    reader = stream(tmp_path, topic_source, groupId="billing", holdRetention="false")
    with closing(reader._topic_source):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert [one.hold for one in topic.cursors("billing")] == [False, False]


def test_only_the_first_task_of_a_partition_says_where_a_query_is(
    tmp_path, topic_source, topic
):
    """Another one would hold rows from its own start on, and let go those before."""
    topic.append(rows(0, 3), partition=1)
    reader = stream(tmp_path, topic_source, minPartitions="6")
    with closing(reader._topic_source):
        start, end = (
            topic_source.offsets({0: 2, 1: 0}).to_json(),
            topic_source.offsets({0: 10, 1: 3}).to_json(),
        )
        tasks = reader.partitions(start, end)
    assert len(tasks) >= 6
    telling = {task.span.partition: task.span.start for task in tasks if task.generation}
    assert telling == {0: 2, 1: 0}
    assert sum(task.generation is not None for task in tasks) == 2


def ranges(tasks):
    return [(task.span.partition, task.span.start, task.span.end) for task in tasks]


def first_batch(tmp_path, topic_source, **options):
    """Plan the first batch of a query, which Spark stores before it is played."""
    reader = stream(tmp_path, topic_source, **options)
    with closing(reader._topic_source):
        return reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def played_again(tmp_path, topic_source, end, **options):
    """Return what a restarted query reads, which Spark asks for its start again."""
    reader = stream(tmp_path, topic_source, **options)
    with closing(reader._topic_source):
        return ranges(reader.partitions(reader.initialOffset(), end))


def test_a_first_batch_that_is_played_again_is_the_same_wherever_a_query_would_begin_now(
    tmp_path, topic_source, topic
):
    reader = stream(tmp_path, topic_source, startingOffsets="latest")
    with closing(reader._topic_source):
        start = reader.initialOffset()
        topic.append(rows(10, 15), partition=0)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert ranges(reader.partitions(start, end)) == [(0, 10, 15)]
    topic.append(rows(15, 20), partition=0)
    for begin in ("latest", "earliest", '{"0": 12, "1": 0}'):
        assert played_again(tmp_path, topic_source, end, startingOffsets=begin) == [(0, 10, 15)]
    past = {"startingTimestamp": "-1us"}
    assert played_again(tmp_path, topic_source, end, **past) == [(0, 10, 15)]


def test_a_first_batch_without_rows_stays_without_and_the_next_one_begins_there(
    tmp_path, topic_source, topic
):
    end = first_batch(tmp_path, topic_source, startingOffsets="latest")
    topic.append(rows(10, 15), partition=0)
    assert played_again(tmp_path, topic_source, end, startingOffsets="latest") == []
    reader = stream(tmp_path, topic_source, startingOffsets="latest")
    with closing(reader._topic_source):
        next_end = reader.latestOffset(end, reader.getDefaultReadLimit())
        assert ranges(reader.partitions(end, next_end)) == [(0, 10, 15)]


def test_only_the_first_batch_stores_its_start_and_nothing_new_is_the_same_text(
    tmp_path, topic_source, topic
):
    end = first_batch(tmp_path, topic_source)
    assert end == {**topic_source.offsets({0: 10, 1: 0}).to_json(), "from": {"0": 0, "1": 0}}
    reader = stream(tmp_path, topic_source)
    with closing(reader._topic_source):
        limit = reader.getDefaultReadLimit()
        assert json.dumps(reader.latestOffset(end, limit)) == json.dumps(end)
        topic.append(rows(10, 15), partition=0)
        assert wait_until(lambda: reader.latestOffset(end, limit) != end)
        assert reader.latestOffset(end, limit) == topic_source.offsets({0: 15, 1: 0}).to_json()


def test_rows_of_a_first_batch_that_were_trimmed_before_it_is_played_again_are_lost_by_name(
    tmp_path, topic_source, topic
):
    loose = {"holdRetention": "false"}
    end = first_batch(tmp_path, topic_source, **loose)
    topic.trim(6, partition=0)
    with pytest.raises(RowsLost, match="rows 0 to 5 of partition 0 of shop/orders were trimm"):
        played_again(tmp_path, topic_source, end, **loose)
    going_on = {**loose, "failOnDataLoss": "false"}
    assert played_again(tmp_path, topic_source, end, **going_on) == [(0, 6, 10)]


def test_a_first_batch_of_a_topic_that_is_another_one_now_is_refused(
    tmp_path, log, topic_source
):
    end = first_batch(tmp_path, topic_source)
    log.topic("shop/orders").delete()
    log.create_topic("shop/orders", SCHEMA, partitions=2).append(rows(50, 70), partition=0)
    with pytest.raises(TopicRecreated, match="since this query began"):
        played_again(tmp_path, topic_source, end)


def test_a_first_batch_whose_start_is_not_stored_and_lies_behind_its_end_now_is_refused(
    tmp_path, topic_source, topic
):
    end = first_batch(tmp_path, topic_source)
    del end["from"]
    topic.append(rows(10, 15), partition=0)
    assert played_again(tmp_path, topic_source, end) == [(0, 0, 10)]
    latest = {"startingOffsets": "latest"}
    with pytest.raises(RowsLost) as caught:
        played_again(tmp_path, topic_source, end, **latest)
    said = "the batch ends at row 10 of partition 0 of shop/orders, but would begin at row 15"
    assert str(caught.value).startswith(said)
    assert "startingOffsets" in caught.value.hint
    assert played_again(tmp_path, topic_source, end, **latest, failOnDataLoss="false") == []
    said = {"startingOffsets": '{"0": 4, "1": 0}'}
    assert played_again(tmp_path, topic_source, end, **said) == [(0, 4, 10)]


def test_a_write_without_an_app_id_is_of_a_writer_that_the_log_forgets(tmp_path, topic):
    def writer(**options):
        given = {"topic": "shop/orders", "path": str(tmp_path / "data"), **options}
        return BatchWriter(given, overwrite=False)._deed.writer

    one, other = writer(), writer()
    assert one != other
    assert [is_once(each) for each in (one, other)] == [True, True]
    named = writer(txnAppId="nightly", txnVersion="3")
    assert named == writer_of("nightly") == writer(txnAppId="nightly", txnVersion="4")
    assert not is_once(named)


def test_the_end_of_the_log_is_told_beyond_what_a_batch_takes(tmp_path, topic_source, topic):
    reader = stream(tmp_path, topic_source, maxOffsetsPerTrigger="3")
    with closing(reader._topic_source):
        assert reader.reportLatestOffset() is None
        start = reader.initialOffset()
        reader.latestOffset(start, reader.getDefaultReadLimit())
        assert reader.reportLatestOffset() == topic_source.offsets({0: 10, 1: 0}).to_json()
