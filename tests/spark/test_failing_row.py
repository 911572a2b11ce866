"""The row that a transform fails on is named by partition and offset."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run, table_of

from headrace.spark.friendly_errors import RoundFailed
from headrace.spark.pipeline.failing_row import failing_row


@given(st.sets(st.integers(0, 999)), st.integers(0, 1000), st.integers(0, 1000))
def test_the_first_row_that_fails_is_found_in_few_tries(bad, first, middle):
    ranges = {0: (0, first), 1: (first, max(first, middle)), 3: (max(first, middle), 1000)}
    tries = []

    def fails(asked):
        ((_, (start, end)),) = asked.items()
        tries.append((start, end))
        return any(start <= row < end for row in bad)

    found = failing_row(ranges, fails)
    if not bad:
        assert found is None
        return
    number, row = found
    assert row == min(bad)
    assert ranges[number][0] <= row < ranges[number][1]
    assert len(tries) <= len(ranges) + math.ceil(math.log2(1000)) + 1


def test_a_failure_that_comes_of_no_row_by_itself_names_none():
    assert failing_row({0: (0, 8)}, lambda ranges: ranges[0] == (0, 8)) is None
    assert failing_row({0: (5, 5)}, lambda _: True) is None


SQL = "select id, cast(name as int) as number, _hr_partition, _hr_offset from source"


def test_a_row_that_a_cast_refuses_is_named_and_nothing_is_committed(spark, tmp_path, topic):
    numbers = [{"id": number, "name": str(number)} for number in range(40)]
    topic.append(numbers, partition=0)
    topic.append([*numbers[:5], {"id": 99, "name": "ten"}, *numbers], partition=1)
    said = r"^row 5 of partition 1 of shop/orders: .*CAST_INVALID_INPUT.*'ten'"
    with pytest.raises(RoundFailed, match=said) as caught:
        run(spark, a_definition(tmp_path, sql=SQL))
    assert "Nothing was committed" in str(caught.value)
    assert table_of(tmp_path).num_rows == 0


def test_a_row_at_which_a_function_raises_is_named(spark, tmp_path, topic):
    topic.append(rows(0, 20), partition=0)
    (tmp_path / "clean.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "@udf('bigint')\n"
        "def small(id):\n"
        "    if id == 13:\n"
        "        raise ValueError(f'{id} is unlucky')\n"
        "    return id\n"
        "def transform(df):\n"
        "    return df.withColumn('id', small('id'))\n"
    )
    said = "^row 13 of partition 0 of shop/orders: .*13 is unlucky"
    with pytest.raises(RoundFailed, match=said):
        run(spark, a_definition(tmp_path, transform="clean.py"))
