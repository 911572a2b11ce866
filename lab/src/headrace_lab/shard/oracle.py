"""The row oracle: the requests to a shard, in a user's terms, and the rows that it must hold.

Written independently of the machine that it checks: a partition is a list of rows, and every
lookup scans all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.journal.entry import SEAL
from headrace.model.ids import Offset, Revision
from headrace.model.proposal import NO_WRITER, EntryProposal
from headrace.model.results import Receipt
from headrace.partition.machine import operations
from headrace.partition.machine.operations import Seal
from headrace.partition.machine.transactions import fold
from headrace.partition.reader import Key
from headrace_lab.shard.shard import (
    appending,
    closing,
    discarding,
    evolving,
    opening,
    publishing,
    purging,
    staging,
    storing,
    trimming,
)

Row = tuple[object, ...]  # the user's columns; those that came later are missing at its end
Answer = tuple[object, ...] | None  # None is a refusal

SCHEMAS = (
    pa.schema([("id", pa.int32()), ("name", pa.string())]),
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())]),
)
COLUMNS = tuple(SCHEMAS[-1].names)


@dataclass(frozen=True, slots=True)
class Deed:
    """One request. Which fields count is said by `kind`."""

    kind: str
    key: Key  # of the partition; of partition 0 with the topic's `created` for a whole topic
    writer: bytes = NO_WRITER
    version: int = 0  # of the writer, or of a schema; of a Seal, its format
    rows: tuple[Row, ...] = ()
    schema_id: int = 1
    stage: tuple[bytes, int] = (b"", 0)
    stages: tuple[tuple["Deed", ...], ...] = ()  # what a publish or discard names, by stage
    offset: int = 0
    group: str = ""
    topic: int = 0  # its `created`
    at: int = 0  # the metadata revision it was planned with


@cache
def proposal(deed: Deed) -> EntryProposal:
    """Return the entry that asks for a deed."""
    return _PROPOSALS[deed.kind](deed)


def _open(deed: Deed) -> EntryProposal:
    schemas = SCHEMAS[: deed.version]
    return opening(deed.key, schemas, Revision(deed.topic), Revision(deed.at))


def _stage(deed: Deed) -> EntryProposal:
    rows = _batch(deed)
    return staging(deed.key, rows, deed.writer, deed.version, deed.stage, deed.schema_id)


def _publish(deed: Deed) -> EntryProposal:
    receipts = [_receipt(stage) for stage in deed.stages]
    return publishing(deed.key, deed.writer, deed.version, receipts)


_PROPOSALS: Final[dict[str, Callable[[Deed], EntryProposal]]] = {
    "open": _open,
    "close": lambda it: closing(it.key, Revision(it.at)),
    "evolve": lambda it: evolving(it.key, it.version, SCHEMAS[it.version - 1]),
    "append": lambda it: appending(it.key, _batch(it), it.writer, it.version, it.schema_id),
    "stage": _stage,
    "publish": _publish,
    "discard": lambda it: discarding(it.key, it.writer, [one[0].stage[0] for one in it.stages]),
    "cursor": lambda it: storing(it.key, it.group, Offset(it.offset), hold=True),
    "trim": lambda it: trimming(it.key, Offset(it.offset)),
    "purge": lambda it: purging(it.key),
    "seal": lambda it: EntryProposal(SEAL, operations.encode(Seal(False, it.version))),
}


def _batch(deed: Deed) -> pa.RecordBatch:
    schema = SCHEMAS[deed.schema_id - 1]
    columns = [list(column) for column in zip(*deed.rows, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _receipt(stage: tuple[Deed, ...]) -> Receipt:
    digest = bytes(16)
    for deed in stage:
        digest = fold(digest, xxh3_128_digest(proposal(deed).body))
    return Receipt(stage[0].stage[0], len(stage), sum(len(deed.rows) for deed in stage), digest)


@dataclass(slots=True)
class Life:
    """One life of one partition."""

    topic: int
    first: int = 0
    rows: list[tuple[int, Row]] = field(default_factory=list)  # timestamp and row, from 0
    cursors: dict[str, int] = field(default_factory=dict)
    answers: dict[tuple[bytes, int], tuple[int, int]] = field(default_factory=dict)
    repeats: dict[tuple[bytes, int], Deed] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.rows)

    def add(self, rows: tuple[Row, ...], timestamp: int) -> tuple[int, int]:
        start = self.end
        self.rows += [(timestamp, row) for row in rows]
        return start, self.end


@dataclass(slots=True)
class Oracle:
    """All partitions after some deeds."""

    lives: dict[Key, Life] = field(default_factory=dict)
    closed: set[Key] = field(default_factory=set)
    staged: dict[bytes, list[Deed]] = field(default_factory=dict)
    published: dict[tuple[int, bytes], tuple[Deed, Answer]] = field(default_factory=dict)

    def note(self, deed: Deed, timestamp: int) -> Answer:
        """Do a deed and return what must be answered."""
        if deed.kind == "open":
            life = self.lives.setdefault(deed.key, Life(deed.topic))
            return ("opened", life.end)
        if deed.kind == "publish":
            return self._publish(deed, timestamp)
        if deed.kind == "discard":
            for stage in deed.stages:
                self.staged.pop(stage[0].stage[0], None)
        if deed.kind in ("discard", "evolve", "seal"):
            return (deed.kind,)
        known = self.lives.get(deed.key)
        return None if known is None else self._on_partition(known, deed, timestamp)

    def _on_partition(self, life: Life, deed: Deed, timestamp: int) -> Answer:
        match deed.kind:
            case "append":
                return self._append(life, deed, timestamp)
            case "stage":
                self.staged.setdefault(deed.stage[0], []).append(deed)
                return ("staged", len(self.staged[deed.stage[0]]))
            case "cursor":
                life.cursors[deed.group] = deed.offset
                return ("cursor", deed.offset)
            case "trim":
                held = [deed.offset, *life.cursors.values()]
                life.first = max(life.first, min(held))
                return ("trimmed", life.first)
            case "purge":
                life.first = life.end
                return ("trimmed", life.first)
            case "close":
                del self.lives[deed.key]
                self.closed.add(deed.key)
                return ("closed",)
            case _:
                raise AssertionError(deed.kind)

    def _append(self, life: Life, deed: Deed, timestamp: int) -> Answer:
        mark = (deed.writer, deed.version)
        if mark in life.answers:
            return ("appended", *life.answers[mark], True)
        last = max((one for who, one in life.answers if who == deed.writer), default=0)
        if deed.version != last + 1:
            return None
        life.answers[mark] = life.add(deed.rows, timestamp)
        life.repeats[mark] = deed
        return ("appended", *life.answers[mark], False)

    def _publish(self, deed: Deed, timestamp: int) -> Answer:
        mark = (deed.topic, deed.writer)
        if mark in self.published and self.published[mark][0].version == deed.version:
            return self.published[mark][1]
        parts = [part for stage in deed.stages for part in stage]
        if any(self.staged.get(stage[0].stage[0]) != list(stage) for stage in deed.stages):
            return None
        if any(part.key not in self.lives for part in parts):
            return None
        ranges: list[tuple[int, int, int]] = []
        for part in parts:
            start, end = self.lives[part.key].add(part.rows, timestamp)
            if ranges and ranges[-1][::2] == (part.key.namespace, start):
                start = ranges.pop()[1]
            ranges.append((part.key.namespace, start, end))
        for stage_id, staged in list(self.staged.items()):
            if staged[0].writer == deed.writer and staged[0].version <= deed.version:
                del self.staged[stage_id]
        answer: Answer = ("published", *ranges)
        self.published[mark] = (deed, answer)
        return answer
