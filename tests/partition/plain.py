"""The partitions machine once more, as plain lists: slow, obvious, with none of its code.

A partition is the list of all rows it was ever given; an offset is an index into that list.
Every method is one committed entry: it takes the entry's time and what the entry says, and
answers with a tuple, `("refused", code)` or the name and the fields of a result.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_128_digest

PARTITION_BITS = 24
WINDOW = 64
DAY = 24 * 3600 * 1_000_000

Key = tuple[int, int]  # namespace, created
Receipt = tuple[bytes, int, int, bytes]  # stage id, ops, rows, digest


class Row(NamedTuple):
    """One row: when it got its offset, the schema in force then, its values as appended."""

    timestamp: int
    version: int
    values: tuple


@dataclass
class Writer:
    """Everything a writer ever appended here, and when it did so last."""

    written: list[tuple[int, bytes, int, int]]  # version, body, start, end
    timestamp: int


@dataclass
class Life:
    """One partition from its opening to its closing."""

    key: Key
    rows: list[Row] = field(default_factory=list)
    first: int = 0
    cursors: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    writers: dict[bytes, Writer] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.rows)

    def shown(self, start: int, end: int, width: int) -> list[tuple]:
        """Return rows as a reader sees them: the system's columns, then `width` of the user."""
        number = self.key[0] % 2**PARTITION_BITS
        return [
            (number, offset, row.timestamp, *row.values, *[None] * (width - len(row.values)))
            for offset, row in enumerate(self.rows[start:end], start)
        ]

    def offset_at(self, timestamp: int) -> int:
        for offset in range(self.first, self.end):
            if self.rows[offset].timestamp >= timestamp:
                return offset
        return self.end


class Staged(NamedTuple):
    """One Stage: for which partition, its rows and its body."""

    key: Key
    rows: list[tuple]
    body: bytes


@dataclass
class Stage:
    """The rows of one task of a transaction."""

    stage_id: bytes
    writer: bytes
    version: int
    entries: list[Staged] = field(default_factory=list)

    @property
    def receipt(self) -> Receipt:
        digest = bytes(16)
        for entry in self.entries:
            digest = xxh3_128_digest(digest + xxh3_128_digest(entry.body))
        rows = sum(len(entry.rows) for entry in self.entries)
        return self.stage_id, len(self.entries), rows, digest


@dataclass
class Topic:
    """What the partitions of a topic share while one of them is open."""

    created: int
    newest: int  # versions are dense from 1
    stages: dict[bytes, Stage] = field(default_factory=dict)
    published: dict[bytes, tuple] = field(default_factory=dict)  # writer: version, asked, given
    staged_at: dict[bytes, int] = field(default_factory=dict)


