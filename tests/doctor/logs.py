"""Real logs of a real node, with rows in every place where a row can be, and what was appended.

shop/orders    2 partitions: segments of several row groups, then carried, then journaled
shop/items     1 partition: two schema versions, carried and journaled, a published
               transaction, trimmed at its start
web/clicks     3 partitions: small batches in the journal alone, consumer cursors
"""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.partition.files import linked_journals

SETTINGS = {
    "journal__file_size": "1MiB",
    "limits__body_size": "4MiB",
    "seal__size": "6MiB",
    "seal__age": "1h",
    "seal__children": "1",
}
ORDERS, ITEMS, CLICKS = "shop/orders", "shop/items", "web/clicks"
TRIMMED = 3  # rows of shop/items that are trimmed away
_ORDER = pa.schema([("id", pa.int64()), ("note", pa.binary())])
_ITEM = pa.schema([("id", pa.int64()), ("name", pa.string())])
_NEWER_ITEM = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))]
)
_CLICK = pa.schema([("id", pa.int64()), ("page", pa.string())])


@dataclass(slots=True)
class Appended:
    """What was acknowledged, by topic and partition, in order, in the newest schema."""

    rows: dict[tuple[str, int], list[dict]] = field(default_factory=dict)
    first: dict[tuple[str, int], int] = field(default_factory=dict)  # offset of the first kept
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)  # made when asked for

    def add(self, topic: str, partition: int, rows: list[dict]) -> None:
        self.rows.setdefault((topic, partition), []).extend(rows)

    def kept(self, topic: str, partition: int) -> list[dict]:
        """Return what is retained, each row with its old offset."""
        start = self.first.get((topic, partition), 0)
        rows = self.rows[topic, partition]
        return [{"_offset": n, **row} for n, row in enumerate(rows) if n >= start]

    def table(self, topic: str, partition: int, schema: pa.Schema) -> pa.Table:
        """Return what is retained as a table, which is quick to compare."""
        if (topic, partition) not in self.tables:
            rows = self.kept(topic, partition)
            self.tables[topic, partition] = pa.Table.from_pylist(rows, schema=schema)
        return self.tables[topic, partition]


def fill(path: Path) -> Appended:
    """Make a log with rows in segments, carry files and the journal, and stop it cleanly."""
    done = Appended()
    # Its carry files have copies of their entries: test_kept has journal files that are kept.
    with pytest.MonkeyPatch.context() as patch, headrace.open(path, **SETTINGS) as log:
        patch.setattr(linked_journals, "LIVE_SHARE", 0)
        write(log, done)
    return done


def write(log: headrace.Log, done: Appended) -> None:
    rng = random.Random(7)
    orders = log.create_topic(ORDERS, _ORDER, partitions=2, key="id", retention="30d")
    items = log.create_topic(ITEMS, _ITEM)
    clicks = log.create_topic(CLICKS, _CLICK, partitions=3)
    for first in (0, 10):  # carried through every Seal, and drained from the journal soon
        _append(items, done, 0, _items(first, 10))
    for number in range(46):  # several Seals: old segments, and one that the journal still has
        partition = number % 2
        _append(orders, done, partition, _orders(number * 10_000, 10_000, rng))
    items.evolve(_NEWER_ITEM)
    _append(items, done, 0, _newer_items(20, 10))
    with log.transaction(items, "loader", 1) as transaction:
        transaction.append(_table(_newer_items(30, 5), _NEWER_ITEM))
    done.add(ITEMS, 0, _newer_items(30, 5))
    items.trim(before=TRIMMED)
    done.first[ITEMS, 0] = TRIMMED
    for number in range(12):
        _append(clicks, done, number % 3, _clicks(number * 10, 10))
    _append(orders, done, 0, _orders(900_000, 50, rng))
    _append(items, done, 0, _newer_items(35, 5))
    clicks.store_cursors("readers", {0: 15, 1: 40, 2: 0})
    items.store_cursors("billing", {0: 33})


def _append(topic: headrace.Topic, done: Appended, partition: int, rows: list[dict]) -> None:
    topic.append(_table(rows, topic.schema), partition=partition)
    done.add(topic.name, partition, rows)


def _table(rows: list[dict], schema: pa.Schema) -> pa.Table:
    plain = pa.schema([field for field in schema if not field.name.startswith("_")])
    return pa.Table.from_pylist(rows, schema=plain)


def _orders(first: int, count: int, rng: random.Random) -> list[dict]:
    return [{"id": first + n, "note": rng.randbytes(90)} for n in range(count)]


def _items(first: int, count: int) -> list[dict]:
    return [{"id": n, "name": f"item {n}", "tags": None} for n in range(first, first + count)]


def _newer_items(first: int, count: int) -> list[dict]:
    return [
        {"id": n, "name": f"item {n}", "tags": ["new", str(n)] if n % 3 else None}
        for n in range(first, first + count)
    ]


def _clicks(first: int, count: int) -> list[dict]:
    return [{"id": n, "page": f"/p/{n}"} for n in range(first, first + count)]


def copy_of(log: Path, path: Path) -> Path:
    """Copy a log that nobody holds."""
    shutil.copytree(log, path)
    return path


def read(path: Path) -> dict[tuple[str, int], list[dict]]:
    """Read everything a log has, through the API."""
    return {key: table.to_pylist() for key, table in read_tables(path).items()}


def read_tables(path: Path) -> dict[tuple[str, int], pa.Table]:
    """Read everything a log has, with offsets and the user's columns."""
    found = {}
    with headrace.open(path, **SETTINGS) as log:
        for name in log.topics():
            topic = log.topic(name)
            for partition in range(topic.partitions):
                table = pa.table(topic.read(partition))
                found[name, partition] = table.drop_columns(["_partition", "_timestamp"])
    return found
