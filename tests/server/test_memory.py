"""A node's process keeps the memory of bodies that it frees, until it has nothing to do."""

import os
import subprocess
import sys

import pytest

from headrace.cli.main import KEEP_ARROW_MEMORY

# Counts the pages that come anew while buffers of 4 MiB come and go in a thread.
SCRIPT = """
import resource, sys, threading
from headrace.server.memory import keep_freed_memory
if sys.argv[1] == "keep":
    sys.exit() if not keep_freed_memory() else None
def work():
    for _ in range(200):
        held = [bytearray(4 << 20) for _ in range(3)]
        del held
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(word):
    command = [sys.executable, "-c", SCRIPT, word]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not told:
        pytest.skip("this C library has no mallopt")
    return int(told)


def test_buffers_come_again_without_new_pages():
    assert faults("keep") < 20_000 < faults("leave")


# What the scripts below begin with: how much memory they have, and waiting until it is less.
RESIDENT = """
import asyncio, gc, sys, time
from headrace.server.memory import collect_rarely, give_back_when_idle, keep_freed_memory
from headrace.server.connections.traffic import Traffic
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
async def when_less(busy, less):
    until = time.monotonic() + 30
    while resident() >= busy - less and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return resident()
"""

# Leaves many holes between buffers that stay, then waits; prints memory before and after.
IDLE = """
async def main():
    if not keep_freed_memory():
        return
    traffic = Traffic(bytes_in=1)
    tidying = asyncio.create_task(give_back_when_idle(traffic))
    held = [bytearray(256 << 10) for _ in range(800)]
    held = held[::2]
    for _ in range(8):
        await asyncio.sleep(0.25)
        traffic.bytes_in += 1
    busy = resident()
    print(busy, await when_less(busy, 80))
asyncio.run(main())
"""


def test_memory_goes_back_when_nothing_happens():
    command = [sys.executable, "-c", RESIDENT + IDLE]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not told:
        pytest.skip("this C library has no mallopt")
    busy, idle = map(int, told.split())
    assert idle < busy - 80


# Leaves cycles with bodies behind, as failed requests do, then waits.
CYCLES = """
async def main():
    if not keep_freed_memory():
        return
    collect_rarely()
    tidying = asyncio.create_task(give_back_when_idle(Traffic(bytes_in=1)))
    cycles = [[bytearray(1 << 20)] for _ in range(100)]
    for cycle in cycles:
        cycle.append(cycle)
    gc.collect()  # half of them grow old before they fail
    cycles = cycle = None
    for _ in range(100):
        cycle = [bytearray(1 << 20)]
        cycle.append(cycle)
    busy = resident()
    print(busy, await when_less(busy, 180))
asyncio.run(main())
"""


def test_what_failed_requests_left_goes_back_too():
    command = [sys.executable, "-c", RESIDENT + CYCLES]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not told:
        pytest.skip("this C library has no mallopt")
    busy, idle = map(int, told.split())
    assert idle < busy - 180


# Has threads ask for memory at the same time, and counts the heaps that came of it.
HEAPS = """
import ctypes, sys, threading
from headrace.server.memory import keep_freed_memory
if sys.argv[1] == "keep":
    sys.exit() if not keep_freed_memory() else None
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
barrier = threading.Barrier(6)
def work():
    barrier.wait()
    held = [bytearray(100_000) for _ in range(20)]
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


def heaps(word):
    command = [sys.executable, "-c", HEAPS, word]
    given = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
    told = ended.stdout
    if not told:
        pytest.skip("this C library has no mallopt")
    return told.count("<heap nr=")


def test_threads_bring_no_heaps_of_their_own():
    assert heaps("keep") <= 2 < heaps("leave")  # a library may have brought one before


# Has Arrow's memory come and go, and waits; prints it while busy, after a while, and idle.
ARROW = """
import pyarrow as pa
def use():
    held = [memoryview(pa.allocate_buffer(48 << 20)).cast("B") for _ in range(3)]
    for each in held:
        each[::4096] = bytes(len(each) // 4096)
async def main():
    traffic = Traffic(bytes_in=1)
    tidying = asyncio.create_task(give_back_when_idle(traffic))
    use()
    for _ in range(8):
        await asyncio.sleep(0.25)
        traffic.bytes_in += 1
    pa.allocate_buffer(48 << 20)
    kept = resident()
    print(kept, await when_less(kept, 100))
asyncio.run(main())
"""


def test_arrow_keeps_its_memory_while_there_is_something_to_do():
    given = {**os.environ, **dict([KEEP_ARROW_MEMORY])}
    command = [sys.executable, "-c", RESIDENT + ARROW]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
    kept, idle = map(int, ended.stdout.split())
    assert idle < kept - 100
