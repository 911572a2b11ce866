"""Gives leases on the segments of shards: the requests, the table of leases, and the files.

All of it runs on the loop's thread, where entries are applied, too: what it sees of several
partitions is of one moment. A segment that is in a shard's state is named by the newest
snapshot, so no collection that runs beside it is about to unlink it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import BadRequest
from headrace.model.ids import GroupId
from headrace.node.leases import Held, Leases
from headrace.node.shard import Shard
from headrace.partition.keeper import ShardKeeper
from headrace.partition.read import Key
from headrace.partition.segment import segment_name
from headrace.partition.state import Partition, Placed, Segment
from headrace.wire.leasing import (
    Leased,
    LeasedFile,
    LeasedPartition,
    LeaseFiles,
    LeaseReleased,
    LeaseRenewed,
    ReleaseLease,
    RenewLease,
)


class _Running(Protocol):
    """A shard that serves."""

    @property
    def shard(self) -> Shard: ...


@dataclass(slots=True)
class Lessor:
    """The leases of one node."""

    shards: Mapping[GroupId, _Running]
    leases: Leases = field(default_factory=Leases)

    def lease(
        self, request: LeaseFiles, found: Iterable[tuple[Shard, Key]], now: float
    ) -> tuple[Leased, list[Shard]]:
        """Keep the files of these partitions, and say where they are; for the rest `release`.

        A lease of the same id ends with it.
        """
        if not request.partitions:
            raise BadRequest("a lease of no partition", hint="Name those of one topic")
        if len(set(request.partitions)) < len(request.partitions):
            raise BadRequest("a partition is named twice", hint="Name each one once")
        told: list[LeasedPartition] = []
        held: list[Held] = []
        for shard, key in found:
            store = shard.store
            one = leased_partition(store.reader.partition(key), store.keeper)
            told.append(one)
            held += [Held(shard.number, file.name, file.size) for file in one.files]
        self.leases.check(request.lease_id, request.duration_ms, len(held))
        for number, names in _by_shard(held).items():
            self.shards[number].shard.store.keeper.files.lease(names)
        before = self.leases.take(request.lease_id, request.duration_ms, tuple(held), now)
        return Leased(request.duration_ms, tuple(told)), self._end(before)

    def renew(self, request: RenewLease, now: float) -> LeaseRenewed:
        """Let a lease go on; Refused if it has ended."""
        self.leases.renew(request.lease_id, request.duration_ms, now)
        return LeaseRenewed(request.duration_ms)

    def release(self, request: ReleaseLease) -> tuple[LeaseReleased, list[Shard]]:
        """End a lease. The shards have files that may be collected now."""
        return LeaseReleased(), self._end(self.leases.release(request.lease_id))

    def expire(self, now: float) -> list[Shard]:
        """End the leases whose time has come; see `release`."""
        return self._end(self.leases.expire(now))

    def figures(self) -> dict[str, object]:
        """Say what leases keep, and how many bytes are on disk for nothing else."""
        files = self.leases.files()
        kept = [
            held.size
            for held in files
            if held.name in self.shards[held.shard].shard.store.keeper.files.kept_back
        ]
        return {"count": len(self.leases), "files": len(files), "kept_bytes": sum(kept)}

    def _end(self, files: Iterable[Held]) -> list[Shard]:
        due = []
        for number, names in _by_shard(files).items():
            shard = self.shards[number].shard
            if shard.store.keeper.files.end_lease(names):
                due.append(shard)
        return due


def leased_partition(partition: Partition, keeper: ShardKeeper) -> LeasedPartition:
    """Say what is retained, and which files hold the beginning of it, as far as there are any.

    A segment that is no file here ends the row of files, and so does a run that is in none.
    """
    there = keeper.files.there
    files: list[LeasedFile] = []
    sealed_end = partition.first
    for segment in partition.segments:
        file = _file(segment)
        if segment.first > sealed_end or file is None or file.name not in there:
            break
        files.append(file)
        sealed_end = segment.end
    directory = keeper.files.segments.path
    return LeasedPartition(partition.first, sealed_end, partition.end, directory, tuple(files))


def _file(segment: Segment) -> LeasedFile | None:
    place = segment.place
    if not isinstance(place, Placed):
        return None
    first, end = segment.first, segment.end
    name = segment_name(segment.namespace, segment.created, first, end)
    return LeasedFile(name, first, end, segment.version, place.size, place.rows)


def _by_shard(files: Iterable[Held]) -> dict[GroupId, list[str]]:
    found: dict[GroupId, list[str]] = {}
    for held in files:
        found.setdefault(held.shard, []).append(held.name)
    return found
