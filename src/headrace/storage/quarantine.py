"""Where damaged files go: moved aside under a name of their own, never deleted."""

from collections.abc import Iterator
from itertools import count

from headrace.errors import StorageFailed
from headrace.storage.names import joined
from headrace.storage.seam import Directory


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
