"""Keeps the file `heads` up to date, in a thread of its own that nothing waits for.

    the loop     the heads of all groups, as one value, at each tick
    its thread   one small write and one sync for all groups

It writes once a second while groups move, and at most half a second after the last write when
they rest. So everything acknowledged a second ago is recorded outside its journal. A failed
write is reported and retried with backoff: it weakens the evidence, but stops nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import HeadraceError, StorageFailed
from headrace.journal.heads import NAME, FoundHeads, Head, HeadsFile, read_heads
from headrace.model.ids import GroupId
from headrace.node.events import event
from headrace.node.group.driver import now_us
from headrace.node.shard.retry_table import delay_ms
from headrace.storage.seam import Directory, joined

MOVING_S: Final = 1.0  # between the starts of two writes while groups move
RESTING_S: Final = 0.5  # and when they rest: with two ticks more it is still within a second
_AGAIN: Final = (
    "The write is retried automatically. Check the file's permissions and attributes (ls -l, "
    "lsattr), and the disk"
)


@dataclass(slots=True)
class HeadsWriter:
    """Decides on the loop when to write; the thread owns the file while it writes."""

    file: HeadsFile
    loop: asyncio.AbstractEventLoop
    found: FoundHeads  # at the start
    failure: str = ""  # of the last write; empty once one succeeds
    failure_count: int = 0
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="heads")
    )
    _seen: dict[GroupId, Head] = field(default_factory=dict)
    _began_at: float = float("-inf")
    _retry_at: float = float("-inf")
    _is_writing: bool = False
    _is_stopped: bool = False

    @classmethod
    def of(
        cls, directory: Directory, cluster: bytes, loop: asyncio.AbstractEventLoop
    ) -> "HeadsWriter":
        """Read the existing file, if any, and continue from it. Writes nothing yet."""
        found = read_heads(directory, cluster)
        for flaw in found.flaws:
            event("node.heads.flawed", path=joined(directory.path, NAME), said=flaw)
        return cls(HeadsFile.of(directory, cluster, found), loop, found)

    def lines(self, was_made: bool) -> str:
        """Summarize what was read in one line; `was_made`: the log was in use before."""
        said = [f"heads of {len(self.found.heads)} groups", *self.found.flaws]
        if self.found.is_missing and was_made:
            said = [f"file {NAME!r} is missing: only the logs show where they end"]
        return "; ".join(said)

    def describe(self) -> dict[str, object]:
        """Return what the status shows: reasons why the evidence is weakened."""
        return {"flaws": list(self.found.flaws), "failure": self.failure or None}

    def tick(self, heads: dict[GroupId, Head], clock: float) -> None:
        """Write if due. `heads` are a consistent set from the loop."""
        is_moving, self._seen = heads != self._seen, heads
        due = max(self._began_at + (MOVING_S if is_moving else RESTING_S), self._retry_at)
        if (
            self._is_stopped
            or self._is_writing
            or clock < due
            or not self.file.is_behind(heads)
        ):
            return
        self._is_writing, self._began_at = True, clock
        self._thread.submit(self._write, heads).add_done_callback(self._written)

    def write_now(self, heads: Mapping[GroupId, Head], then: Callable[[], None]) -> None:
        """Write without waiting for a tick; then call `then` on the loop, even on failure."""

        def written(running: Future[None]) -> None:
            self._written(running)
            self.loop.call_soon_threadsafe(then)

        self._thread.submit(self._write, heads).add_done_callback(written)

    def stop(self, heads: Mapping[GroupId, Head]) -> None:
        """Write the final heads, and release the thread. Not on the loop; never raises."""
        self.abandon()
        if self.file.is_behind(heads):
            try:
                self._write(heads)
            except StorageFailed as failed:
                self._tell(failed)
        self.file.close()

    def abandon(self) -> None:
        """Release the thread after its current write. Not on the loop."""
        self._is_stopped = True
        self._thread.shutdown()
        self.file.close()

    def _write(self, heads: Mapping[GroupId, Head]) -> None:
        """In the thread."""
        try:
            self.file.write(heads, now_us())
        except OSError as error:
            path = joined(self.file.directory.path, NAME)
            raise StorageFailed(path, "write", error, hint=_AGAIN) from error

    def _written(self, running: Future[None]) -> None:
        """In the thread."""
        if not self._is_stopped:
            self.loop.call_soon_threadsafe(self._on_written, running.exception())

    def _on_written(self, error: BaseException | None) -> None:
        self._is_writing = False
        if error is None:
            if self.failure_count:
                event("node.heads.written", after_failures=self.failure_count)
            self.failure, self.failure_count = "", 0
            return
        self._tell(error)
        self.failure_count += 1
        self._retry_at = self.loop.time() + delay_ms(self.failure_count) / 1_000

    def _tell(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, HeadraceError) else repr(error)
        if text != self.failure:
            event("node.heads.failed", level=logging.WARNING, error=text)
        self.failure = text
