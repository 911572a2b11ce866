"""The bench of Spark, at a size that only shows that it runs."""

import json

import pytest

from headrace.errors import Unavailable
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.cases.spark import _Shared, cases
from headrace_lab.bench.frame import measure
from headrace_lab.bench.spark_rows import PARTITIONS, RECORDS_OF_1_KIB, TOPIC, UNSEALED

TINY = 1 / 256
FLOORS = [1.0, 0.8, 0.6, None, None, None, 0.7, 0.7, None, 0.9, 1 / 1.5, 0.6]


@pytest.mark.campaign(1)
@pytest.mark.parametrize("number", range(len(FLOORS)))
def test_spark_over_a_topic_is_measured_beside_its_own_files(spark, tmp_path, number):
    case = cases(tmp_path, TINY)[number]
    assert case.floor == FLOORS[number]
    result = measure(case, 1, lambda _: None)
    assert result.ours > 0
    assert result.reference_value > 0
    assert list(tmp_path.iterdir()) == []


def test_a_scan_that_leaves_rows_out_is_no_measurement(spark, tmp_path):
    shared = _Shared(tmp_path)
    with shared._log(RECORDS_OF_1_KIB, 2 * MIB, UNSEALED) as address:
        stream = spark.readStream.format("headrace").option("topic", TOPIC)
        stream = stream.option("address", address)
        assert shared._drained(stream) > 0
        later = json.dumps({number: int(number == 0) for number in range(PARTITIONS)})
        with pytest.raises(Unavailable, match=r"a scan of the bench read .* rows, not"):
            shared._drained(stream.option("startingOffsets", later))
