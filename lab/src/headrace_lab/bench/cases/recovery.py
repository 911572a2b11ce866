"""The scan of a journal after a stop, next to reading and hashing the same files.

Ours is `survey`, the part of a recovery that grows with the journal: it opens every file,
checks every prefix, header and body, follows the chain, and searches everything after the
newest entry for leftovers. Most files are in their second life, the newest is half full, and
the bytes after its head are from its first life. The stop was clean, so the survey drops no
cache.

The reference reads the same files from end to end into one reused buffer, and hashes each piece
with xxh3-128. Both count whole files.

Warm, all bytes are in the page cache; cold, both sides drop them before each round. Caches of a
host or a controller stay warm for both.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xxhash import xxh3_128_digest

from headrace.journal.recovery.survey import survey
from headrace.journal.snapshot import SnapshotFiles
from headrace.model.ids import Op
from headrace.storage.file import FileDirectory
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.cases.journal import KIB, JournalLoad, a_group
from headrace_lab.bench.frame import Case, Round, rate
from headrace_lab.counter.solo import SOLO

# Written twice, these leave four files of large entries and two of small ones, the newest half
# full: where entries are small they cost, not the bytes.
_LARGE = JournalLoad("1 MiB entries", MIB, 1, 204)
_SMALL = JournalLoad("1 KiB entries", KIB, 512, 122)
_FLOOR = 0.5

_PIECE_SIZE = MIB
_PROBE_COUNT = 8


def cases(directory: Path, scale: float) -> list[Case]:
    """Both loads, warm and, where this file system lets go of its cache, cold."""
    path = directory / "group"
    temperatures = (False, True) if can_drop_cache(directory) else (False,)
    return [
        _case(path, load, scale, is_cold)
        for load in (_LARGE, _SMALL)
        for is_cold in temperatures
    ]


def _case(path: Path, load: JournalLoad, scale: float, is_cold: bool) -> Case:
    return Case(
        name=f"{load.name}, {'cold' if is_cold else 'warm'}",
        unit="MiB/s",
        ours=lambda: _scanning(path, load.at(scale), is_cold),
        reference="reading and hashing the same files",
        limit=lambda: hashing(path, is_cold),
        floor=_FLOOR if load is _LARGE else None,
    )


@contextmanager
def _scanning(path: Path, load: JournalLoad, is_cold: bool) -> Iterator[Round]:
    """Ours makes the files and removes them; the reference finds them."""
    head = _fill(path, load)
    with (
        FileDirectory.open_root(str(path), create=False) as root,
        root.child("journal") as journal,
        root.child("snapshots") as snapshots,
    ):

        def work() -> None:
            found = survey(root, journal, SnapshotFiles(snapshots, SOLO))
            assert found.scan.head == head

        yield lambda: measured(journal_files(path), work, is_cold)
    shutil.rmtree(path)


@contextmanager
def hashing(path: Path, is_cold: bool) -> Iterator[Round]:
    buffer = memoryview(bytearray(_PIECE_SIZE))

    def one_round() -> float:
        files = journal_files(path)
        return measured(files, lambda: _hash_all(files, buffer), is_cold)

    yield one_round


def _fill(path: Path, load: JournalLoad) -> Op:
    """Append the load twice, the first time only to leave files to recycle; return the head."""
    bodies = load.bodies()
    with a_group(path) as solo:
        for _ in range(2):
            solo.group.journal.drain(solo.head)
            for _ in range(load.group_count):
                solo.group.append(solo.seal(bodies))
        return solo.head


def journal_files(path: Path) -> list[Path]:
    return sorted((path / "journal").glob("*.wal"))


def measured(files: Sequence[Path], work: Callable[[], None], is_cold: bool) -> float:
    if is_cold:
        for file in files:
            _drop_cache(file)
    return rate(sum(file.stat().st_size for file in files) / MIB, work)


def _hash_all(files: Sequence[Path], buffer: memoryview) -> None:
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                xxh3_128_digest(buffer[:size])


def _drop_cache(file: Path) -> None:
    with open(file, "rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def can_drop_cache(directory: Path) -> bool:
    """Say whether a file written here can be made cold. Memory, for one, has no other place.

    A page that the kernel has at hand elsewhere at that moment stays: one try says nothing.
    """
    return any(_is_cold_now(directory / "probe") for _ in range(_PROBE_COUNT))


def _is_cold_now(probe: Path) -> bool:
    try:
        with open(probe, "wb") as stream:
            stream.write(bytes(_PIECE_SIZE))
            stream.flush()
            os.fsync(stream.fileno())
        _drop_cache(probe)
        with open(probe, "rb", buffering=0) as stream:
            os.preadv(stream.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True  # it would have to wait for a disk
    except OSError:
        return False  # it cannot even tell
    finally:
        probe.unlink()
    return False
