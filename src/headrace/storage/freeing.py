"""Gives the space of large files back in a thread of its own, once their last name is gone.

To unlink a file is a moment's work, but to free its pages and blocks takes 20 ms for 64 MiB,
and the last to let go of the file waits for it: that would be a thread that appends. Names go
in the caller's thread and in the caller's order; after a crash a file without a name is the
file system's to free. Whoever finds the disk full waits for what is still being freed.
"""

import os
import stat
from collections import deque
from contextlib import suppress
from threading import Condition, RLock, Thread
from typing import Final

LARGE_SIZE: Final = 8 * 1024 * 1024
WAITING_COUNT_MAX: Final = 64  # files; of more, the caller waits for the freeing himself

NONE: Final = -1


def hold_if_large(name: str, directory: int) -> int:
    """Return a descriptor that keeps the space of a large file with one name; else NONE."""
    try:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return NONE  # the caller is about to hear why
    with suppress(OSError):
        found = os.fstat(held)
        is_last = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if is_last and found.st_blocks * 512 >= LARGE_SIZE:
            return held
    os.close(held)
    return NONE


class Freeing:
    """A thread that closes descriptors, started with the first of them."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[int] = deque()  # the first of them may be being closed
        self._changed = Condition()
        # Held from before a descriptor is closed until it waits no more. A fork in between
        # would close it again in the child, where somebody else may have its number by now.
        self._at_work = RLock()
        self._is_running = False

    def close(self, descriptor: int) -> None:
        """Have it closed soon; at once, if too many are waiting or there is no thread."""
        with self._changed:
            if len(self._waiting) < WAITING_COUNT_MAX and self._has_thread():
                self._waiting.append(descriptor)
                self._changed.notify_all()
                return
        os.close(descriptor)

    def settle(self) -> bool:
        """Wait until everything is freed that was to be; say whether there was anything."""
        with self._changed:
            had_some = bool(self._waiting)
            self._changed.wait_for(lambda: not self._waiting)
            return had_some

    def pause(self) -> None:
        """Close nothing until `resume`: a fork is about to see what waits."""
        self._at_work.acquire()

    def resume(self) -> None:
        """Go on, in the process that has forked."""
        self._at_work.release()

    def forget(self) -> None:
        """Let go in a process that was forked: the thread is its parent's."""
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
                    os.close(self._waiting[0])  # nobody else takes one away
                with self._changed:
                    self._waiting.popleft()
                    self._changed.notify_all()


FREEING: Final = Freeing()
os.register_at_fork(
    before=FREEING.pause, after_in_parent=FREEING.resume, after_in_child=FREEING.forget
)
