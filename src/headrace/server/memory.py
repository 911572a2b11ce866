"""Memory management of a node process: what it keeps, and when it frees.

Buffers of bodies are allocated and freed by the megabyte. By default, glibc returns each to the
kernel, which must clear the pages before they are reused: half the cost of a body. Arrow does
the same, after a moment, with the rows of segments; `headrace serve` delays that. A node
returns memory to the kernel when it has had no traffic for a second.

By default, each thread would use its own heap, with holes that no other thread fills. So
threads share one heap: nearly all of them hold the GIL when they allocate, and Arrow's rows
come from elsewhere.

Requests create hardly any reference cycles, and the content of modules is permanent: Python
need not scan all of it every few hundred requests. Failed requests create some cycles, with
their bodies: an idle node collects them.
"""

import asyncio
import ctypes
import gc
from typing import Final

import pyarrow as pa

from headrace.server.connections.traffic import Traffic

# mallopt(3): number of heaps; largest buffer in them; memory kept at the top of one.
_M_ARENA_MAX: Final = -8
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_REUSED_SIZE_MAX: Final = 32 * 1024 * 1024  # the most that glibc takes
_KEPT_SIZE_MAX: Final = 256 * 1024 * 1024
_LOOK_EVERY: Final = 1.0  # seconds
_COLLECT_LOOKS_MIN: Final = 30  # between full collections: one takes 0.1 s for 400,000 objects
_COLLECT_AFTER: Final = (
    20_000,
    20,
    50,
)  # objects; collections of generation 0, and of 1


def keep_freed_memory() -> bool:
    """Let freed buffers be reused. Only for a process that is a node and nothing else.

    False: this C library does not support it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_ARENA_MAX, 1)
        and mallopt(_M_MMAP_THRESHOLD, _REUSED_SIZE_MAX)
        and mallopt(_M_TRIM_THRESHOLD, _KEPT_SIZE_MAX)
    )


async def give_back_when_idle(traffic: Traffic) -> None:
    """Return freed memory to the kernel while the node is idle. Never ends."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda padding: None)
    seen, is_given_back, is_collected = 0, False, False
    looks = _COLLECT_LOOKS_MIN
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        looks += 1
        found = traffic.bytes_in + traffic.bytes_out
        if found != seen:
            seen, is_given_back, is_collected = found, False, False
            continue
        if not is_collected and looks >= _COLLECT_LOOKS_MIN:
            # A full collection: objects of failed requests may be in an old generation.
            gc.collect()
            looks, is_collected, is_given_back = 0, True, False
        if not is_given_back:
            is_given_back = True
            pa.default_memory_pool().release_unused()
            trim(0)


def collect_rarely() -> None:
    """Exempt existing objects from garbage collection, and collect the rest less often."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
