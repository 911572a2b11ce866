"""Finds the partitions that were open where a journal begins, without a snapshot.

The metadata records each partition's life and its topic's schemas. Where that is lost, entries
and segments show the lives, and segments show the schemas of their rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.doctor.look.entries import Entries
from headrace.doctor.look.orphan_segment import LoneState
from headrace.journal.entry import Header
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import is_past
from headrace.partition.machine.operations import (
    APPEND,
    STAGE,
    OpenPartition,
    Publish,
    Schema,
    SetSchema,
    decode,
)


class Life(NamedTuple):
    """One life of a partition."""

    namespace: int
    created: int


@dataclass(frozen=True, slots=True)
class LifetimeOrigin:
    """A partition that was open before the first entry of the journal."""

    life: Life
    topic: int  # its number
    topic_created: Revision
    schemas: tuple[Schema, ...]  # of its topic by now, from version 1 on
    schema_count: int  # how many of them there were before the journal


@dataclass(slots=True)
class Recorded:
    """The headers of all remaining entries, split where the journal begins."""

    base: Op  # the journal has what follows
    before: dict[Op, Header] = field(default_factory=dict)  # from carry files
    after: dict[Op, Header] = field(default_factory=dict)
    unreadable: list[Op] = field(default_factory=list)  # carried before, and corrupt

    @classmethod
    def of(cls, entries: Entries) -> "Recorded":
        """Read every header; without a journal, all count as before it."""
        journaled = [*entries.journal, *entries.strays]
        known = entries.ops(Op(0))
        base = min(journaled) - 1 if journaled else max(known, default=0)
        found = cls(Op(base))
        for op in known:
            header = entries.header(op)
            if header is not None:
                (found.before if op <= base else found.after)[op] = header
            elif op <= base:
                found.unreadable.append(op)
        return found

    def lives(self) -> set[Life]:
        """Return the lives that had rows before the journal begins."""
        return {
            Life(one.namespace, one.created)
            for one in self.before.values()
            if one.operation in (APPEND, STAGE)
        }

    def opened(self) -> set[Life]:
        """Return the lives that began in the journal."""
        return {
            Life(one.namespace, one.created)
            for one in self.after.values()
            if one.operation == OpenPartition.operation
        }

    def first_times(self, bits: int) -> "FirstTimes":
        """Return when the journal first assigned offsets in each partition and topic."""
        found = FirstTimes()
        for _, one in sorted(self.after.items()):
            if one.operation == APPEND:
                life = Life(one.namespace, one.created)
                found.appends.setdefault(life, one.timestamp)
            elif one.operation == Publish.operation:
                topic = (one.namespace >> bits, one.created)
                found.publishes.setdefault(topic, one.timestamp)
        return found


@dataclass(slots=True)
class FirstTimes:
    """The times of the first Append to each life and the first Publish to each topic."""

    appends: dict[Life, int] = field(default_factory=dict)
    publishes: dict[tuple[int, int], int] = field(default_factory=dict)  # number, created

    def of(self, origin: LifetimeOrigin) -> int | None:
        """Return the first time at which a partition may have received rows."""
        topic = (origin.topic, origin.topic_created)
        known = (self.appends.get(origin.life), self.publishes.get(topic))
        return min((time for time in known if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class Census:
    """Finds the partitions of one shard."""

    group: GroupId
    bits: int  # of a partition's number in a namespace
    metadata: MetadataState | None
    is_complete: bool  # nothing of the metadata is lost
    entries: Entries
    recorded: Recorded
    segments: Mapping[Life, list[LoneState]]

    def origins(self) -> dict[Namespace, LifetimeOrigin]:
        """Return the partitions that were open at the base, each in one life."""
        known = self.recorded.lives() | self._sealed_lives()
        fresh = self.recorded.opened() - known
        newest = self._schema_counts()
        found: dict[Namespace, LifetimeOrigin] = {}
        targets = self.metadata.target() if self.metadata is not None else {}
        for namespace, target in targets.items():
            life = Life(namespace, target.created)
            if target.shard == self.group and life not in fresh:
                topic = namespace >> self.bits
                schemas = tuple(Schema(each.id, each.data) for each in target.schemas)
                count = newest.get((topic, target.topic_created), len(schemas))
                created = target.topic_created
                found[namespace] = LifetimeOrigin(life, topic, created, schemas, count)
        if not self.is_complete:
            for life in sorted(known):  # the newest wins
                self._add_unnamed(life, found)
        return found

    def _sealed_lives(self) -> set[Life]:
        """Return the lives with rows in segments; a file name alone proves nothing."""
        return {
            life
            for life, some in self.segments.items()
            if any(one.task is not None for one in some)
        }

    def _add_unnamed(self, life: Life, found: dict[Namespace, LifetimeOrigin]) -> None:
        namespace, topic = Namespace(life.namespace), life.namespace >> self.bits
        one = found.get(namespace)
        if one is not None and not is_past(life.created, one.life.created):
            return
        siblings = [each for each in found.values() if each.topic == topic]
        if siblings:
            found[namespace] = replace(siblings[0], life=life)
            return
        schemas = self._schemas_of(topic)
        if schemas:
            created = Revision(life.created)
            found[namespace] = LifetimeOrigin(life, topic, created, schemas, len(schemas))

    def _schemas_of(self, topic: int) -> tuple[Schema, ...]:
        """Return the schemas that segments of a topic have, from version 1 on."""
        known = {
            one.task.info.schema_id: one.task.schema
            for life, some in self.segments.items()
            if life.namespace >> self.bits == topic
            for one in some
            if one.task is not None
        }
        found: list[Schema] = []
        while len(found) + 1 in known:
            found.append(Schema(len(found) + 1, known[len(found) + 1]))
        return tuple(found)

    def _schema_counts(self) -> dict[tuple[int, int], int]:
        """Return how many schemas a topic had before the journal added the next one."""
        found: dict[tuple[int, int], int] = {}
        for op, header in sorted(self.recorded.after.items()):
            if header.operation != SetSchema.operation:
                continue
            entry = self.entries.read(op)
            command = decode(header.operation, entry.body) if entry is not None else None
            if isinstance(command, SetSchema):
                key = (header.namespace >> self.bits, header.created)
                found.setdefault(key, command.version - 1)
        return found


def by_life(states: Iterable[LoneState]) -> dict[Life, list[LoneState]]:
    """Sort segments by life, then by offset, intact ones first."""
    found: dict[Life, list[LoneState]] = {}
    for one in states:
        if one.place is not None:
            found.setdefault(Life(*one.place[:2]), []).append(one)
    for some in found.values():
        some.sort(key=lambda each: (each.first, bool(each.why), -each.end))
    return found
