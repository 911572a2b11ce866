"""The machine's own disk: write + fdatasync into a growing file and into a written one."""

from pathlib import Path

from headrace_lab.bench.bare import MIB, growing, rewriting
from headrace_lab.bench.frame import Case, scaled

KIB = 1024

# Blocks of one round. A sync costs about the same for 4 KiB as for 64, so small blocks are
# counted and large ones are weighed: each round takes a fraction of a second on a good disk.
_BLOCKS = {"4 KiB": (4 * KIB, 256), "64 KiB": (64 * KIB, 128), "1 MiB": (MIB, 32)}


def cases(directory: Path, scale: float) -> list[Case]:
    """One case per block size. No part of Headrace runs here, so there is no floor."""
    return [
        Case(
            name=f"{name} blocks, growing file",
            unit="MiB/s",
            ours=growing(directory, size, scaled(count, scale)),
            reference="the same over a written file",
            limit=rewriting(directory, size, scaled(count, scale)),
        )
        for name, (size, count) in _BLOCKS.items()
    ]
