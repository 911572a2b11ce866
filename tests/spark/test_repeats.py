"""A version that was published before, to a topic that has changed since. No Spark."""

import pyarrow as pa
import pytest
from tests.spark.conftest import SCHEMA, rows

from headrace.spark.sink.data_sink import BatchWriter
from headrace.spark.sink.repeats import VersionTaken

NEWER = {**SCHEMA, "note": "string"}


@pytest.fixture
def topic(log):
    return log.create_topic("shop/copy", SCHEMA, partitions=1, key="id")


@pytest.fixture
def planned(tmp_path):
    """Plan the one write of these tests: another one with its version knows the same topic."""

    def plan():
        given = {"topic": "shop/copy", "path": str(tmp_path / "data")}
        given |= {"txnAppId": "nightly", "txnVersion": "1"}
        return BatchWriter(given, overwrite=False)

    return plan


def write(writer, given):
    batch = pa.RecordBatch.from_pylist(given)
    writer._publish([writer._stage(writer._deed, iter([batch]))])


def test_one_that_was_planned_before_partitions_were_added_is_compared(topic, planned):
    before = planned()
    topic.add_partitions(2)
    write(planned(), rows(0, 40))
    write(before, rows(0, 40))
    with pytest.raises(VersionTaken, match="but this is 40 different rows"):
        write(before, rows(1, 41))
    assert topic.read().row_count == 40


def test_one_that_was_planned_before_the_schema_grew_is_refused_by_name(topic, planned):
    before = planned()
    topic.evolve(NEWER)
    noted = [{**row, "note": "new"} for row in rows(0, 10)]
    write(planned(), noted)
    with pytest.raises(VersionTaken) as caught:
        write(before, rows(0, 10))
    told = str(caught.value)
    assert "version 1 of nightly was already published to shop/copy as rows 0 to 9" in told
    assert "of partition 0 with schema version 2, but this is schema version 1" in told
    write(planned(), noted)
    assert topic.read().row_count == 10


def test_rows_that_were_published_before_the_schema_grew_are_compared(topic, planned):
    write(planned(), rows(0, 10))
    topic.evolve(NEWER)
    write(planned(), [{**row, "note": None} for row in rows(0, 10)])
    with pytest.raises(VersionTaken, match="but this is 10 different rows"):
        write(planned(), [{**row, "note": "new"} for row in rows(0, 10)])
    assert topic.read().row_count == 10
