"""Many batches with all that happens to a table in between, and drivers in lock-step."""

import os
import threading
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import rows
from tests.spark.lockstep import at_once
from tests.spark.test_pipeline import a_definition, ids
from tests.spark.test_prove import prove

from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened
from headrace.spark.tables.table_errors import TableForeign

# 200 take minutes: HEADRACE_BATCHES=200 python -m pytest tests/spark/test_pipeline_long.py
BATCHES = int(os.environ.get("HEADRACE_BATCHES", "20"))
ROUNDS = 20
UPKEEP = 4  # batches between one piece of upkeep and the next


def compact(table):
    table.optimize.compact()


def checkpoint(table):
    table.create_checkpoint()


def clean_up(table):
    """Forget entries of the log that a checkpoint covers, however young."""
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    table.cleanup_metadata()


def vacuum(table):
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def add_foreign(table):
    """Append a row as somebody else would, who knows nothing of places."""
    none = {"name": ["foreign"], PARTITION: [None], OFFSET: [None]}
    schema = table.to_pyarrow_table().schema
    extra = pa.table({"id": [-1], **none}, schema=schema)
    write_deltalake(table.table_uri, extra, mode="append")


def test_upkeep_and_foreign_rows_between_many_batches_change_nothing(spark, tmp_path, topic):
    definition, steps = a_definition(tmp_path), [add_foreign, compact, checkpoint, clean_up]
    steps.append(vacuum)
    foreign, entry_counts = 0, []
    for start in range(0, BATCHES, UPKEEP):
        with opened(spark, definition) as pipeline:  # each time a driver of its own
            for number in range(start, start + UPKEEP):
                topic.append(rows(number * 10, number * 10 + 10), partition=number % 2)
                assert pipeline.round().row_count == 10
        step = steps[start // UPKEEP % len(steps)]
        step(DeltaTable(str(tmp_path / "table")))
        foreign += step is add_foreign
        entry_counts.append(len(list((tmp_path / "table" / "_delta_log").glob("*.json"))))
    assert min(entry_counts[1:]) < UPKEEP  # entries were forgotten
    with opened(spark, definition) as pipeline:
        assert pipeline.round() is None
    assert ids(tmp_path) == [-1] * foreign + list(range(BATCHES * 10))
    code, found = prove(tmp_path)
    assert (code, found["foreign"]) == (6, foreign)
    assert found["missing"] == found["duplicated"] == found["changed"] == 0
    assert "without a position in the log" in found["findings"][0]["note"]
    code, found = prove(tmp_path, "--own-only")
    assert (code, found["holds"], found["foreign"]) == (0, True, foreign)
    assert found["in_log"] == found["in_table"] == BATCHES * 10


def test_of_two_drivers_in_lock_step_one_commits_each_batch(spark, tmp_path, topic):
    definition = a_definition(tmp_path)
    barrier = threading.Barrier(2, timeout=120)
    results, lost = [[], []], [0, 0]
    rounds = threading.Barrier(2, action=lambda: append_next(topic), timeout=120)
    given = iter(range(ROUNDS))

    def append_next(topic):
        number = next(given)
        topic.append(rows(number * 10, number * 10 + 10), partition=number % 2)

    def on_step(step):
        if step == "after files":  # both have looked, both have their files
            barrier.wait()

    def drive(number):
        with opened(spark, definition) as pipeline:
            pipeline.on_step = on_step
            for _ in range(ROUNDS):
                rounds.wait()
                results[number].append(pipeline.round() is not None)
            lost[number] = pipeline.lost

    at_once([partial(drive, number) for number in (0, 1)], barrier, rounds)
    assert [one + other for one, other in zip(*results, strict=True)] == [1] * ROUNDS
    assert sum(lost) == ROUNDS
    assert ids(tmp_path) == list(range(ROUNDS * 10))
    assert prove(tmp_path)[0] == 0


def test_a_table_that_would_forget_its_place_is_refused(spark, tmp_path, topic):
    properties = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    topic.append(rows(0, 5))
    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.round()
        DeltaTable(str(tmp_path / "table")).alter.set_table_properties(properties)
        with pytest.raises(TableForeign, match="which drops the pipeline's position"):
            pipeline.round()
