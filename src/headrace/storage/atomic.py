"""Replacing a file as a whole: after a crash it is the old one or the new one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from headrace.errors import HeadraceError, StorageFailed
from headrace.storage.seam import Buffer, Directory, Storage, joined

LEFTOVER_SUFFIX = ".tmp"


def is_leftover(name: str) -> bool:
    """Tell whether `name` is a file that was never finished, which anyone may unlink."""
    return name.endswith(LEFTOVER_SUFFIX)


def is_barred(failed: StorageFailed) -> bool:
    """Tell whether nothing happened, for a file that stands there may not be replaced."""
    return failed.stage in ("write", "rename") and isinstance(failed.cause, PermissionError)


def refuse_if_poisoned(poisoned: StorageFailed | None) -> None:
    """Raise the failure after which a component trusts what it has written no more."""
    if poisoned is not None:
        raise poisoned


def atomic_replace(directory: Directory, name: str, pieces: Sequence[Buffer]) -> None:
    """Return only once the file `name`, made of `pieces`, survives a power cut.

    Fails as `atomic_write` does.
    """
    atomic_write(directory, name, lambda file: file.write(0, pieces))


def atomic_write(
    directory: Directory,
    name: str,
    fill: Callable[[Storage], None],
    before_rename: Callable[[], None] = lambda: None,
) -> None:
    """Return only once the file `name`, written by `fill`, survives a power cut.

    `fill` gets an empty file; `before_rename` is called once the new one is durable under its
    temporary name. A HeadraceError of either comes out unchanged, and then the old file stands.
    On StorageFailed, `stage` tells what is on disk:
    write     the old file stands; the temporary file is gone or garbage; may be retried
    sync      as write; a retry writes a new temporary file and never syncs the failed one again
    rename    the old file stands; the temporary file is whole and durable; may be retried
    sync-dir  the new file shows, yet a power cut may bring back the old: never retry, reopen
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
        # A new inode each time: a file whose sync failed once is not to be trusted again.
        with suppress(FileNotFoundError):
            directory.unlink(temporary)
        file = directory.create(temporary)
    try:
        with _stage(path, "write"):
            fill(file)
        with _stage(path, "sync"):
            file.sync()
    except HeadraceError:
        # The failure being reported matters more than the leftover, which the next try unlinks.
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
    """Move a file to `quarantine`, durably, and return where it was.

    OSError: nothing was moved. StorageFailed: it was, and a sync failed; never retry.
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
    """Yield `name`, `name.1`, `name.2` ...: nothing in quarantine is ever replaced."""
    yield name
    yield from (f"{name}.{number}" for number in count(1))
