"""Reopening a shard with a large unsealed journal, next to reading and hashing it.

Ours is the whole opening: the scan of every byte, restoring the snapshot, the replay of each
entry through the machine, and everything that a recovery writes. The stop was clean. The
reference reads the same journal files from end to end and hashes each piece with xxh3-128.

Warm, all bytes are in the page cache; cold, both sides drop them before each round. The last
case is about memory: how much journal is opened per byte that the process grows by, in its own
process, next to one that holds a whole journal file.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.journal.recovery.recover import FILE_SIZE
from headrace.model.ids import Offset, Revision
from headrace.partition.shard_store import StoreOptions
from headrace.storage.file import FileDirectory
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.cases.ingest import KEY, WRITER
from headrace_lab.bench.cases.recovery import can_drop_cache, hashing, journal_files, measured
from headrace_lab.bench.frame import Case, Round, scaled
from headrace_lab.bench.rows import KIB, SCHEMA, Rows
from headrace_lab.shard.shard import SoloShard, appending, opening

_FLOOR = 0.4
_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class _Load:
    """What the journal holds."""

    name: str
    batch_size: int
    batch_count: int
    group_count: int  # batches in one commit group, while the shard is made

    @property
    def row_count(self) -> int:
        return self.batch_count * (self.batch_size // KIB)


_LARGE = _Load("1 MiB entries", MIB, 1_024, 1)
_SMALL = _Load("1 KiB entries", KIB, 65_536, 64)


def cases(directory: Path, scale: float) -> list[Case]:
    """Both loads, warm and, where this file system lets go of its cache, cold; then memory."""
    path = directory / "shard"
    temperatures = (False, True) if can_drop_cache(directory) else (False,)
    found = [
        _case(path, _at(load, scale), is_cold)
        for load in (_LARGE, _SMALL)
        for is_cold in temperatures
    ]
    return [*found, *(_memory(path, _at(load, scale)) for load in (_LARGE, _SMALL))]


def _at(load: _Load, scale: float) -> _Load:
    return replace(load, batch_count=scaled(load.batch_count, scale))


def _case(path: Path, load: _Load, is_cold: bool) -> Case:
    return Case(
        name=f"{load.name}, {'cold' if is_cold else 'warm'}",
        unit="MiB/s",
        ours=lambda: _reopening(path, load, is_cold),
        reference="reading and hashing the same files",
        limit=lambda: hashing(path, is_cold),
        floor=_FLOOR if load.batch_size == MIB else None,
    )


def _memory(path: Path, load: _Load) -> Case:
    return Case(
        name=f"{load.name}, memory",
        unit="journal/memory",
        ours=lambda: _growing_by(path, load),
        reference=f"holding one file of {FILE_SIZE // MIB} MiB",
        limit=lambda: _holding_a_file(path),
    )


@contextmanager
def _made(path: Path, load: _Load) -> Iterator[None]:
    """Make a shard whose journal holds all of the load, and remove it at the end."""
    rows = Rows.of(load.batch_size)
    with FileDirectory.open_root(str(path), create=True) as root:
        shard = SoloShard.open(root, StoreOptions())
        shard.one(opening(KEY, [SCHEMA], Revision(1), Revision(1)))
        for start in range(0, load.batch_count, load.group_count):
            group = range(start, min(start + load.group_count, load.batch_count))
            shard.submit([appending(KEY, rows[n], WRITER, n + 1) for n in group])
        shard.store.stop()
    yield
    shutil.rmtree(path)


@contextmanager
def _reopening(path: Path, load: _Load, is_cold: bool) -> Iterator[Round]:
    """Ours makes the files and removes them; the reference finds them."""
    with _made(path, load):
        opened: list[SoloShard] = []

        def work() -> None:
            root = FileDirectory.open_root(str(path), create=False)
            opened.append(SoloShard.open(root, StoreOptions()))

        def one_round() -> float:
            result = measured(journal_files(path), work, is_cold)
            shard = opened.pop()
            assert shard.store.reader.bounds(KEY) == (Offset(0), Offset(load.row_count))
            shard.store.stop()
            return result

        yield one_round


@contextmanager
def _growing_by(path: Path, load: _Load) -> Iterator[Round]:
    with _made(path, load):

        def one_round() -> float:
            command = [sys.executable, "-m", "headrace_lab.bench.cases.replay", str(path)]
            grown = int(subprocess.run(command, check=True, capture_output=True).stdout)
            return _journal_size(path) / grown

        yield one_round


@contextmanager
def _holding_a_file(path: Path) -> Iterator[Round]:
    yield lambda: _journal_size(path) / FILE_SIZE


def _journal_size(path: Path) -> int:
    return sum(file.stat().st_size for file in journal_files(path))


def main(path: str) -> int:
    """Open the shard at `path` and print by how many bytes the process grew at most."""
    _PEAK.write_text("5")  # from here on, the kernel keeps a new peak
    before = _peak()
    with FileDirectory.open_root(path, create=False) as root:
        shard = SoloShard.open(root, StoreOptions())
        grown = _peak() - before
        shard.store.stop()
    sys.stdout.write(f"{max(grown, 1) * KIB}\n")
    return 0


def _peak() -> int:
    """Return the highest resident size since the peak was reset, in KiB."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
