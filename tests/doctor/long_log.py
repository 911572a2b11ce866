"""A log of one shard whose journal begins late: what came before is in segments or carry files.

a/rows    2 partitions: segments, then journaled; a transaction on both, published early
a/slow    1 partition: appends and two published transactions that are carried alone, and
          rows of a transaction that stays open; more of each in the journal
a/again   deleted and made anew, with rows of both lives in carry files
"""

import shutil
from pathlib import Path

import pytest
from tests.doctor.rows import Ids, ids_of

import headrace
from headrace.partition.machine.segment_cut import SegmentSizes

SETTINGS = {
    "journal__file_size": "1MiB",
    "limits__body_size": "64KiB",
    "seal__age": "1h",
    "seal__children": "1",
    "seal__size": "256KiB",
}
ROWS, SLOW, AGAIN = "a/rows", "a/slow", "a/again"
SHARD = "groups/00001"
OPEN = -7  # the id of all rows that are staged and never published
OLD_LIFE = -9  # the id of all rows of the topic that was deleted
_COUNT = 160


def fill(stopped: Path, killed: Path) -> Ids:
    """Make the log, as a clean stop and as a kill leave it; return the ids of all rows."""
    done: Ids = {}
    with pytest.MonkeyPatch.context() as patch, headrace.open(stopped, **SETTINGS) as log:
        # Which rows of a transaction are sealed and which are carried hangs on the first Seals.
        patch.setattr(SegmentSizes, "first_of", lambda sizes, namespace: sizes.of(namespace)[0])
        rows = log.create_topic(ROWS, {"id": "int64", "text": "string"}, partitions=2)
        slow = log.create_topic(SLOW, {"id": "int64"})
        again = log.create_topic(AGAIN, {"id": "int64"})
        for number in range(_COUNT):
            _append(rows, done, number % 2, 10, text="x" * 4_000)
            if number in (20, 90):
                _publish(log, rows, done, number, (0, 1), text="t")
            if number == 120:
                again.append([{"id": OLD_LIFE}] * 3)
                _fill_slow(log, slow, done)
                again.delete()
                again = log.create_topic(AGAIN, {"id": "int64"})
                _append(again, done, 0, 4)
        _append(slow, done, 0, 5)
        _publish(log, slow, done, 3, (0,))
        _append(again, done, 0, 4)
        slow.store_cursors("readers", {0: 3})
        shutil.copytree(stopped, killed, ignore=shutil.ignore_patterns("*.sock", "*.tmp"))
    return done


def _fill_slow(log: headrace.Log, slow: headrace.Topic, done: Ids) -> None:
    _append(slow, done, 0, 10)
    _publish(log, slow, done, 1, (0,))
    _append(slow, done, 0, 5)
    _publish(log, slow, done, 2, (0,))
    opened = log.transaction(slow, "other", 1)
    opened.__enter__().append([{"id": OPEN}] * 3)
    _append(slow, done, 0, 5)


def _publish(
    log: headrace.Log,
    topic: headrace.Topic,
    done: Ids,
    version: int,
    partitions: tuple[int, ...],
    **more: str,
) -> None:
    with log.transaction(topic, "loader", version) as transaction:
        for partition in partitions:
            transaction.append(
                _next(topic.name, done, partition, 6, **more), partition=partition
            )


def _append(topic: headrace.Topic, done: Ids, partition: int, count: int, **more: str) -> None:
    topic.append(_next(topic.name, done, partition, count, **more), partition=partition)


def _next(name: str, done: Ids, partition: int, count: int, **more: str) -> list[dict]:
    """Give rows whose ids are their offsets."""
    known = done.setdefault((name, partition), [])
    fresh = range(len(known), len(known) + count)
    known.extend(fresh)
    return [{"id": one, **more} for one in fresh]


def ids(path: Path) -> Ids:
    """Read the ids of all rows of a log, through the API."""
    return ids_of(path, SETTINGS)
