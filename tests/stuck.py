"""Files that the system lets nobody change: `chattr +i`, where it works."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def immutable(*paths: Path) -> Iterator[Callable[[], None]]:
    """Let nobody write, move or remove these files until what this yields is called.

    Skips the test where that cannot be: it takes root, and a file system with such a flag.
    """
    names = [str(path) for path in paths]

    def release() -> None:
        subprocess.run(["chattr", "-i", *names], capture_output=True, check=False)

    try:
        made = subprocess.run(["chattr", "+i", *names], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no chattr here")
    try:
        if made.returncode:
            pytest.skip(f"chattr +i does not work here: {made.stderr.decode().strip()}")
        yield release
    finally:
        release()
