"""`foreachBatch(headrace.spark.writer(…))`: changes of a query with state, each once."""

import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import rows

from headrace.errors import BadRequest
from headrace.spark import writer


@pytest.fixture
def counts(log):
    return log.create_topic("shop/counts", {"parity": "int64", "count": "int64"}, key="parity")


def counted(spark, tmp_path):
    """Count by parity, in update mode; all that is there now."""
    orders = (
        spark.readStream.format("headrace")
        .option("topic", "shop/orders")
        .option("path", str(tmp_path / "data"))
        .load()
    )
    query = (
        orders.groupBy((orders.id % 2).alias("parity"))
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(writer("shop/counts", key="parity", path=str(tmp_path / "data")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_changes_of_a_query_with_state_are_appended(spark, tmp_path, topic, counts):
    topic.append(rows(0, 10))
    counted(spark, tmp_path)
    topic.append(rows(10, 15))
    counted(spark, tmp_path)
    found = [(row["parity"], row["count"]) for row in counts.read().to_table().to_pylist()]
    assert sorted(found) == [(0, 5), (0, 8), (1, 5), (1, 7)]


def test_a_batch_that_is_repeated_adds_nothing(spark, tmp_path, counts):
    some = spark.createDataFrame([(0, 1), (1, 2)], "parity long, count long")
    append = writer("shop/counts", app_id="job", path=str(tmp_path / "data"))
    for batch_id in (0, 0, 1, 1):
        append(some, batch_id)
    others = some.selectExpr("parity", "count + 1 as count")
    with pytest.raises(
        PySparkException, match=r"version 2 of job was .* this is 2 different rows"
    ):
        append(others, 1)
    with pytest.raises(PySparkException, match="version 1 is not above the published 2") as e:
        append(some, 0)  # an old checkpoint was put back
    assert "VersionTaken: version 1 of job is superseded in shop/counts" in str(e.value)
    assert "restore the checkpointLocation that wrote its newest batch" in str(e.value)
    assert counts.read().row_count == 4


def test_a_batch_without_rows_is_a_batch_and_other_rows_are_refused(spark, tmp_path, counts):
    some = spark.createDataFrame([(0, 1), (1, 2)], "parity long, count long")
    append = writer("shop/counts", app_id="job", path=str(tmp_path / "data"))
    append(some.where("count > 9"), 0)
    append(some.where("count > 9"), 0)
    with pytest.raises(PySparkException, match=r"version 1 of job was .* but this is 2 rows"):
        append(some, 0)
    append(some, 1)
    assert counts.read().row_count == 2


def test_a_second_frame_of_one_batch_is_refused_and_not_dropped(spark, tmp_path, topic, counts):
    topic.append(rows(0, 10))
    path, told = str(tmp_path / "data"), []

    def each(found, batch_id):
        counted = found.groupBy((found.id % 2).alias("parity")).count()
        append = writer("shop/counts", path=path)
        append(counted.where("parity = 0"), batch_id)
        writer("shop/counts", path=path, app_id="odd")(counted.where("parity = 1"), batch_id)
        found.sparkSession.sparkContext.setJobGroup("mine", "of the function's own")
        again = writer("shop/counts", path=f"{path}/")
        try:
            again(counted.where("parity = 1"), batch_id)
        except BadRequest as error:
            told.append(str(error))

    orders = spark.readStream.format("headrace").option("topic", "shop/orders")
    for _ in range(2):  # another run of the same query begins anew
        query = orders.option("path", path).load().writeStream.foreachBatch(each)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        topic.append(rows(10, 12))
    assert len(told) == 2
    assert told[0].startswith("batch 0 was already written to shop/counts")
    assert counts.read().row_count == 4


def test_a_batch_that_failed_behind_the_writer_is_repeated_in_the_same_process(
    spark, tmp_path, topic, counts
):
    topic.append(rows(0, 10))
    append, flaws = writer("shop/counts", path=str(tmp_path / "data")), ["of another sink"]

    def each(found, batch_id):
        append(found.groupBy((found.id % 2).alias("parity")).count(), batch_id)
        if flaws:
            raise ValueError(flaws.pop())

    orders = spark.readStream.format("headrace").option("topic", "shop/orders")
    frame = orders.option("path", str(tmp_path / "data")).load()
    query = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="of another sink"):
        query.start().awaitTermination()
    query.start().awaitTermination()
    assert counts.read().row_count == 2


def test_rows_of_no_query_need_a_writer(spark, tmp_path, counts):
    some = spark.createDataFrame([(0, 1)], "parity long, count long")
    with pytest.raises(BadRequest, match="do not belong to a streaming query"):
        writer("shop/counts", path=str(tmp_path / "data"))(some, 0)
