"""Memory that the machine has at hand.

A virtual machine gives memory it does not use back to its host, and gets it back page by page
when it is written: several times what a write takes itself. Which side of a case pays for that
would be chance. So each side has memory made ready, as much as it will write, right before its
clock starts.
"""

import tempfile
from typing import Final

_BLOCK_SIZE: Final = 1024 * 1024


def make_ready(size: int) -> None:
    """Have `size` bytes of the page cache written and freed, for whoever comes next."""
    block = bytes(_BLOCK_SIZE)
    with tempfile.TemporaryFile() as file:
        for _ in range(size // _BLOCK_SIZE):
            file.write(block)
