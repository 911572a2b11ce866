"""Who may count on which files, and until when: all leases of a node, as one pure table.

Time comes from outside, on a clock that only rises. What a call returns are the files that
nobody keeps by that lease any more; whoever calls tells them to the shards.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.errors import BadRequest, Busy, Refused
from headrace.model.ids import GroupId
from headrace.wire.leasing import LEASE_ID_SIZE, LEASE_UNKNOWN

# Files that a reader has forgotten stay for at most so long. Whoever reads longer renews.
DURATION_MS_MAX: Final = 10 * 60 * 1_000
DURATION_MS_MIN: Final = 1_000  # less is over before it can be renewed
LEASE_COUNT_MAX: Final = 256  # of a node: some for every driver that reads from it
FILE_COUNT_MAX: Final = 50_000  # of a lease: about half of the largest answer
_RETRY_AFTER_MS: Final = 1_000


class Held(NamedTuple):
    """A file that a lease keeps."""

    shard: GroupId
    name: str
    size: int


class _Lease(NamedTuple):
    files: tuple[Held, ...]
    deadline: float


@dataclass(slots=True)
class Leases:
    """The table. Each lease has an id, some files and a deadline."""

    _leases: dict[bytes, _Lease] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._leases)

    def check(self, lease_id: bytes, duration_ms: int, file_count: int) -> None:
        """Raise what stands against a lease; nothing has happened then."""
        _check_id(lease_id)
        _check_duration(duration_ms)
        if file_count > FILE_COUNT_MAX:
            raise BadRequest(
                f"these partitions have {file_count:,} segments, and one lease keeps "
                f"{FILE_COUNT_MAX:,} at most",
                hint="Lease fewer partitions at a time",
            )
        if lease_id not in self._leases and len(self._leases) >= LEASE_COUNT_MAX:
            raise Busy(f"{len(self._leases)} leases are taken on this node", _RETRY_AFTER_MS)

    def take(
        self, lease_id: bytes, duration_ms: int, files: tuple[Held, ...], now: float
    ) -> tuple[Held, ...]:
        """Keep files, after `check`; return those of a lease that had this id."""
        before = self.release(lease_id)
        self._leases[lease_id] = _Lease(files, now + duration_ms / 1_000)
        return before

    def renew(self, lease_id: bytes, duration_ms: int, now: float) -> None:
        """Let a lease last this long from now on."""
        _check_id(lease_id)
        _check_duration(duration_ms)
        known = self._leases.get(lease_id)
        if known is None or known.deadline <= now:
            raise Refused(
                LEASE_UNKNOWN,
                "the lease has ended, by its time or with a restart of the node",
                hint="Its files may be gone: take a new lease, and read what that names",
            )
        self._leases[lease_id] = known._replace(deadline=now + duration_ms / 1_000)

    def release(self, lease_id: bytes) -> tuple[Held, ...]:
        """End a lease, if there is one of this id, and return its files."""
        _check_id(lease_id)
        known = self._leases.pop(lease_id, None)
        return () if known is None else known.files

    def expire(self, now: float) -> list[Held]:
        """End all leases whose time has come, and return their files."""
        late = [key for key, lease in self._leases.items() if lease.deadline <= now]
        return [held for key in late for held in self.release(key)]

    def ends(self) -> dict[str, float]:
        """Return until when each file is kept, by its name."""
        found: dict[str, float] = {}
        for lease in self._leases.values():
            for held in lease.files:
                found[held.name] = max(found.get(held.name, 0.0), lease.deadline)
        return found

    def files(self) -> Collection[Held]:
        """Return every file that is kept, once."""
        return {held for lease in self._leases.values() for held in lease.files}


def _check_id(lease_id: bytes) -> None:
    if len(lease_id) != LEASE_ID_SIZE:
        raise BadRequest(f"a lease's id has {LEASE_ID_SIZE} bytes, this one {len(lease_id)}")


def _check_duration(duration_ms: int) -> None:
    if not DURATION_MS_MIN <= duration_ms <= DURATION_MS_MAX:
        raise BadRequest(
            f"a lease lasts {DURATION_MS_MIN:,} to {DURATION_MS_MAX:,} ms, and "
            f"{duration_ms:,} were asked for",
            hint="Renew it for as long as it is needed",
        )
