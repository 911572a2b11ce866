"""Writing to a topic from a real Spark."""

import shutil

import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_source import reading


@pytest.fixture
def copy(log):
    return log.create_topic("shop/copy", SCHEMA, partitions=3, key="id")


def writing(frame, tmp_path, **options):
    writer = frame.write.format("headrace").mode("append").option("topic", "shop/copy")
    writer = writer.option("path", str(tmp_path / "data")).options(**options)
    writer.save()


def copying(spark, tmp_path, where="true", **options):
    query = (
        reading(spark, tmp_path, stream=True, maxOffsetsPerTrigger="100")
        .where(where)
        .select("id", "name")
        .writeStream.format("headrace")
        .option("topic", "shop/copy")
        .option("path", str(tmp_path / "data"))
        .option("checkpointLocation", str(tmp_path / "sink"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def test_topic_to_topic_is_exactly_once_when_a_batch_is_repeated(spark, tmp_path, topic, copy):
    topic.append(rows(0, 250), partition=0)
    assert copying(spark, tmp_path) == [100, 100, 50]
    commits = tmp_path / "sink" / "commits"
    last = max(
        (each for each in commits.iterdir() if each.name.isdigit()), key=lambda p: p.name
    )
    last.unlink()  # as if the driver had died after the publish
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    assert copying(spark, tmp_path) == [50]
    found = copy.read().to_table()["id"].to_pylist()
    assert sorted(found) == list(range(250))


def test_a_checkpoint_that_was_put_back_ends_the_query_and_no_row_is_left_out(
    spark, tmp_path, topic, copy
):
    topic.append(rows(0, 10), partition=0)
    copying(spark, tmp_path)
    shutil.copytree(tmp_path / "sink", tmp_path / "older")
    topic.append(rows(10, 20), partition=0)
    copying(spark, tmp_path)
    shutil.copytree(tmp_path / "sink", tmp_path / "newest")
    shutil.rmtree(tmp_path / "sink")
    shutil.copytree(tmp_path / "older", tmp_path / "sink")
    topic.append(rows(20, 30), partition=0)
    with pytest.raises(PySparkException) as caught:
        copying(spark, tmp_path)
    told = str(caught.value)
    assert "version 2 of spark/" in told
    assert "was already published to shop/copy with 10 rows" in told
    assert "but this is batch 1 with 20 rows" in told
    assert "restore the checkpointLocation that wrote batch 1" in told
    assert copy.read().row_count == 20
    shutil.rmtree(tmp_path / "sink")
    (tmp_path / "newest").rename(tmp_path / "sink")  # the way out
    assert copying(spark, tmp_path) == [10]
    assert sorted(copy.read().to_table()["id"].to_pylist()) == list(range(30))


def test_a_checkpoint_that_was_put_back_by_two_batches_ends_the_query_with_the_ways_out(
    spark, tmp_path, topic, copy
):
    topic.append(rows(0, 10), partition=0)
    copying(spark, tmp_path)
    shutil.copytree(tmp_path / "sink", tmp_path / "older")
    topic.append(rows(10, 210), partition=0)
    assert copying(spark, tmp_path) == [100, 100]  # batches 1 and 2
    shutil.rmtree(tmp_path / "sink")
    (tmp_path / "older").rename(tmp_path / "sink")
    with pytest.raises(PySparkException) as caught:
        copying(spark, tmp_path)
    told = str(caught.value)
    assert "VersionTaken: version 2 of spark/" in told
    assert " (batch 1) is superseded in shop/copy" in told
    assert "restore the checkpointLocation that wrote its newest batch" in told
    assert "failOnOtherRows" not in told
    assert copy.read().row_count == 210


def test_a_batch_that_was_published_without_rows_takes_no_rows_later(
    spark, tmp_path, topic, copy
):
    some = "id < 10 or id >= 20"
    topic.append(rows(0, 10), partition=0)
    copying(spark, tmp_path, some)
    shutil.copytree(tmp_path / "sink", tmp_path / "older")
    topic.append(rows(10, 20), partition=0)
    copying(spark, tmp_path, some)  # batch 1, of which nothing is left
    shutil.rmtree(tmp_path / "sink")
    (tmp_path / "older").rename(tmp_path / "sink")
    topic.append(rows(20, 30), partition=0)
    with pytest.raises(PySparkException) as caught:
        copying(spark, tmp_path, some)
    found = "was already published to shop/copy with 0 rows (none)"
    said = f"{found}, but this is batch 1 with 10 rows"
    assert said in str(caught.value)
    assert copy.read().row_count == 10


def test_a_write_without_rows_is_a_version_and_another_one_with_rows_is_refused(
    spark, tmp_path, copy
):
    frame = spark.range(10).selectExpr("id", "cast(id as string) as name")

    def write(rows, **options):
        writing(rows, tmp_path, txnAppId="nightly", txnVersion="1", **options)

    write(frame.where("id < 0"))
    write(frame.where("id < 0"))  # the same: none
    with pytest.raises(PySparkException, match=r"with 0 rows \(none\), but this is 10 rows"):
        write(frame)
    write(frame, failOnOtherRows="false")
    assert copy.read().row_count == 0


def test_a_new_checkpoint_is_a_new_writer(spark, tmp_path, topic, copy):
    topic.append(rows(0, 10), partition=0)
    copying(spark, tmp_path)
    copying(spark, tmp_path, checkpointLocation=str(tmp_path / "other"))
    assert copy.read().row_count == 20


def test_a_repeated_write_with_an_app_id_adds_nothing(spark, tmp_path, log, copy):
    frame = spark.range(100).selectExpr("id", "cast(id as string) as name")
    writing(frame, tmp_path, txnAppId="nightly", txnVersion="1")
    writing(frame, tmp_path, txnAppId="nightly", txnVersion="1")
    assert copy.read().row_count == 100
    writing(frame, tmp_path, txnAppId="nightly", txnVersion="2")
    assert copy.read().row_count == 200


def test_a_repeated_write_is_told_by_its_rows_in_whatever_order(spark, tmp_path, log):
    topic = log.create_topic("shop/copy", SCHEMA, partitions=3)  # no key: tasks take turns
    frame = spark.range(100).selectExpr("id", "cast(id as string) as name")

    def write(rows, **options):
        writing(rows, tmp_path, txnAppId="nightly", txnVersion="1", **options)

    def told(rows):
        with pytest.raises(PySparkException) as caught:
            write(rows)
        return str(caught.value)

    write(frame)
    write(frame.orderBy(frame.id.desc()).repartition(5))
    others = frame.selectExpr("id + 1 as id", "name")
    said = "version 1 of nightly was already published to shop/copy with 100 rows ("
    assert said in told(others)
    assert "), but this is 100 different rows: nothing was added" in told(others)
    assert "but this is 99 rows: nothing was added" in told(frame.where("id > 0"))
    assert "but this is 0 rows: nothing was added" in told(frame.where("id < 0"))
    write(others, failOnOtherRows="false")
    topic.trim(1, partition=0)
    assert "of partition 0, which are trimmed up to 0, so they cannot be" in told(frame)
    assert topic.read().row_count == 99


def test_rows_with_one_key_are_in_one_partition(spark, tmp_path, log, copy):
    frame = spark.range(300).selectExpr("id % 10 as id", "'x' as name")
    writing(frame, tmp_path)
    table = copy.read().to_table().to_pandas()
    assert len(table) == 300
    assert table.groupby("id")["_partition"].nunique().max() == 1


def test_a_failed_task_adds_nothing(spark, tmp_path, log, copy):
    frame = spark.range(1000).selectExpr(
        "case when id = 999 then raise_error('broken') else id end as id", "'x' as name"
    )
    with pytest.raises(PySparkException, match="broken"):
        writing(frame, tmp_path)
    assert copy.read().row_count == 0


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["id as idd", "'x' as name"], {}, "column 'id': missing. Is it"),
        (["'text' as id", "'x' as name"], {}, "column 'id'"),
        (["id", "'x' as name"], {"txnAppId": "a"}, "txnVersion: is missing"),
        (["id", "'x' as name"], {"key": "none"}, "no column 'none'"),
    ],
)
def test_bad_rows_and_options_are_told_before_any_trace(
    spark, tmp_path, log, copy, columns, options, said
):
    with pytest.raises(PySparkException) as caught:
        writing(spark.range(5).selectExpr(*columns), tmp_path, **options)
    text = str(caught.value)
    assert said in text
    assert "Traceback" not in text.split(said)[0]
    assert copy.read().row_count == 0


def test_a_log_is_never_overwritten(spark, tmp_path, log, copy):
    frame = spark.range(5).selectExpr("id", "'x' as name")
    writer = frame.write.format("headrace").mode("overwrite").option("topic", "shop/copy")
    with pytest.raises(PySparkException, match="append-only and cannot be overwritten"):
        writer.option("path", str(tmp_path / "data")).save()


def test_update_mode_is_refused_as_the_page_says(spark, tmp_path, topic, copy):
    counts = reading(spark, tmp_path, stream=True).groupBy("id").count()
    query = counts.selectExpr("id", "cast(count as string) as name").writeStream
    query = query.format("headrace").option("topic", "shop/copy").outputMode("update")
    query = query.option("path", str(tmp_path / "data"))
    with pytest.raises(PySparkException, match="headrace does not support Update mode"):
        query.option("checkpointLocation", str(tmp_path / "sink")).start().processAllAvailable()
