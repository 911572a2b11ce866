"""The thread that writes one group's journal: all waiting entries form one commit group.

    loop's thread    append(entries), pair(checkpoint), resume(), stop()
    this thread      write + sync → `report(Durable | Failed | Paired)`, once for each group

After a failure, waiting entries are dropped, and so are new ones until `resume`: they chain to
entries that were not written.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import DiskFull, HeadraceError
from headrace.journal.entry import Entry
from headrace.journal.group import Group
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op

IDLE_S = 0.05  # after this long without writes, the last group is marked and a spare created
GROUP_SIZE = 8 * 1024 * 1024  # a larger write delays its first entries


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything up to `op` is on disk, synced."""

    op: Op


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Everything up to `durable` is on disk; nothing after it, if `error` is Unavailable."""

    durable: Op
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Paired:
    """A checkpoint is named in the superblock, or `error` says why not."""

    checkpoint: Checkpoint
    error: HeadraceError | None


Report = Durable | NotWritten | Paired


@dataclass(slots=True)
class JournalWriter:
    """Owns a thread. `report` is called in it."""

    group: Group
    report: Callable[[Report], None]
    group_size: int = GROUP_SIZE
    _waiting: deque[Entry] = field(default_factory=deque)
    _pairs: deque[Checkpoint] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_dropping: bool = False
    _is_stopping: bool = False
    _is_idle: bool = True  # nothing was appended since the last mark
    _thread: threading.Thread | None = None

    def start(self) -> None:
        name = f"journal {self.group.journal.identity.group}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def append(self, entries: list[Entry]) -> None:
        """Queue entries to be written."""
        with self._changed:
            if not self._is_dropping:
                self._waiting.extend(entries)
                self._changed.notify()

    def pair(self, checkpoint: Checkpoint) -> None:
        """Pair a checkpoint between two commit groups."""
        with self._changed:
            self._pairs.append(checkpoint)
            self._changed.notify()

    def resume(self) -> None:
        """Accept entries again: the caller has handled the failure."""
        with self._changed:
            self._is_dropping = False

    def stop(self) -> None:
        """Write the queued entries, then end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # noqa: BLE001 - the root of a thread: the group halts
            self._failed(HeadraceError(f"the journal thread died: {error!r}"))

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._wait()
                entries = self._take()
                pair = self._pairs.popleft() if self._pairs else None
                if self._is_stopping and not entries and pair is None:
                    return
            if entries:
                self._append(entries)
            if pair is not None:
                self._pair(pair)
            if not entries and pair is None:
                self._idle()

    def _wait(self) -> None:
        """Wait for work; return without any after the idle time."""
        while not (self._waiting or self._pairs or self._is_stopping):
            if not self._changed.wait(None if self._is_idle else IDLE_S):
                return

    def _take(self) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        while self._waiting and size < self.group_size:
            entries.append(self._waiting.popleft())
            size += len(entries[-1].body)
        return entries

    def _append(self, entries: list[Entry]) -> None:
        self._is_idle = False
        try:
            durable = self.group.append(entries)
        except HeadraceError as error:
            self._failed(error)
        else:
            self.report(Durable(durable))

    def _failed(self, error: HeadraceError) -> None:
        with self._changed:
            self._is_dropping = True
            self._waiting.clear()
        self.report(NotWritten(self.group.journal.durable, error))

    def _pair(self, checkpoint: Checkpoint) -> None:
        try:
            self.group.pair(checkpoint)
        except HeadraceError as error:
            self.report(Paired(checkpoint, error))
        else:
            self.report(Paired(checkpoint, None))

    def _idle(self) -> None:
        """Mark the last group. On a full disk there is just no spare yet."""
        self._is_idle = True
        try:
            self.group.idle()
        except DiskFull:
            return
        except HeadraceError as error:
            self._failed(error)
