"""Children of a process that was killed: they must notice, and end."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.sim.testimony import Silent, Writer

# In the environment of a process and, by it, of all its children, whoever their parent is now.
MARK: Final = "HEADRACE_SIM_LIFE"
LOOK_SECONDS: Final = 0.01
# A child that was just started notices its parent's death once Python and Arrow are loaded.
ORPHAN_SECONDS_MAX: Final = 20.0


class MarkedProcess(Writer):
    """A running process whose children can be found after its death."""

    mark: str  # NAME=VALUE, of its environment

    def await_orphans(self) -> float:
        """Return how many seconds its children outlived it."""
        began = time.monotonic()
        while living(self.mark):
            if time.monotonic() - began > ORPHAN_SECONDS_MAX:
                raise Silent(f"children outlive their parent: {living(self.mark)}")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began


def living(mark: str) -> list[int]:
    """Return the processes that have `mark` in their environment; a dead one has none."""
    found: list[int] = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (one / "environ").read_bytes().split(b"\0"):
                    found.append(int(one.name))
    return found
