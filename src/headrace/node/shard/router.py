"""Which shard serves a partition: one table for all shards of a node.

A row states that a shard's machine has this life of the partition. Only the reconciler of that
shard inserts it; without a row, no shard is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from headrace.errors import PartitionUnknown, Recreated
from headrace.metadata.state import MetadataState, MetadataTarget
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import is_past, is_within, newest
from headrace.partition.reader import Key

_NO_ROWS: Final[Mapping[Namespace, Revision]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Route:
    """The shard whose machine has this life."""

    shard: GroupId
    created: Revision


@dataclass(frozen=True, slots=True)
class Awaited:
    """The shard that will have this life: metadata wants it there, but it is not yet open."""

    shard: GroupId
    created: Revision


@dataclass(slots=True)
class Router:
    """The rows of all open partitions. Invariant: both tables agree."""

    _routes: dict[Namespace, Route] = field(default_factory=dict)
    _rows: dict[GroupId, dict[Namespace, Revision]] = field(default_factory=dict)
    # Rows checked against metadata; the result holds until its revision rises.
    _compared: dict[int, Route] = field(default_factory=dict)
    _compared_with: tuple[MetadataState, Revision] | None = None

    def __len__(self) -> int:
        return len(self._routes)

    def route(self, namespace: int, created: int, metadata: MetadataState) -> Route | Awaited:
        """Find the shard of one life; `namespace` and `created` are untrusted.

        `metadata` is the state applied here. It fences deleted lives at once, before a
        reconciler has removed their rows, and it may lag behind a row. Awaited: the caller
        parks the request. PartitionUnknown: unknown here, or not yet known. Recreated: the
        requested life is over, and there is a newer one.
        """
        known = self._compared_with
        if known is None or known[0] is not metadata or known[1] != metadata.revision:
            self._compared_with = (metadata, metadata.revision)
            self._compared.clear()
        row = self._compared.get(namespace)
        if row is not None and row.created == created:
            return row
        found = self._compare(namespace, created, metadata)
        if isinstance(found, Route):
            self._compared[namespace] = found
        return found

    def _compare(
        self, namespace: int, created: int, metadata: MetadataState
    ) -> Route | Awaited:
        key = Key(Namespace(namespace), Revision(created))
        row = self._routes.get(key.namespace)
        wanted = metadata.partition_at(namespace)
        known = _newest(row, wanted)
        if known is None or is_past(created, known):
            raise PartitionUnknown(str(key))
        if created != known:  # older, or of a lost history
            raise Recreated(f"{namespace:x}", expected=created, found=known)
        if row is not None and row.created == created:
            if wanted is None and is_within(created, metadata.revision):
                raise PartitionUnknown(str(key))  # deleted; the row is about to go
            return row
        assert wanted is not None
        return Awaited(wanted.shard, wanted.created)

    def insert(self, key: Key, shard: GroupId) -> None:
        """Insert the row of a life. A newer life's row stays: two shards may have one each."""
        known = self._routes.get(key.namespace)
        if known is not None:
            if is_past(known.created, key.created):
                return
            del self._rows[known.shard][key.namespace]
        self._compared.pop(key.namespace, None)
        self._routes[key.namespace] = Route(shard, key.created)
        self._rows.setdefault(shard, {})[key.namespace] = key.created

    def remove(self, key: Key) -> None:
        """Remove the row of a life, but not that of another life."""
        known = self._routes.get(key.namespace)
        if known is not None and known.created == key.created:
            self._compared.pop(key.namespace, None)
            del self._routes[key.namespace]
            del self._rows[known.shard][key.namespace]

    def rows_of(self, shard: GroupId) -> Mapping[Namespace, Revision]:
        """Return a live view of a shard's rows."""
        rows = self._rows.get(shard)
        return _NO_ROWS if rows is None else MappingProxyType(rows)


def _newest(row: Route | None, wanted: MetadataTarget | None) -> Revision | None:
    if row is None or wanted is None:
        known = wanted or row
        return None if known is None else known.created
    return newest(wanted.created, row.created)
