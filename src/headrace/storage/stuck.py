"""Files that cannot be moved or removed: each is reported by name, but blocks nothing.

A failed rename or unlink changes nothing, so the caller can continue, and retry in the next
cleanup. A failed sync is different.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.storage.atomic import set_aside
from headrace.storage.seam import Directory, joined


@dataclass(slots=True)
class StuckFiles:
    """Files that still exist although they should be removed, by path, with the error."""

    _causes: dict[str, tuple[str, OSError]] = field(default_factory=dict)

    def unlink(self, room: Directory, name: str) -> bool:
        """Remove a file; False if it still exists."""
        try:
            room.unlink(name)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self.note(joined(room.path, name), "deleted", error)
            return False
        self.forget(joined(room.path, name))
        return True

    def set_aside(self, room: Directory, name: str, quarantine: Directory) -> bool:
        """Move a file to quarantine, durably; False if it was not moved.

        StorageFailed: a sync failed, and nothing is certain.
        """
        path = joined(room.path, name)
        try:
            set_aside(room, name, quarantine)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.note(path, "moved to quarantine", error)
            return False
        self.forget(path)
        return True

    def note(self, path: str, what: str, error: OSError) -> None:
        """Record that the file at `path` cannot be `what`."""
        self._causes[path] = (f"cannot be {what}: {error.strerror or error}", error)

    def forget(self, path: str) -> None:
        """Record that the file is gone."""
        self._causes.pop(path, None)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield each path with its problem."""
        return ((path, what) for path, (what, _) in list(self._causes.items()))

    def codes(self) -> Iterator[tuple[str, str]]:
        """Yield each path with the name of its error, such as EPERM."""
        for path, (_, error) in list(self._causes.items()):
            yield path, errno.errorcode.get(error.errno or 0, "OSError")
