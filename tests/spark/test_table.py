"""Delta tables, read by Spark without a jar."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run

from headrace.errors import BadRequest
from headrace.spark import read_table
from headrace.spark.source.delta_scan import filtering


def test_a_pipeline_s_table_is_read_as_it_is_and_as_it_was(spark, tmp_path, topic):
    path = str(tmp_path / "table")
    for first in (0, 50):
        topic.append(rows(first, first + 50), partition=0)
        run(spark, a_definition(tmp_path))
    assert read_table(spark, path).count() == 100
    assert read_table(spark, path, version=1).count() == 50
    assert read_table(spark, path, version=0).count() == 0
    found = read_table(spark, path).where("id = 7").select("name").collect()
    assert [row["name"] for row in found] == ["n7"]


def test_filters_find_nan_and_the_negative_zero_even_after_compaction(spark, tmp_path):
    numbers = [1.0, float("nan"), -0.0, 3.0]
    for name, given in (("plain", numbers), ("nested", [{"x": x} for x in numbers])):
        path = str(tmp_path / name)
        for place, number in enumerate(given):
            write_deltalake(path, pa.table({"id": [place], "x": [number]}), mode="append")
        DeltaTable(path).optimize.compact()
        found = read_table(spark, path)
        column = "x" if name == "plain" else "x.x"
        for condition, places in (("> 5", [1]), ("= 'NaN'", [1]), ("= 0.0", [2])):
            rows = found.where(f"{column} {condition}").collect()
            assert [row["id"] for row in rows] == places, (name, condition)


def test_only_floats_keep_a_scan_from_skipping(spark):
    assert (
        filtering(StructType.fromDDL("id bigint, tags array<string>, m map<string, int>")) == {}
    )
    for kind in ("float", "double", "array<float>", "map<string, struct<x: double>>"):
        assert set(filtering(StructType.fromDDL(f"id bigint, x {kind}")).values()) == {"false"}


def test_columns_that_are_only_in_paths_are_read_too(spark, tmp_path):
    path = str(tmp_path / "parted")
    given = pa.table({"id": pa.array(range(6), pa.int64()), "day": list("aabbcc")})
    write_deltalake(path, given, partition_by=["day"])
    found = read_table(spark, path).orderBy("id").collect()
    assert [(row["id"], row["day"]) for row in found] == list(
        zip(range(6), "aabbcc", strict=True)
    )


def test_what_is_no_table_is_told(spark, tmp_path):
    with pytest.raises(BadRequest, match="there is no Delta table at"):
        read_table(spark, str(tmp_path / "nowhere"))
    write_deltalake(str(tmp_path / "one"), pa.table({"id": [1]}))
    with pytest.raises(BadRequest, match="with version 9"):
        read_table(spark, str(tmp_path / "one"), version=9)
