"""How a driver waits: for others that are faster, and for a node that is away."""

import threading
import time
from contextlib import closing
from itertools import pairwise

import pytest
from tests.client.doors import RunningNode
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_pipeline import a_definition, ids

import headrace
from headrace.errors import BadConfig
from headrace.spark.pipeline.pipeline import Pipeline, opened
from headrace.spark.source_options import parse
from headrace.spark.topic_source import TopicSource


@pytest.mark.parametrize("once", [True, False])
def test_a_driver_that_goes_on_losing_waits_longer_and_longer(
    tmp_path, topic, monkeypatch, once
):
    began = []

    def loses(self):
        began.append(time.monotonic())
        if len(began) == 7:
            raise KeyboardInterrupt
        self.lost += 1

    definition = a_definition(tmp_path)
    monkeypatch.setattr(Pipeline, "round", loses)
    with closing(TopicSource(parse(definition.options), "30s")) as topic_source:
        pipeline = Pipeline(lambda: None, definition, topic_source)
        with closing(pipeline.run(once=once)) as running, pytest.raises(KeyboardInterrupt):
            next(running)
    waits = [after - before for before, after in pairwise(began)]
    assert min(waits[:2]) < 0.1  # who has lost once goes on at once
    for wait, least in zip(waits[2:], (0.1, 0.2, 0.4, 0.8), strict=True):
        assert wait >= least


@pytest.mark.parametrize(("by", "seconds"), [("address", 12.0), ("path", 2.0)])
def test_a_node_that_is_away_while_a_round_is_planned_is_waited_for(
    spark, tmp_path, by, seconds
):
    node = RunningNode(tmp_path / "node")
    with headrace.connect(node.address) as log:
        log.create_topic("shop/orders", SCHEMA).append(rows(0, 50))
    where = {"path": "", "address": node.address} if by == "address" else {"path": "node"}
    again = []

    def start():
        again.append(RunningNode(tmp_path / "node", listen__address=node.address))

    timer = threading.Timer(seconds, start)

    def on_step(step):
        if step == "before files":
            node.stop()
            timer.start()

    try:
        with opened(spark, a_definition(tmp_path, **where)) as pipeline:
            pipeline.on_step = on_step
            assert [each.row_count for each in pipeline.run(once=True)] == [50]
    finally:
        timer.join()
        again[0].stop()
    assert ids(tmp_path) == list(range(50))


@pytest.mark.parametrize("given", ["0s", "soon", "-1s"])
def test_a_timeout_that_cannot_be_is_told(given):
    with pytest.raises(BadConfig, match="timeout"):
        parse({"topic": "shop/orders", "address": "a:1", "timeout": given})
