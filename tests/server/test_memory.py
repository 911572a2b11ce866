"""A node's process keeps the memory of bodies that it frees."""

import subprocess
import sys

import pytest

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
