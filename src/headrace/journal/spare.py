"""Spare files in `journal/spare/`, without a life: created in advance or drained, for rolls.

A file enters the journal in one way only. It is complete and durable here, gets its header
blocks here, durably, and is then renamed to its live name, durably: under a live name nothing
is ever unfinished.

State of a new file on disk after a crash, step by step:

    created    under a temporary name    a leftover of any size, unlinked at the next start
    reserved   grown to its size         the same: only the sync makes the size certain
    synced     size and space durable    the same
    renamed    the directory synced      a spare, or still the leftover; never a shorter file

Files grow with use: each is `GROWTH` times as large as the one before it, up to `file_size`. A
crash does not change that: the header of the newest file records its size. A smaller spare is
kept only for a full disk, while there is no other.

A file that cannot be opened for writing is not used. One that a crash left and that cannot be
removed is condemned: it may be a second name of a live file, so it is never enlisted.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import DiskFull, StorageFailed, UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.journal_file import (
    BLOCK_SIZE,
    FORMAT,
    FileHeader,
    JournalFile,
    decode_block,
    file_name,
    write_header,
)
from headrace.model.ids import Identity, Op
from headrace.storage.atomic import LEFTOVER_SUFFIX, is_leftover
from headrace.storage.seam import Directory, Storage, is_full, joined
from headrace.storage.stuck import StuckFiles

GROWTH: Final = 4  # three rolls from the first file of a new log to one of 64 MiB


@dataclass(slots=True)
class Spares:
    """The spare files of one group."""

    directory: Directory
    first_size: int  # of the first file of a log
    file_size: int  # the size that files grow to; larger only for an entry that needs it
    count_max: int  # drained files beyond this number are unlinked
    new_id: Callable[[], int]
    newest_size: int = 0  # of the file that last began a life, also before a restart
    reader_min: int = FORMAT  # for the headers of files that begin a life from now on
    stuck: StuckFiles = field(default_factory=StuckFiles)  # here, and of the journal
    condemned: set[str] = field(default_factory=set)
    fresh_from: Op = Op(0)  # files that began before this op are not used again: see `renew`

    @property
    def next_size(self) -> int:
        """The size of the next file, unless an entry needs more."""
        return min(self.file_size, max(self.first_size, self.newest_size * GROWTH))

    def names(self) -> list[str]:
        """Return the names of the spares, without leftovers and condemned files."""
        return [
            name
            for name in self.directory.names()
            if not is_leftover(name) and name not in self.condemned
        ]

    def ensure(self) -> None:
        """Keep at least one spare, so that a roll has its space on a full disk."""
        self._remove_condemned()
        if self._fitting(self.next_size) is None:
            self._make_one_more(self.next_size)

    def retry(self) -> None:
        """Retry failed removals, durably. A busy journal may never become idle."""
        if self.condemned:
            self._remove_condemned()
            _sync(self.directory, "sync of the spares")

    def renew(self, needed: int) -> None:
        """Replace all spares with one new spare of at least `needed` bytes, durably.

        The old ones still have the bytes of their earlier lives. One that cannot be removed is
        condemned. On a full disk they stay: the next roll may need one.
        """
        new = self._make_one_more(max(needed, self.next_size))
        self.condemned.update(name for name in self.directory.names() if name != new)
        self._remove_condemned()
        _sync(self.directory, "sync of the spares")

    def enlist(
        self, journal: Directory, identity: Identity, first_op: Op, parent: bytes, needed: int
    ) -> JournalFile:
        """Give a spare of `needed` bytes a new life and a live name. Durable on return.

        OSError: the journal is unchanged. StorageFailed: a sync failed, the state is unknown.
        """
        name = self._chosen(needed)
        storage = self.directory.open(name, writable=True)
        try:
            header = FileHeader(
                file_id=self.new_id(),
                cluster=identity.cluster,
                group=identity.group,
                first_op=first_op,
                parent=parent,
                size=storage.size(),
                reader_min=self.reader_min,
            )
            write_header(storage, header)
            _sync(storage, "sync of a new file")
        finally:
            storage.close()
        live = file_name(first_op)
        self.directory.rename(name, live, into=journal)
        _sync(journal, "sync of a new name")
        _sync(self.directory, "sync of a new name")
        self.newest_size = header.size
        return JournalFile(journal.open(live, writable=True), header, is_writable=True)

    def retire(self, journal: Directory, file: JournalFile, *, is_kept: bool = False) -> None:
        """Take a file out of the journal, durably: it becomes a spare if free and wanted.

        A kept file never does: a new life would overwrite what its second name stands for.
        OSError: its name is still there. StorageFailed: a sync failed, the state is unknown.
        """
        free = file.retire()
        header = file.header
        wanted = header.first_op >= self.fresh_from and self._wants(header.size)
        if free:
            file.storage.close()
        if is_kept or not (free and wanted and self._move(journal, file.name, header.file_id)):
            journal.unlink(file.name)
        _sync(journal, "sync of a drained name")

    def adopt(self, room: Directory, name: str, file_id: int) -> bool:
        """Turn a file with nothing needed in it into a spare; False: it is unchanged.

        Only if it is in the life `file_id` and has no other name: that one may belong to a
        live file, or stand for these bytes. The caller syncs `room` before appending.
        """
        return self._is_free(room, name, file_id) and self._move(room, name, file_id)

    def tidy(self, live_ids: set[int]) -> None:
        """Remove what a crash left: unfinished files, and spare names of live files."""
        self.condemned = {
            name
            for name in self.directory.names()
            if is_leftover(name) or self._file_id(name) in live_ids
        }
        self._remove_condemned()
        _sync(self.directory, "sync of the spares")

    def _remove_condemned(self) -> None:
        self.condemned = {
            name for name in self.condemned if not self.stuck.unlink(self.directory, name)
        }

    def _move(self, room: Directory, name: str, file_id: int) -> bool:
        try:
            room.rename(name, f"{file_id:016x}.wal", into=self.directory)
        except OSError:
            return False  # no room for a name: unlinking needs none, and gives space back
        _sync(self.directory, "sync of a drained name")
        return True

    def _wants(self, size: int) -> bool:
        """Whether to keep a file of this size: a small one only as the sole spare."""
        count = len(self.names())
        is_large_enough = size >= self.next_size or count == 0
        return is_large_enough and size <= self.file_size and count < self.count_max

    def _chosen(self, needed: int) -> str:
        """Return a spare of the next size; on a full disk any that is large enough."""
        size = max(needed, self.next_size)
        if (name := self._fitting(size)) is not None:
            return name
        try:
            return self._make(size)
        except OSError as error:
            smaller = self._fitting(needed) if is_full(error) else None
            if smaller is None:
                raise
            return smaller

    def _fitting(self, size: int) -> str | None:
        for name in self.names():
            path = joined(self.directory.path, name)
            try:
                storage = self.directory.open(name, writable=True)
            except OSError as error:
                self.stuck.note(path, "opened for writing", error)
                continue
            self.stuck.forget(path)
            try:
                if storage.size() >= size and storage.size() % BLOCK_SIZE == 0:
                    return name
            finally:
                storage.close()
        return None

    def _make_one_more(self, size: int) -> str:
        try:
            return self._make(size)
        except OSError as error:
            if is_full(error):
                raise DiskFull(self.directory.path, "spare") from error
            raise

    def _make(self, size: int) -> str:
        """Reserve a file of zeros, durably. A file that does not fit is removed again."""
        name = f"{self.new_id():016x}.wal"
        temp = name + LEFTOVER_SUFFIX
        storage = self.directory.create(temp)
        try:
            storage.truncate(size)
            storage.sync()
            self.directory.rename(temp, name)
        except OSError:
            # The unfinished file takes up the space that is missing.
            with suppress(OSError):
                self.directory.unlink(temp)
            raise
        finally:
            storage.close()
        _sync(self.directory, "sync of a new spare")
        return name

    def _is_free(self, room: Directory, name: str, file_id: int) -> bool:
        try:
            storage = room.open(name, writable=True)
        except OSError:
            return False
        try:
            is_alone = storage.name_count == 1
            is_wanted = self._wants(storage.size())
            life = _life_of(storage)
        except OSError:
            return False
        finally:
            storage.close()
        if life is None or life.file_id != file_id or life.first_op < self.fresh_from:
            return False
        return is_alone and is_wanted

    def size(self) -> int:
        """Return the bytes of all spares. Any thread may ask."""
        total = 0
        for name in self.names():
            with suppress(FileNotFoundError), closing(self.directory.open(name)) as storage:
                total += storage.size()
        return total

    def _file_id(self, name: str) -> int | None:
        try:
            storage = self.directory.open(name)
        except OSError:
            return None
        try:
            life = _life_of(storage)
            return None if life is None else life.file_id
        except OSError:
            return None
        finally:
            storage.close()


def _life_of(storage: Storage) -> FileHeader | None:
    """Return the header of a file; None if this release cannot read one."""
    try:
        header = decode_block(storage.read(0, BLOCK_SIZE), storage.path)
    except UnsupportedFormat:
        return None  # the contents of a spare do not matter
    return None if isinstance(header, Flaw) else header


def _sync(thing: Storage | Directory, stage: str) -> None:
    """Sync once; a failure poisons the journal, even where the cause is a full disk."""
    try:
        thing.sync()
    except OSError as error:
        raise StorageFailed(thing.path, stage, error) from error
