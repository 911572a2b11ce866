"""A small log of two shards, with every kind of change behind its last checkpoint.

    a/rows     2 partitions: segments of one row group, carried entries, a published transaction
    b/notes    1 partition, in the other shard: journaled, two schema versions
    a/late     made after the last checkpoint: its OpenPartition is in the journal alone

It is made once, and taken twice: as a kill leaves it, and as a clean stop does.
"""

import shutil
from pathlib import Path

from tests.doctor import harm
from tests.doctor.rows import Ids, ids_of

import headrace
from headrace.journal.entry import Header

SETTINGS = {
    "cluster__shards": 2,
    "journal__file_size": "1MiB",
    "limits__body_size": "64KiB",
    "seal__age": "1h",
    "seal__children": "1",
}
ROWS, NOTES, LATE = "a/rows", "b/notes", "a/late"
FIRST, SECOND = "groups/00001", "groups/00002"
METADATA = "groups/00000"

Counts = dict[tuple[str, int], int]


def fill(stopped: Path, killed: Path) -> Counts:
    """Make both logs; return how many rows each partition has."""
    done: Counts = {}
    with headrace.open(stopped, **SETTINGS, seal__size="64KiB") as log:
        rows = log.create_topic(ROWS, {"id": "int64", "text": "string"}, partitions=2)
        notes = log.create_topic(NOTES, {"id": "int64"})
        for number in range(50):  # a run that waited through enough Seals becomes a segment
            _append(rows, done, number % 2, 10, text="x" * 4_000)
        _append(notes, done, 0, 5)
    with headrace.open(stopped, **SETTINGS, seal__size="64MiB") as log:
        _fill_journal(log, done)
        shutil.copytree(stopped, killed, ignore=shutil.ignore_patterns("*.sock", "*.tmp"))
    return done


def _fill_journal(log: headrace.Log, done: Counts) -> None:
    rows, notes = log.topic(ROWS), log.topic(NOTES)
    for partition in (0, 1):
        _append(rows, done, partition, 10, text="y" * 200)
    notes.evolve({"id": "int64", "word": "string"})
    _append(notes, done, 0, 5, word="new")
    late = log.create_topic(LATE, {"id": "int64"})
    _append(late, done, 0, 4)
    with log.transaction(rows, "loader", 1) as transaction:
        for partition in (0, 1):
            transaction.append(_rows(ROWS, done, partition, 6, text="t"), partition=partition)
    for partition in (0, 1):
        _append(rows, done, partition, 10, text="z" * 200)
    _append(late, done, 0, 4)
    _append(notes, done, 0, 5, word="last")


def _append(
    topic: headrace.Topic, done: Counts, partition: int, count: int, **more: str
) -> None:
    topic.append(_rows(topic.name, done, partition, count, **more), partition=partition)


def _rows(name: str, done: Counts, partition: int, count: int, **more: str) -> list[dict]:
    """Give rows whose ids are their offsets."""
    first = done.get((name, partition), 0)
    done[name, partition] = first + count
    return [{"id": n, **more} for n in range(first, first + count)]


def ids(path: Path) -> Ids:
    """Read the ids of all rows of a log, through the API."""
    return ids_of(path, SETTINGS)


def frame(group: Path, operation: int, number: int = -1) -> harm.Frame:
    """Return one entry of a kind from a group's journal, the last one unless told."""
    return [one for one in harm.frames(group) if one.header.operation == operation][number]


def shard_of(log: Path, header: Header) -> Path:
    return log / "groups" / f"{header.group:05}"
