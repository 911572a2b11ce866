"""The target state of metadata and the actual state of a shard, compared read-only."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from headrace.metadata.state import MetadataTarget, is_recorded
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import is_within, newest
from headrace.node.doubt.doubt import Doubt
from headrace.partition.machine.operations import Schema
from headrace.partition.machine.state import PartitionsState
from headrace.partition.reader import Key


@dataclass(frozen=True, slots=True)
class TargetView:
    """The target state of metadata, as applied here."""

    revision: Revision
    is_normal: bool  # group 0 is neither recovering nor changing its view here
    partitions: Mapping[Namespace, MetadataTarget]  # all, in order: MetadataState.target()
    deleted: Mapping[Namespace, tuple[Revision, ...]]  # lives: MetadataState
    doubt: Doubt | None = None  # if set, nothing is removed, nor opened in an orphan's place


@dataclass(frozen=True, slots=True)
class ActualView:
    """The actual state of the shard."""

    state: PartitionsState
    routes: Mapping[Namespace, Revision]  # this shard's rows
    files: AbstractSet[Key]  # lives that have files here
    parked: AbstractSet[Key]  # lives that requests wait for
    is_primary: bool = True  # a backup proposes nothing


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both views, and queries about one life. A life is (namespace, created)."""

    shard: GroupId
    target: TargetView
    actual: ActualView

    def unlike(self) -> list[Namespace]:
        """Return the namespaces where metadata, machine and rows do not all agree, in order.

        Nothing needs to be done elsewhere, and few of thousands of partitions differ.
        """
        partitions, wanted = self.actual.state.partitions, self.target.partitions
        there = {(namespace, one.created) for namespace, one in partitions.items()}
        wanted_here = {
            (namespace, one.created)
            for namespace, one in wanted.items()
            if one.shard == self.shard
        }
        differing = (there ^ wanted_here) | (there ^ self.actual.routes.items())
        return sorted({namespace for namespace, _ in differing})

    def lives(self, among: Iterable[Namespace]) -> Iterator[Key]:
        """Yield the lives that the machine has."""
        for namespace in among:
            partition = self.actual.state.partitions.get(namespace)
            if partition is not None:
                yield Key(namespace, partition.created)

    def wanted_here(self, among: Iterable[Namespace]) -> Iterator[tuple[Key, MetadataTarget]]:
        """Yield the lives that metadata places in this shard."""
        for namespace in among:
            target = self.target.partitions.get(namespace)
            if target is not None and target.shard == self.shard:
                yield Key(namespace, target.created), target

    def is_there(self, key: Key) -> bool:
        """Return whether the machine has this very life."""
        partition = self.actual.state.partitions.get(key.namespace)
        return partition is not None and partition.created == key.created

    def has_row(self, key: Key) -> bool:
        """Return whether a row leads to this very life."""
        return self.actual.routes.get(key.namespace) == key.created

    def is_closed(self, key: Key) -> bool:
        """Return whether the machine has closed this life, or a later one."""
        return is_within(key.created, self.actual.state.closed.get(key.namespace, 0))

    def is_wanted(self, key: Key) -> bool:
        """Return whether metadata wants this life, in whichever shard."""
        wanted = self.target.partitions.get(key.namespace)
        return wanted is not None and wanted.created == key.created

    def is_unwanted(self, key: Key) -> bool:
        """Return whether metadata has a record that this very life was deleted.

        One that is merely absent there is an orphan: it is never removed.
        """
        records = self.target.deleted.get(key.namespace, ())
        return is_recorded(records, key.created) and not self.is_wanted(key)

    def is_misplaced(self, key: Key) -> bool:
        """Return whether metadata wants this life in another shard."""
        wanted = self.target.partitions.get(key.namespace)
        return self.is_wanted(key) and wanted is not None and wanted.shard != self.shard

    def is_orphan(self, key: Key) -> bool:
        """Return whether metadata does not mean this life, though it may have its number."""
        doubt = self.target.doubt
        return doubt is not None and doubt.is_orphan(self.shard, key)

    def is_blocked(self, namespace: Namespace) -> bool:
        """Return whether nothing may be opened or changed there."""
        doubt = self.target.doubt
        return doubt is not None and doubt.is_blocked(namespace)

    def successor(self, key: Key) -> Revision | None:
        """Return the newest later life under the same namespace."""
        wanted = self.target.partitions.get(key.namespace)
        there = self.actual.state.partitions.get(key.namespace)
        known = [each.created for each in (wanted, there) if each is not None]
        found = key.created
        for created in known:
            found = newest(found, created)
        return found if found != key.created else None

    def schemas_ahead(self, number: int) -> tuple[Schema, ...]:
        """Return the schemas of an open topic that the machine does not know yet, in order."""
        topic = self.actual.state.topics.get(number)
        target = self.target.partitions.get(self.topic_namespace(number))
        if topic is None or target is None or target.shard != self.shard:
            return ()
        if target.topic_created != topic.created or len(target.schemas) <= topic.newest:
            return ()
        return schemas_of(target)[topic.newest :]

    def topic_namespace(self, number: int) -> Namespace:
        """Return the namespace that stands for a topic: that of its partition 0."""
        return Namespace(number << self.actual.state.partition_bits)


def schemas_of(target: MetadataTarget) -> tuple[Schema, ...]:
    """Return a topic's schemas as the shard's log carries them."""
    return tuple(Schema(each.id, each.data) for each in target.schemas)
