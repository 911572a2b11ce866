"""The machine's own limits as sides of a case: bare system calls and nothing else."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace_lab.bench.frame import Round, Side, rate

MIB = 1024 * 1024


def growing(directory: Path, block_size: int, block_count: int) -> Side:
    """Write and fdatasync blocks at the end of a file that begins empty; MiB/s."""
    return lambda: _growing(directory / "growing", block_size, block_count)


def rewriting(directory: Path, block_size: int, block_count: int) -> Side:
    """Write and fdatasync blocks over a file already written and synced; MiB/s."""
    return lambda: _rewriting(directory / "rewriting", block_size, block_count)


@contextmanager
def _growing(path: Path, block_size: int, block_count: int) -> Iterator[Round]:
    block = os.urandom(block_size)

    def one_round() -> float:
        path.unlink(missing_ok=True)
        with _opened(path, os.O_CREAT | os.O_EXCL) as descriptor:
            _sync_directory(path.parent)
            return _rate(descriptor, block, block_count)

    yield one_round
    path.unlink(missing_ok=True)


@contextmanager
def _rewriting(path: Path, block_size: int, block_count: int) -> Iterator[Round]:
    block = os.urandom(block_size)
    with _opened(path, os.O_CREAT | os.O_EXCL) as descriptor:
        # Real bytes: space that is only reserved still changes metadata when first written.
        for _ in range(block_count):
            write_whole(descriptor, block)
        os.fsync(descriptor)
        _sync_directory(path.parent)

        def one_round() -> float:
            os.lseek(descriptor, 0, os.SEEK_SET)
            return _rate(descriptor, block, block_count)

        yield one_round
    path.unlink()


def write_whole(descriptor: int, block: bytes) -> None:
    """Write all of `block`, however many calls it takes."""
    written = os.write(descriptor, block)
    while written < len(block):
        written += os.write(descriptor, memoryview(block)[written:])


def _rate(descriptor: int, block: bytes, block_count: int) -> float:
    def work() -> None:
        for _ in range(block_count):
            write_whole(descriptor, block)
            os.fdatasync(descriptor)

    size = len(block) * block_count
    return rate(size / MIB, work)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
