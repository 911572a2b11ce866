"""Memory of a child that seals: kept from job to job, given back when none comes.

A job takes buffers by the megabyte and frees them, and the next one takes as many. Left alone,
the C library and Arrow give them back to the kernel in between, which must clear each page
before it comes again: a third of what a small segment costs.
"""

import ctypes
from typing import Final

import pyarrow as pa

# For the environment of a child: both allocators look there before Python begins. What its
# parent has is for a node, which waits for requests and not for jobs.
KEPT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),  # the most that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MIMALLOC_PURGE_DELAY": "600000",  # milliseconds: longer than any job
}
IDLE_SECONDS: Final = 1.0  # after which a child gives back what it has kept


def give_back() -> None:
    """Give all freed memory back to the kernel, where the C library can."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
