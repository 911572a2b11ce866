"""Ways to damage one file at rest, each as a repeatable value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from headrace_lab.disk.faults import SECTOR_SIZE

RANGES = ("noise", "blank")  # random bytes, or zeros
RANGE_SIZES = (512, 4096, 8192, 65536)


@dataclass(frozen=True, slots=True)
class Damage:
    """One file, one kind of damage, one place. `at` is a bit, a length, a sector or an op.

    Of a range it is the first byte, and `size` tells how many there are.
    """

    path: str
    kind: str
    at: int = 0
    size: int = 0

    def __str__(self) -> str:
        size = f" +{self.size}" if self.size else ""
        return f"{self.path} {self.kind} {self.at}{size}"


def changed(data: bytes, damage: Damage, others: Mapping[str, bytes]) -> bytes | None:
    """Return what is left of a file, None if it is gone; `others` may stand in its place."""
    if damage.kind in RANGES:
        return ranged(data, damage)
    match damage.kind:
        case "missing":
            left = None
        case "empty":
            left = b""
        case "cut":
            left = data[: damage.at]
        case "flip" | "rot":
            left = flipped(data, damage.at)
        case "zero":
            start = damage.at * SECTOR_SIZE
            size = len(data[start : start + SECTOR_SIZE])
            left = data[:start] + bytes(size) + data[start + size :]
        case _:
            left = others[damage.kind]
    return left


def flipped(data: bytes, bit: int) -> bytes:
    """Return `data` with one bit turned over, counted from the lowest of the first byte."""
    place = bit // 8
    return data[:place] + bytes([data[place] ^ (1 << bit % 8)]) + data[place + 1 :]


def ranged(data: bytes, damage: Damage) -> bytes:
    """Return `data` with one range of it overwritten, as far as it reaches."""
    end = min(len(data), damage.at + damage.size)
    size = max(0, end - damage.at)
    is_noise = damage.kind == "noise"
    new = Random(str(damage)).randbytes(size) if is_noise else bytes(size)
    return data[: damage.at] + new + data[end:]


def ranges(files: Mapping[str, int]) -> Iterator[Damage]:
    """Yield every range of files of these sizes: each size of it, at every sector."""
    for path, file_size in files.items():
        for kind in RANGES:
            for size in RANGE_SIZES:
                for at in range(0, file_size, SECTOR_SIZE):
                    yield Damage(path, kind, at, size)
