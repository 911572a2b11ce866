"""What a store of files can do, whether it is a path or an object store.

Names are relative to the location, with `/` between their parts. No call keeps anything from
an earlier one, so each answer is fresh.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

from headrace.errors import BadRequest, StorageFailed

OWN: Final = "_headrace"  # the directory of what is ours and no part of the table


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is in the store."""

    name: str
    size: int
    tag: str  # the store's mark of this content, its ETag; empty on a path


@dataclass(frozen=True, slots=True)
class Upload:
    """A write that was begun and not finished. Its bytes take up space and are no file."""

    name: str  # that the file would have
    id: str


class Uploads(Protocol):
    """Unfinished writes: of processes that died, and of those that still write."""

    def list(self, prefix: str = "") -> Iterator[Upload]:
        """Give those below a prefix. Raises BadRequest if the store cannot list them."""

    def abort(self, upload: Upload) -> None:
        """End one, so that it never becomes a file. One that is gone is fine."""


class FileStore(Protocol):
    """The files below one location."""

    @property
    def url(self) -> str:
        """Where it is, for messages: never with a credential."""

    @property
    def uploads(self) -> Uploads:
        """The unfinished writes."""

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file in a `with` block: afterwards it is there whole, or not at all.

        If the block raises, nothing is there. When it returns, the file survives a power
        cut. After StorageFailed or an interrupt at its end, it may be there, or come to be
        there. Never replaces a file: raises BadRequest if the name is taken. Names of large
        files must be random, because not every store can refuse to replace a large one.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small file durably unless the name is taken. False: another one is there.

        Never replaces a file. After StorageFailed it may be there, or come to be there.
        """

    def head(self, name: str) -> StoredFile | None:
        """Return what is there under a name."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return exactly these bytes. Raises NotInStore, StorageFailed if too few."""

    def tail(self, name: str, length: int) -> bytes:
        """Return the last bytes, or all if there are fewer. Raises NotInStore."""

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """Give all files below a directory: hidden ones and those in `_headrace`, too."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. One that is gone is fine."""

    def durable(self, names: Iterable[str]) -> None:
        """Have files survive a power cut, whoever wrote them. Raises NotInStore."""


class NotInStore(BadRequest):
    """There is no file of that name."""

    def __init__(self, url: str, name: str, *, hint: str = "") -> None:
        usual = "Check that no other program removes files there"
        super().__init__(f"{joined(url, name)}: there is no such file", hint=hint or usual)
        self.name = name


class StoreRefused(BadRequest):
    """The store knows who asks and does not allow it."""


class CredentialsExpired(StorageFailed):
    """The credentials have expired: open the store again once there are newer ones."""


def joined(url: str, name: str) -> str:
    """Return a place in a store, for messages."""
    return f"{url.rstrip('/')}/{name}" if name else url


def refuse_bad_name(url: str, name: str) -> None:
    """Raise BadRequest for a name that could be read in more than one way, or leads outside."""
    parts = name.split("/")
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or not name.isprintable():
        raise BadRequest(
            f"{name[:200]!r} is not a valid name of a file in {url}",
            hint="Use parts separated by /, none of them empty, . or ..",
        )


def taken(url: str, name: str) -> BadRequest:
    """Return the error of a new file whose name is taken."""
    return BadRequest(
        f"{joined(url, name)}: a file of that name is there already; it was not touched",
        hint="Use a new name: files of a table are never replaced",
    )
