"""Appends to a journal, next to bare writes with fdatasync and to SQLite.

Ours is a journal in steady state. Each round seals its entries (hashing them is part of the
cost), appends them one commit group at a time, and ends with the drain of a checkpoint. Files
have their usual size and come from the spares: at full scale a round of the larger entries
rolls over about once, onto a previously drained file, all of it inside the timed part. Only
bodies count as work; headers, frames and padding are our overhead.

The references write the same bytes in pieces as large as a commit group:

    growing    into an empty file: what a simple log does
    recycled   over a file already written: the best the disk can do, and what we aim to use
    SQLite     one transaction per group: what a user could have instead

One thread does everything: `in flight` is the number of entries that queued while the last
group was synced, and so make up the next one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.journal.recovery.recover import RecoveryOptions
from headrace.storage.file import FileDirectory
from headrace_lab.bench.bare import MIB, growing, rewriting
from headrace_lab.bench.frame import Case, Round, rate, scaled
from headrace_lab.bench.sqlite import inserting
from headrace_lab.counter.solo import Solo

KIB = 1024

# Rounds until every roll finds a drained file: one fills the first file, one the first spare.
_ROUNDS_TO_RECYCLING = 2


@dataclass(frozen=True, slots=True)
class JournalLoad:
    """What a round appends."""

    name: str
    body_size: int
    entry_count: int  # in one commit group
    group_count: int

    @property
    def group_size(self) -> int:
        return self.body_size * self.entry_count

    def at(self, scale: float) -> "JournalLoad":
        """Give the load with a share of its groups."""
        return replace(self, group_count=scaled(self.group_count, scale))

    def bodies(self) -> list[bytes]:
        """Make the bodies of one commit group."""
        return [os.urandom(self.body_size) for _ in range(self.entry_count)]


@dataclass(frozen=True, slots=True)
class _Measured:
    load: JournalLoad
    growing_floor: float | None = None
    recycled_floor: float | None = None


# 64 MiB where bytes cost, so that each round has its roll; else enough syncs to be steady.
_MEASURED = (
    _Measured(JournalLoad("1 MiB entries one by one", MIB, 1, 64), 0.8, 0.6),
    _Measured(JournalLoad("64 KiB entries, 16 in flight", 64 * KIB, 16, 64), 0.7),
    _Measured(JournalLoad("1 KiB entries one by one", KIB, 1, 256)),
    _Measured(JournalLoad("1 KiB entries, 64 in flight", KIB, 64, 128)),
)


def cases(directory: Path, scale: float) -> list[Case]:
    """Each load beside each reference. The floors are those of the journal's design."""
    return [case for one in _MEASURED for case in _beside_each(directory, one, scale)]


def _beside_each(directory: Path, measured: _Measured, scale: float) -> Iterator[Case]:
    load = measured.load.at(scale)
    blocks = (load.group_size, load.group_count)
    for name, limit, floor in (
        ("growing file", growing(directory, *blocks), measured.growing_floor),
        ("recycled file", rewriting(directory, *blocks), measured.recycled_floor),
        (
            "SQLite",
            inserting(directory, load.body_size, load.entry_count, load.group_count),
            None,
        ),
    ):
        yield Case(
            name=f"{load.name}, {name}",
            unit="MiB/s",
            ours=lambda: _appending(directory / "group", load),
            reference=f"{_shown(load.group_size)} writes, {name}",
            limit=limit,
            floor=floor,
        )


def _shown(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


@contextmanager
def _appending(path: Path, load: JournalLoad) -> Iterator[Round]:
    bodies = load.bodies()
    with a_group(path) as solo:

        def work() -> None:
            before = solo.head
            for _ in range(load.group_count):
                solo.group.append(solo.seal(bodies))
            solo.group.journal.drain(before)

        for _ in range(_ROUNDS_TO_RECYCLING):
            work()
        size = load.group_size * load.group_count
        yield lambda: rate(size / MIB, work)
    shutil.rmtree(path)


@contextmanager
def a_group(path: Path) -> Iterator[Solo]:
    """Make a group of its usual size, and stop it cleanly at the end."""
    with FileDirectory.open_root(str(path), create=True) as root:
        solo = Solo.open(root, RecoveryOptions())
        yield solo
        solo.group.stop()
