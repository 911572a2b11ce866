"""Frees the space of large files in a separate thread, once their last name is removed.

Unlinking a file is quick, but freeing its pages and blocks takes 20 ms for 64 MiB, and the last
holder of the file waits for that: it would be a thread that appends. Names are removed in the
caller's thread and order; after a crash, the file system frees files without a name. A writer
that finds the disk full waits for pending frees.
"""

import os
import stat
from collections import deque
from contextlib import suppress
from threading import Condition, RLock, Thread
from typing import Final

LARGE_SIZE: Final = 8 * 1024 * 1024
WAITING_COUNT_MAX: Final = 64  # files; beyond that, the caller frees them itself

NONE: Final = -1


def hold_if_large(name: str, directory: int) -> int:
    """Return a descriptor that holds the space of a large file with one name; else NONE."""
    try:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return NONE  # the caller will get the error
    with suppress(OSError):
        found = os.fstat(held)
        is_last = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if is_last and found.st_blocks * 512 >= LARGE_SIZE:
            return held
    os.close(held)
    return NONE


class Freeing:
    """A thread that closes descriptors, started on first use."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[int] = deque()  # the first one may be closing
        self._changed = Condition()
        # Held while a descriptor is closed and removed from the queue. A fork in between would
        # close it again in the child, where its number may have been reused.
        self._at_work = RLock()
        self._is_running = False

    def close(self, descriptor: int) -> None:
        """Close it soon; at once if too many are waiting or there is no thread."""
        with self._changed:
            if len(self._waiting) < WAITING_COUNT_MAX and self._has_thread():
                self._waiting.append(descriptor)
                self._changed.notify_all()
                return
        os.close(descriptor)

    def settle(self) -> bool:
        """Wait for all pending frees; return whether there were any."""
        with self._changed:
            had_some = bool(self._waiting)
            self._changed.wait_for(lambda: not self._waiting)
            return had_some

    def pause(self) -> None:
        """Close nothing until `resume`, so that a fork sees a consistent queue."""
        self._at_work.acquire()

    def resume(self) -> None:
        """Continue, in the parent process."""
        self._at_work.release()

    def forget(self) -> None:
        """Release everything in a forked child: the thread belongs to its parent."""
        inherited = self._waiting
        self._begin()
        for descriptor in inherited:
            with suppress(OSError):
                os.close(descriptor)

    def _has_thread(self) -> bool:
        if not self._is_running:
            with suppress(RuntimeError):  # the system allows no more threads
                Thread(target=self._run, name="freeing", daemon=True).start()
                self._is_running = True
        return self._is_running

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            with self._at_work:
                with suppress(OSError):
                    os.close(self._waiting[0])  # only this thread removes one
                with self._changed:
                    self._waiting.popleft()
                    self._changed.notify_all()


FREEING: Final = Freeing()
os.register_at_fork(
    before=FREEING.pause, after_in_parent=FREEING.resume, after_in_child=FREEING.forget
)
