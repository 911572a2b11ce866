"""The bench of Spark, at a size that only shows that it runs."""

import pytest

from headrace.bench.frame import measure
from headrace.bench.spark import cases

TINY = 1 / 256
FLOORS = [1.0, 0.8, 0.6, 0.9, 1 / 1.5, 0.6]


@pytest.mark.parametrize("number", range(len(FLOORS)))
def test_spark_over_a_topic_is_measured_beside_its_own_files(spark, tmp_path, number):
    case = cases(tmp_path, TINY)[number]
    assert case.floor == FLOORS[number]
    result = measure(case, 1, lambda _: None)
    assert result.ours > 0
    assert result.reference_value > 0
    assert list(tmp_path.iterdir()) == []
