"""Gives the space of large files back in a thread of its own, once their last name is gone.

To unlink a file is a moment's work, but to free its pages and blocks takes 20 ms for 64 MiB,
and the last to let go of the file waits for it: that would be a thread that appends. Names go
in the caller's thread and in the caller's order; after a crash a file without a name is the
file system's to free.
"""

import os
import stat
from queue import SimpleQueue
from threading import Lock, Thread
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
    found = os.fstat(held)
    is_last = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    if is_last and found.st_blocks * 512 >= LARGE_SIZE:
        return held
    os.close(held)
    return NONE


class Freeing:
    """A thread that closes descriptors, started with the first of them."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None

    def close(self, descriptor: int) -> None:
        """Have it closed soon; at once, if too many are waiting already."""
        if self._waiting.qsize() >= WAITING_COUNT_MAX:
            os.close(descriptor)
            return
        self._waiting.put(descriptor)
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="freeing", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            os.close(self._waiting.get())


FREEING: Final = Freeing()
