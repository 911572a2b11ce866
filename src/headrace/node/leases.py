"""All leases of a node, as one pure table: which files are kept, and until when.

The caller supplies the time, from a monotonic clock. Calls return the files that a lease no
longer keeps; the caller passes them on to the shards.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from headrace.errors import BadRequest, Busy, Refused
from headrace.model.ids import GroupId
from headrace.node.shard.shard import Shard
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.machine.state import Partition, Placed, Segment
from headrace.partition.reader import Key
from headrace.partition.segments.segment import segment_name
from headrace.wire.file_messages import FILE_NOT_LEASED, FILE_REPLACED, FetchFile
from headrace.wire.lease_messages import (
    LEASE_ID_SIZE,
    LEASE_UNKNOWN,
    FileInfo,
    Leased,
    LeaseFiles,
    LeaseReleased,
    LeaseRenewed,
    PartitionFiles,
    ReleaseLease,
    RenewLease,
)

# The longest that abandoned files are kept. A reader that needs longer renews.
DURATION_MS_MAX: Final = 10 * 60 * 1_000
DURATION_MS_MIN: Final = 1_000  # a shorter one expires before it can be renewed
LEASE_COUNT_MAX: Final = 256  # per node: a few for each driver that reads from it
FILE_COUNT_MAX: Final = 50_000  # per lease: about half of the largest response
_RETRY_AFTER_MS: Final = 1_000


class HeldLease(NamedTuple):
    """A file kept by a lease."""

    shard: GroupId
    name: str
    size: int
    digest: bytes  # xxh3-128 of the whole file


class _Lease(NamedTuple):
    files: dict[str, HeldLease]  # by name, in the order of the answer
    deadline: float


@dataclass(slots=True)
class Leases:
    """The table. Each lease has an id, some files and a deadline."""

    _leases: dict[bytes, _Lease] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._leases)

    def check(self, lease_id: bytes, duration_ms: int, file_count: int) -> None:
        """Raise if a lease cannot be granted. Changes nothing."""
        _check_id(lease_id)
        _check_duration(duration_ms)
        if file_count > FILE_COUNT_MAX:
            raise BadRequest(
                f"these partitions have {file_count:,} segments, but a lease can keep at most "
                f"{FILE_COUNT_MAX:,}",
                hint="Lease fewer partitions at a time",
            )
        if lease_id not in self._leases and len(self._leases) >= LEASE_COUNT_MAX:
            what = f"this node has reached its limit of {len(self._leases)} leases"
            raise Busy(what, _RETRY_AFTER_MS)

    def take(
        self, lease_id: bytes, duration_ms: int, files: tuple[HeldLease, ...], now: float
    ) -> tuple[HeldLease, ...]:
        """Keep files, after `check`; return those of the lease that had this ID before."""
        before = self.release(lease_id)
        by_name = {held.name: held for held in files}
        self._leases[lease_id] = _Lease(by_name, now + duration_ms / 1_000)
        return before

    def renew(self, lease_id: bytes, duration_ms: int, now: float) -> None:
        """Extend a lease: it lasts this long from now."""
        _check_id(lease_id)
        _check_duration(duration_ms)
        known = self._known(lease_id, now)
        self._leases[lease_id] = known._replace(deadline=now + duration_ms / 1_000)

    def digests(self, lease_id: bytes, now: float) -> tuple[bytes, ...]:
        """Return the digest of each file of a lease, in the order in which it names them."""
        _check_id(lease_id)
        return tuple(held.digest for held in self._known(lease_id, now).files.values())

    def file(self, request: FetchFile, now: float) -> HeldLease:
        """Return the file that a request wants a part of, if its lease keeps it."""
        _check_id(request.lease_id)
        name = segment_name(request.namespace, request.created, request.first, request.end)
        held = self._known(request.lease_id, now).files.get(name)
        if held is None:
            raise Refused(
                FILE_NOT_LEASED,
                f"the lease does not keep {name}",
                hint="It was trimmed, or sealed with other rows, before the lease was taken: "
                "fetch only files that the lease names",
            )
        if held.digest != request.digest:
            raise Refused(
                FILE_REPLACED,
                f"{name} was sealed again: expected digest {request.digest.hex()}, found "
                f"{held.digest.hex()}",
                hint="Start over with this file, by the digest that the lease has now",
            )
        return held

    def _known(self, lease_id: bytes, now: float) -> _Lease:
        known = self._leases.get(lease_id)
        if known is None or known.deadline <= now:
            raise Refused(
                LEASE_UNKNOWN,
                "the lease expired, or the node restarted",
                hint="Its files may be deleted: take a new lease, and read the files it names",
            )
        return known

    def release(self, lease_id: bytes) -> tuple[HeldLease, ...]:
        """End the lease with this ID, if any, and return its files."""
        _check_id(lease_id)
        known = self._leases.pop(lease_id, None)
        return () if known is None else tuple(known.files.values())

    def expire(self, now: float) -> list[HeldLease]:
        """End all expired leases, and return their files."""
        late = [key for key, lease in self._leases.items() if lease.deadline <= now]
        return [held for key in late for held in self.release(key)]

    def ends(self) -> dict[str, float]:
        """Return the time until which each file is kept, by name."""
        found: dict[str, float] = {}
        for lease in self._leases.values():
            for name in lease.files:
                found[name] = max(found.get(name, 0.0), lease.deadline)
        return found

    def files(self) -> Collection[HeldLease]:
        """Return every kept file, without duplicates."""
        return {held for lease in self._leases.values() for held in lease.files.values()}


def _check_id(lease_id: bytes) -> None:
    if len(lease_id) != LEASE_ID_SIZE:
        raise BadRequest(f"a lease ID must have {LEASE_ID_SIZE} bytes, got {len(lease_id)}")


def _check_duration(duration_ms: int) -> None:
    if not DURATION_MS_MIN <= duration_ms <= DURATION_MS_MAX:
        raise BadRequest(
            f"a lease must last {DURATION_MS_MIN:,} to {DURATION_MS_MAX:,} ms, got "
            f"{duration_ms:,}",
            hint="Renew it for as long as you need it",
        )


class _LeasingNode(Protocol):
    """A shard in service."""

    @property
    def shard(self) -> Shard: ...


@dataclass(slots=True)
class Lessor:
    """The leases of one node."""

    shards: Mapping[GroupId, _LeasingNode]
    leases: Leases = field(default_factory=Leases)

    def lease(
        self, request: LeaseFiles, found: Iterable[tuple[Shard, Key]], now: float
    ) -> tuple[Leased, list[Shard]]:
        """Keep the files of these partitions, and return where they are; see `release`.

        Replaces a lease with the same ID.
        """
        if not request.partitions:
            raise BadRequest("a lease without partitions", hint="Name those of one topic")
        if len(set(request.partitions)) < len(request.partitions):
            raise BadRequest("a partition is named twice", hint="Name each one once")
        told: list[PartitionFiles] = []
        held: list[HeldLease] = []
        for shard, key in found:
            one, digests = leased_partition(
                shard.store.reader.partition(key), shard.store.keeper
            )
            told.append(one)
            held += [
                HeldLease(shard.number, file.name, file.size, digest)
                for file, digest in zip(one.files, digests, strict=True)
            ]
        self.leases.check(request.lease_id, request.duration_ms, len(held))
        for number, names in _by_shard(held).items():
            self.shards[number].shard.store.keeper.files.lease(names)
        before = self.leases.take(request.lease_id, request.duration_ms, tuple(held), now)
        return Leased(request.duration_ms, tuple(told)), self._end(before)

    def renew(self, request: RenewLease, now: float) -> LeaseRenewed:
        """Extend a lease; Refused if it has ended."""
        self.leases.renew(request.lease_id, request.duration_ms, now)
        return LeaseRenewed(request.duration_ms)

    def release(self, request: ReleaseLease) -> tuple[LeaseReleased, list[Shard]]:
        """End a lease; also return the shards whose files may be collected now."""
        return LeaseReleased(), self._end(self.leases.release(request.lease_id))

    def expire(self, now: float) -> list[Shard]:
        """End expired leases; see `release`."""
        return self._end(self.leases.expire(now))

    def figures(self) -> dict[str, object]:
        """Return figures of leases: counts, and bytes on disk only because of them."""
        files = self.leases.files()
        kept = [
            held.size
            for held in files
            if held.name in self.shards[held.shard].shard.store.keeper.files.kept_back
        ]
        return {"count": len(self.leases), "files": len(files), "kept_bytes": sum(kept)}

    def _end(self, files: Iterable[HeldLease]) -> list[Shard]:
        due = []
        for number, names in _by_shard(files).items():
            shard = self.shards[number].shard
            if shard.store.keeper.files.end_lease(names):
                due.append(shard)
        return due


def leased_partition(
    partition: Partition, keeper: CheckpointFiles
) -> tuple[PartitionFiles, list[bytes]]:
    """Return what is retained, the files that hold the beginning of it, and their digests.

    The list of files ends at the first segment or run that has no file here.
    """
    there = keeper.files.there
    files: list[FileInfo] = []
    digests: list[bytes] = []
    sealed_end = partition.first
    for segment in partition.segments:
        place = segment.place
        if segment.first > sealed_end or not isinstance(place, Placed):
            break
        file = _file(segment, place)
        if file.name not in there:
            break
        files.append(file)
        digests.append(place.file)
        sealed_end = segment.end
    directory = keeper.files.segments.path
    found = PartitionFiles(partition.first, sealed_end, partition.end, directory, tuple(files))
    return found, digests


def _file(segment: Segment, place: Placed) -> FileInfo:
    first, end = segment.first, segment.end
    name = segment_name(segment.namespace, segment.created, first, end)
    return FileInfo(name, first, end, segment.version, place.size, place.rows)


def _by_shard(files: Iterable[HeldLease]) -> dict[GroupId, list[str]]:
    found: dict[GroupId, list[str]] = {}
    for held in files:
        found.setdefault(held.shard, []).append(held.name)
    return found
