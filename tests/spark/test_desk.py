"""What the driver asks of a topic before it goes on. No Spark."""

from contextlib import closing
from dataclasses import replace

import pytest
from tests.spark.conftest import rows

from headrace.spark.desk import CheckpointAhead, Desk, LogReplaced
from headrace.spark.options import parse


@pytest.fixture
def desk(tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    options = parse({"topic": "shop/orders", "path": str(tmp_path / "data")})
    with closing(Desk(options, "30s")) as desk:
        yield desk


def test_places_up_to_the_end_are_taken_and_a_new_partition_begins_with_0(desk):
    assert desk.check(desk.offsets({0: 10})) == {0: 10, 1: 0}
    assert desk.check(desk.offsets({0: 4, 1: 0})) == {0: 4, 1: 0}


@pytest.mark.parametrize(("number", "place", "end"), [(0, 11, 10), (1, 1, 0)])
def test_a_place_that_the_log_does_not_reach_is_named(desk, number, place, end):
    text = f"at row {place} of partition {number}, the log of shop/orders ends at {end}"
    with pytest.raises(CheckpointAhead, match=text):
        desk.check(desk.offsets({number: place}))


def test_places_in_another_log_are_refused_though_all_their_numbers_fit(desk):
    places = replace(desk.offsets({0: 4}), cluster="5f" * 16)
    with pytest.raises(
        LogReplaced, match=f"is of log {'5f' * 16}, and .* is {'[0-9a-f]' * 32}"
    ):
        desk.check(places)


def test_a_partition_that_the_log_does_not_have_is_named(desk):
    text = "at row 7 of partition 3, the log of shop/orders has 2 partitions, from 0 on"
    with pytest.raises(CheckpointAhead, match=text):
        desk.check(desk.offsets({0: 4, 1: 0, 3: 7}))
    with pytest.raises(CheckpointAhead, match=text) as caught:
        desk.spans({0: (0, 4), 3: (2, 7)}, desk.schema(), desk.version)
    assert "begin with a new checkpointLocation" in caught.value.hint
