"""Atomic file replacement: after a crash, it is either the old file or the new one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from headrace.errors import HeadraceError, StorageFailed
from headrace.storage.seam import Buffer, Directory, Storage, joined

LEFTOVER_SUFFIX = ".tmp"


def is_leftover(name: str) -> bool:
    """Return whether `name` is an unfinished file, which may be unlinked."""
    return name.endswith(LEFTOVER_SUFFIX)


def is_barred(failed: StorageFailed) -> bool:
    """Return whether nothing happened because an existing file may not be replaced."""
    return failed.stage in ("write", "rename") and isinstance(failed.cause, PermissionError)


def refuse_if_poisoned(poisoned: StorageFailed | None) -> None:
    """Raise the failure after which a component trusts what it has written no more."""
    if poisoned is not None:
        raise poisoned


def atomic_replace(directory: Directory, name: str, pieces: Sequence[Buffer]) -> None:
    """Replace the file `name` with `pieces`; return once it survives a power cut.

    Fails as `atomic_write` does.
    """
    atomic_write(directory, name, lambda file: file.write(0, pieces))


def atomic_write(
    directory: Directory,
    name: str,
    fill: Callable[[Storage], None],
    before_rename: Callable[[], None] = lambda: None,
) -> None:
    """Replace the file `name` with one written by `fill`; return once it survives a power cut.

    `fill` gets an empty file; `before_rename` is called once the new one is durable under its
    temporary name. A HeadraceError of either is passed on, and the old file remains. On
    StorageFailed, `stage` tells what is on disk:
    write     the old file remains; the temporary file is missing or garbage; may be retried
    sync      as write; a retry writes a new temporary file and never syncs the failed one again
    rename    the old file remains; the temporary file is whole and durable; may be retried
    sync-dir  the new file shows, but a power cut may bring back the old: never retry, reopen
    """
    assert not is_leftover(name)
    path = joined(directory.path, name)
    temporary = name + LEFTOVER_SUFFIX
    _write_temporary(directory, path, temporary, fill)
    before_rename()
    with _stage(path, "rename"):
        directory.rename(temporary, name)
    with _stage(path, "sync-dir"):
        directory.sync()


def _write_temporary(
    directory: Directory, path: str, temporary: str, fill: Callable[[Storage], None]
) -> None:
    with _stage(path, "write"):
        # A new inode each time: a file whose sync has failed must not be trusted again.
        with suppress(FileNotFoundError):
            directory.unlink(temporary)
        file = directory.create(temporary)
    try:
        with _stage(path, "write"):
            fill(file)
        with _stage(path, "sync"):
            file.sync()
    except HeadraceError:
        # The original failure matters more than the leftover, which the next attempt unlinks.
        with suppress(OSError):
            directory.unlink(temporary)
        raise
    finally:
        file.close()


@contextmanager
def _stage(path: str, stage: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(path, stage, error) from error


def set_aside(room: Directory, name: str, quarantine: Directory) -> str:
    """Move a file to `quarantine`, durably; return its old path.

    OSError: nothing was moved. StorageFailed: it was moved, but a sync failed; never retry.
    """
    taken = set(quarantine.names())
    free = next(one for one in _numbered(name) if one not in taken)
    room.rename(name, free, into=quarantine)
    for touched in (quarantine, room):
        try:
            touched.sync()
        except OSError as error:
            raise StorageFailed(touched.path, "sync of a moved name", error) from error
    return joined(room.path, name)


def _numbered(name: str) -> Iterator[str]:
    """Yield `name`, `name.1`, `name.2` ...: files in quarantine are never replaced."""
    yield name
    yield from (f"{name}.{number}" for number in count(1))