@dataclass
class Plain:
    """Everything."""

    revision: int = 0
    lives: dict[int, Life] = field(default_factory=dict)  # by namespace
    closed: dict[int, int] = field(default_factory=dict)  # namespace: the newest one closed
    topics: dict[int, Topic] = field(default_factory=dict)

    def open(self, now, key, at, topic_created, versions):
        namespace, created = key
        if at < self.revision:
            return refused("stale")
        life = self.lives.get(namespace)
        if life is not None and life.key == key:
            self.revision = at
            return "Opened", life.end
        if life is not None or created <= self.closed.get(namespace, 0):
            return refused("recreated")
        number = namespace >> PARTITION_BITS
        topic = self.topics.setdefault(number, Topic(topic_created, versions))
        if topic.created != topic_created:
            return refused("topic_unknown")
        topic.newest = max(topic.newest, versions)
        self.lives[namespace] = Life(key)
        self.revision = at
        return "Opened", 0

    def close(self, now, key, at):
        namespace, created = key
        life = self.life(key)
        if at < self.revision:
            return refused("stale")
        if isinstance(life, tuple) and created > self.closed.get(namespace, 0):
            return life
        self.revision = at
        if isinstance(life, tuple):
            return ("Closed",)
        topic = self.topic_of(key)
        self.drop(topic, lambda stage: any(entry.key == key for entry in stage.entries))
        del self.lives[namespace]
        self.closed[namespace] = created
        number = namespace >> PARTITION_BITS
        if not any(each >> PARTITION_BITS == number for each in self.lives):
            del self.topics[number]
        return ("Closed",)

    def set_schema(self, now, key, version):
        topic = self.topic(key)
        if isinstance(topic, tuple):
            return topic
        if version != topic.newest + 1:
            return refused("schema_not_next")
        topic.newest = version
        return "SchemaSet", version

    def append(self, now, key, writer, version, schema_id, rows, body):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        if not rows:
            return refused("empty")
        if not 1 <= schema_id <= self.topic_of(key).newest:
            return refused("schema_unknown")
        answer = known_version(life.writers.get(writer), version, body)
        if answer is not None:
            return answer
        start, end = self.give(now, life, rows)
        known = life.writers.setdefault(writer, Writer([], now))
        known.written.append((version, body, start, end))
        known.timestamp = now
        return "AppendResult", start, end, False

    def give(self, now, life, rows):
        start = life.end
        version = self.topic_of(life.key).newest
        life.rows += [Row(now, version, values) for values in rows]
        return start, life.end

    def stage(self, now, key, writer, version, stage_id, number, schema_id, rows, body):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        topic = self.topic_of(key)
        if not rows:
            return refused("empty")
        if not 1 <= schema_id <= topic.newest:
            return refused("schema_unknown")
        if writer in topic.published and version <= topic.published[writer][0]:
            return refused("superseded")
        stage = topic.stages.get(stage_id) or Stage(stage_id, writer, version)
        answer = known_entry(stage, writer, version, number, body)
        if answer is not None:
            return answer
        topic.stages[stage_id] = stage
        stage.entries.append(Staged(key, rows, body))
        topic.staged_at[writer] = now
        return "StageResult", stage.receipt, False

    def publish(self, now, key, writer, version, receipts):
        topic = self.topic(key)
        if isinstance(topic, tuple):
            return topic
        last, asked, given = topic.published.get(writer, (0, (), ()))
        if writer in topic.published and version == last:
            return "PublishResult", given, True, asked == receipts
        if writer in topic.published and version < last:
            return refused("superseded")
        seen = set()
        for receipt in receipts:
            if receipt[0] in seen:
                return refused("stage_repeated")
            seen.add(receipt[0])
            if not is_there(topic, writer, version, receipt):
                return refused("stage_missing")
        ranges = {}  # one for each partition, in the order of their first rows
        for receipt in receipts:
            for entry in topic.stages[receipt[0]].entries:
                start, end = self.give(now, self.lives[entry.key[0]], entry.rows)
                first = ranges.get(entry.key[0], (start, end))[0]
                ranges[entry.key[0]] = first, end
        given = tuple((namespace, *each) for namespace, each in ranges.items())
        topic.published[writer] = version, receipts, given
        self.drop(topic, lambda each: each.writer == writer and each.version <= version)
        return "PublishResult", given, False, True

    def discard(self, now, key, writer, stage_ids):
        topic = self.topic(key)
        if isinstance(topic, tuple):
            return topic
        mine = {key for key, stage in topic.stages.items() if stage.writer == writer}
        return "DiscardResult", self.drop(
            topic, lambda each: each.stage_id in mine & {*stage_ids}
        )

    def drop(self, topic, is_meant):
        gone = [key for key, stage in topic.stages.items() if is_meant(stage)]
        for key in gone:
            del topic.stages[key]
        return len(gone)

    def store_cursor(self, now, key, group, following, generation, hold):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        if not group:
            return refused("bad_name")
        if group in life.cursors and generation < life.cursors[group][1]:
            return refused("fenced")
        if following == -1:  # whoever takes it over keeps its place and its hold
            return self.take_over(life.cursors, group, generation, hold)
        if not 0 <= following <= life.end:
            return refused("out_of_range")
        life.cursors[group] = following, generation, hold
        return "CursorStored", following

    def take_over(self, cursors, group, generation, hold):
        if group not in cursors:
            return refused("cursor_unknown")
        following, _, held = cursors[group]
        cursors[group] = following, generation, held or hold
        return "CursorStored", following

    def delete_cursor(self, now, key, group, generation):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        if group not in life.cursors:
            return refused("cursor_unknown")
        if generation < life.cursors[group][1]:
            return refused("fenced")
        del life.cursors[group]
        return ("CursorDeleted",)

    def trim(self, now, key, first, past_hold):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        if not 0 <= first <= life.end:
            return refused("out_of_range")
        holds = sorted(
            (following, group)
            for group, (following, _, hold) in life.cursors.items()
            if hold and following < first
        )
        if holds and not past_hold:
            first = holds[0][0]
        life.first = max(life.first, first)
        return "TrimResult", life.first, tuple((group, following) for following, group in holds)

    def purge(self, now, key):
        life = self.life(key)
        if isinstance(life, tuple):
            return life
        life.first = life.end
        return "TrimResult", life.end, ()

    def seal(self, now, expire):
        """How many runs become segments is not for this model to say."""
        writer_count = stage_count = 0
        for life in self.lives.values() if expire else ():
            idle = [key for key, one in life.writers.items() if now - one.timestamp > 7 * DAY]
            for key in idle:
                del life.writers[key]
            writer_count += len(idle)
        for topic in self.topics.values() if expire else ():
            idle = {key for key, last in topic.staged_at.items() if now - last > DAY}
            stage_count += self.drop(topic, lambda stage, idle=idle: stage.writer in idle)
        return "Sealed", writer_count, stage_count

    def noise(self, now, code):
        """Answer an entry that says nothing."""
        return refused(code)

    def life(self, key):
        """Return the partition in just this life, or the refusal."""
        life = self.lives.get(key[0])
        if life is None:
            return refused("partition_unknown")
        return life if life.key == key else refused("recreated")

    def topic(self, key):
        topic = self.topics.get(key[0] >> PARTITION_BITS)
        return topic if topic and topic.created == key[1] else refused("topic_unknown")

    def topic_of(self, key):
        return self.topics[key[0] >> PARTITION_BITS]


def known_version(writer, version, body):
    """Answer an append that is not the writer's next one."""
    if writer is None:
        return None if version == 1 else refused("writer_unknown")
    window = writer.written[-WINDOW:]
    if version == window[-1][0] + 1:
        return None
    if version > window[-1][0]:
        return refused("out_of_order")
    for known, content, start, end in window:
        if known == version:
            same = content == body
            return ("AppendResult", start, end, True) if same else refused("writer_conflict")
    return refused("too_old")


def known_entry(stage, writer, version, number, body):
    """Answer a Stage that is not its stage's next one."""
    if (stage.writer, stage.version) != (writer, version):
        return refused("writer_conflict")
    if number > len(stage.entries):
        return refused("out_of_order")
    if number == len(stage.entries):
        return None
    same = stage.entries[number].body == body
    return ("StageResult", stage.receipt, True) if same else refused("writer_conflict")


def is_there(topic, writer, version, receipt):
    stage = topic.stages.get(receipt[0])
    return (
        stage is not None
        and stage.receipt == receipt
        and (stage.writer, stage.version) == (writer, version)
    )


def refused(code):
    return "refused", code
