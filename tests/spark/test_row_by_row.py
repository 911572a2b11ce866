"""A transform in which a row depends on other rows of its batch is refused by its plan."""

from pathlib import Path

import pytest
from pyspark.sql import functions as f
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run, table_of
from tests.spark.test_source import reading

from headrace.errors import BadConfig
from headrace.spark.pipeline.pipeline import opened
from headrace.spark.pipeline.row_by_row import refuse_mixing

MIXING = {
    "select name, count(*) as n from source group by name": "Aggregate [name]",
    "select count(*) as n from source": "Aggregate [count(1) AS n]",
    "select distinct name from source": "Distinct",
    "select id, row_number() over (order by id) as n from source": "Window [row_number()",
    "select * from source limit 3": "Limit 3",
    "select * from source order by id limit 3": "Limit 3",
    "select * from source offset 3": "Offset 3",
    "select a.id from source a join source b on a.id = b.id": "joins the batch with itself",
    "with a as (select id from source), b as (select max(id) as m from a)\n"
    "select a.id from a join b on a.id = b.m": "Aggregate [max(id) AS m], line 1",
    "select id\nfrom source where id = (select max(id) from source)": ", line 2",
    "select id from source where exists (select 1 from source s where s.id > source.id)": (
        "a subquery reads the batch"
    ),
    "select id from source union select 1": "rows of another table would be added to each",
    "select id from source except select 1": "Except",
    "select id from source intersect select 1": "Intersect",
    "select id from source union all select 1": "rows of another table would be added to each",
    "select k from source right join sizes on id = k": "right outer adds rows of the other",
    "select k from source full join sizes on id = k": "full outer adds rows of the other",
    "select k from sizes left join source on id = k": "left outer adds rows of the other",
    "select k from sizes left semi join source on id = k": "left semi adds rows of the other",
    "select * from source pivot (count(name) for id in (1, 2))": "Aggregate",
    "from source |> where id > 2 |> aggregate count(*)": "Aggregate",
    "select id, 1 + monotonically_increasing_id() as n from source": (
        "(monotonically_increasing_id() numbers the rows of a batch)"
    ),
    "select id from source where monotonically_increasing_id() > 3": "numbers the rows",
    "select * from counted(table(source))": "(counted takes the rows of a batch as a table)",
    "with a as (select id from source) select * from counted(table(a) partition by id)": (
        "counted takes the rows"
    ),
    "select 1 as id": "its rows do not come from those of the batch",
}
ROW_BY_ROW = (
    "select id, upper(name) as name from source where id > 3",
    "select * from source order by id",
    "select explode(array(id, -id)) as id from source",
    "select id from source where id < 3 union all select id from source where id > 7",
    "with a as (select id from source) select * from a where id > 1",
    "select id, m from source join sizes on id = k cross join (select max(k) m from sizes)",
    "select id from source left join (select k, count(*) from sizes group by k) on id = k",
    "select k from sizes right join source on id = k",
    "select id from source left anti join sizes on id = k",
    "select id, (select max(k) from sizes where k < id) as k from source",
    "select s.id, k from source s, lateral (select s.id + 1 as k)",
    "select * from source tablesample (10 percent)",
    "select id, 'monotonically_increasing_id()' as monotonically_increasing_id from source",
    "select id, n from source join "
    "(select k, monotonically_increasing_id() as n from sizes) on id = k",
    "select id from source join counted(table(sizes)) on id = n",
    "select id, n from source, lateral counted(id)",
)
BY_FUNCTIONS = {
    "groupBy": (lambda df: df.groupBy("id").count(), "Aggregate [id]"),
    "dropDuplicates": (lambda df: df.dropDuplicates(["id"]), "Deduplicate [id]"),
    "limit": (lambda df: df.limit(3), "Limit 3"),
    "applyInPandas": (
        lambda df: df.groupBy("id").applyInPandas(lambda each: each, df.schema),
        "FlatMapGroupsInPandas",
    ),
    "collected": (lambda df: df.sparkSession.createDataFrame([(1,)], "id int"), "do not come"),
}


@f.udtf(returnType="n int")
class Counted:
    def __init__(self):
        self.n = 0

    def eval(self, _):
        self.n += 1

    def terminate(self):
        yield (self.n,)


@pytest.fixture
def batch(spark, tmp_path, topic):
    frame = reading(spark, tmp_path)
    frame.createOrReplaceTempView("source")
    spark.range(3).withColumnRenamed("id", "k").createOrReplaceTempView("sizes")
    spark.udtf.register("counted", Counted)
    yield frame
    spark.catalog.dropTempView("source")
    spark.catalog.dropTempView("sizes")


def is_batch(leaf):
    return leaf.getClass().getSimpleName() == "DataSourceV2Relation"


def test_what_mixes_rows_is_refused_with_the_operation_and_its_line(spark, tmp_path, batch):
    definition = a_definition(tmp_path, sql="select 1")
    for sql, said in MIXING.items():
        with pytest.raises(BadConfig) as caught:
            refuse_mixing(spark.sql(sql), definition, is_batch)
        assert str(caught.value).startswith("sql: it")
        assert said in str(caught.value), sql
        assert "#" not in str(caught.value)


def test_what_keeps_a_row_a_row_is_taken(spark, tmp_path, batch):
    definition = a_definition(tmp_path)
    for sql in ROW_BY_ROW:
        refuse_mixing(spark.sql(sql), definition, is_batch)
    for made in (
        batch.cache(),
        batch.repartition(3).sample(0.5).select(f.upper("name")),
        batch.mapInArrow(lambda each: each, batch.schema),
    ):
        refuse_mixing(made, definition, is_batch)
    batch.unpersist()


def test_what_mixes_rows_by_functions_is_refused(tmp_path, batch):
    definition = a_definition(tmp_path, transform="clean.py")
    for make, said in BY_FUNCTIONS.values():
        with pytest.raises(BadConfig) as caught:
            refuse_mixing(make(batch), definition, is_batch)
        assert str(caught.value).startswith("transform: it")
        assert said in str(caught.value)


def test_a_pipeline_with_counts_is_refused_before_there_is_a_table(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    sql = "select name, count(*) as n from source group by name"
    definition = a_definition(tmp_path, sql=sql, lineage=False, batch_rows=3)
    with opened(spark, definition) as pipeline, pytest.raises(BadConfig, match="table_writer"):
        pipeline.check()
    with pytest.raises(BadConfig, match=r"depend on other rows .* Aggregate \[name\]"):
        run(spark, definition)
    assert not Path(definition.table).exists()


def test_another_table_is_looked_up_though_it_is_a_topic_of_the_log(
    spark, tmp_path, log, topic
):
    topic.append(rows(0, 10), partition=0)
    log.create_topic("shop/sizes", {"k": "int64"}).append([{"k": 3}, {"k": 3}, {"k": 7}])
    reading(spark, tmp_path, "shop/sizes").createOrReplaceTempView("sizes")
    sql = "select id from source join (select distinct k from sizes) on id = k"
    run(spark, a_definition(tmp_path, sql=sql, lineage=False, batch_rows=5))
    assert sorted(table_of(tmp_path)["id"].to_pylist()) == [3, 7]
    spark.catalog.dropTempView("sizes")
