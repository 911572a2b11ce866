"""How the process of a node keeps memory, and looks for what it can free.

The buffers of bodies come and go by the megabyte. Left alone, glibc gives each back to the
kernel, which must clear its pages before they come again: half of what a body costs. So does
Arrow, after a moment, with the rows of segments; `headrace serve` has it wait. A node gives
memory back when nothing has come or gone for a second.

Each thread would free into a heap of its own, and every heap keeps holes that no other thread
fills. So threads bring no new ones: nearly all of them hold Python's lock when they ask for
memory, and Arrow's rows come from elsewhere.

Requests leave hardly a cycle behind, and what the modules hold is there for good: Python need
not look through all of it every few hundred requests. Those that fail leave some, with their
bodies: an idle node looks for them.
"""

import asyncio
import ctypes
import gc
from typing import Final

import pyarrow as pa

from headrace.server.connections.traffic import Traffic

# mallopt(3). How many heaps; their largest buffer; what one may keep at its top.
_M_ARENA_MAX: Final = -8
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_REUSED_SIZE_MAX: Final = 32 * 1024 * 1024  # the most that glibc takes
_KEPT_SIZE_MAX: Final = 256 * 1024 * 1024
_LOOK_EVERY: Final = 1.0  # seconds
_COLLECT_LOOKS_MIN: Final = 30  # between two full rounds: one takes 0.1 s for 400,000 objects
_COLLECT_AFTER: Final = (20_000, 20, 50)  # objects; rounds of the first, of the second


def keep_freed_memory() -> bool:
    """Let buffers be used again. Only for a process that is a node and nothing else.

    False: this C library has no such thing, and goes its own way.
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
    """Give freed memory back when the node has had nothing to do for a while. Never ends."""
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
            # All of it: what waited through a round is old, and may have failed since.
            gc.collect()
            looks, is_collected, is_given_back = 0, True, False
        if not is_given_back:
            is_given_back = True
            pa.default_memory_pool().release_unused()
            trim(0)


def collect_rarely() -> None:
    """Have the collector leave alone what is there now, and look more rarely at the rest."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
