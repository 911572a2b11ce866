"""How a driver waits: for others that are faster, and for a node that is away."""

import time
from contextlib import closing
from itertools import pairwise

import pytest
from tests.spark.test_pipeline import a_definition

from headrace.spark.desk import Desk
from headrace.spark.options import parse
from headrace.spark.pipeline import Pipeline


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
    with closing(Desk(parse(definition.options), "30s")) as desk:
        pipeline = Pipeline(None, definition, desk, lambda frame: frame)
        with closing(pipeline.run(once=once)) as running, pytest.raises(KeyboardInterrupt):
            next(running)
    waits = [after - before for before, after in pairwise(began)]
    assert min(waits[:2]) < 0.1  # who has lost once goes on at once
    for wait, least in zip(waits[2:], (0.1, 0.2, 0.4, 0.8), strict=True):
        assert wait >= least
