"""The figures of a node's status.

They are read on demand from state that the machines keep anyway. Sizes are in bytes, times are
ISO 8601 in UTC.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate

from headrace.errors import HeadraceError
from headrace.journal.group import Group
from headrace.model.schema import decode_schema
from headrace.node.group.pump import Pump
from headrace.node.shard.shard import Shard
from headrace.partition.machine.state import Placed
from headrace.partition.shard_store import Store

_US_PER_S = 1_000_000


def iso(seconds: float) -> str:
    """Format a Unix time, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The size of a file system, and what is left of it for this process."""

    free: int
    total: int


def disk_space(path: str) -> DiskSpace | None:
    """Return the space on the file system of a directory; None if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def disk_figures(path: str) -> dict[str, object]:
    """Return the space on the data directory's file system; empty if unknown."""
    space = disk_space(path)
    return {} if space is None else dict(asdict(space))


def journal_size(group: Group) -> int:
    """Return the size of a group's journal files, and of its spares if they can be listed."""
    journal = group.journal
    size = sum(file.header.size for file in list(journal.files))
    with suppress(OSError):  # report the rest even if the disk fails
        size += journal.spares.size()
    return size


def group_figures(group: Group, pump: Pump | None) -> dict[str, object]:
    """Return the figures of a group's journal and checkpoints, and its stuck files."""
    journal, current = group.journal, group.superblock.current
    op = current.checkpoint.op
    seal = journal.headers(op, op)
    said: dict[str, object] = {}
    if pump is not None:
        failure = pump.last_failure
        said["halted"] = None if pump.halted is None else str(pump.halted)
        said["checkpoint"] = None if failure is None else str(failure)
    return said | {
        "findings": [
            f"{path}: {what}" for files in group.stuck for path, what in files.findings()
        ],
        "durable": group.journal.durable,
        "applied": group.applied,
        "journal": {
            "size": journal_size(group),
            "slots": journal.ring.count,
            "free_slots": journal.free_slots,
        },
        "checkpoints": {
            "op": op,
            "at": iso(seal[0].timestamp / _US_PER_S) if seal else None,
            "pending": len(group.checkpoints.pending),
            "unsealed_bytes": 0 if pump is None else pump.pace.size,
            "waiting": 0 if pump is None else len(pump.inbox),
        },
    }


def store_figures(store: Store) -> dict[str, object]:
    """Return what a shard's rows take on disk, besides its journal."""
    return {
        "findings": [f"{each.path}: {each.what}" for each in store.findings],
        "partitions": len(store.machine.state.partitions),
        "segments": {"count": len(_placed(store)), "size": segments_size(store)},
    }


def schema_lines(data: bytes, size_max: int | None = None) -> list[str]:
    """Format a schema, one column per line; an unreadable one gives its error.

    With `size_max`: as many columns as fit in that many characters, and how many are left out.
    """
    try:
        lines = [f"{field.name}: {field.type}" for field in decode_schema(data)]
    except HeadraceError as error:
        return [str(error)]
    if size_max is None or sum(map(len, lines)) <= size_max:
        return lines
    fits = sum(size <= size_max for size in accumulate(map(len, lines)))
    return [*lines[:fits], f"and {len(lines) - fits:,} more columns"]


def diverged(store: Store) -> Iterator[str]:
    """Yield the cursors beyond the end of their partition, in words."""
    for partition in store.machine.state.partitions.values():
        for group, cursor in partition.cursors.items():
            if cursor.next > partition.end:
                yield (
                    f"the next offset of consumer group {group!r} is {cursor.next} in "
                    f"partition {partition.namespace:x}, which ends at {partition.end}"
                )


def segments_size(store: Store) -> int:
    """Return the size of a shard's segments and carry files, and of the sources those keep."""
    carries = list(store.keeper.files.carry.values())
    kept = {source for file in carries for source in file.sources}
    carried = sum(file.size for file in carries) + sum(source.size for source in kept)
    return sum(each.size for each in _placed(store)) + carried


def _placed(store: Store) -> list[Placed]:
    return [
        segment.place
        for partition in list(store.machine.state.partitions.values())
        for segment in partition.segments
        if isinstance(segment.place, Placed)
    ]


def reconciler_figures(shard: Shard) -> dict[str, object]:
    """Return the counters of a shard's reconciler, and the requests that wait for it."""
    counters = shard.reconciler.counters
    return {
        "reconciler": {
            "passes": counters.pass_count,
            "skips": counters.skip_count,
            "builds": counters.build_count,
            "removals": counters.removal_count,
            "failures": dict(counters.failures),
            "removing": len(shard.reconciler.tombstones),
            "parked": len(shard.parking),
        }
    }
