"""Faults on the effects of a life, and the deaths that end it."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headrace_lab.disk.faults import (
    Crash,
    CrashAfter,
    Effect,
    Fail,
    Fault,
    Keep,
    LoseSync,
    choices,
)
from headrace_lab.disk.memory import MemoryDisk

SUBSET_BOUND = 6  # all 2^6 subsets up to six unsynced changes, a sample beyond
CHOICE_MAX = 96  # ways of one power cut tried at one crash point


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault to put on one effect of the script."""

    number: int
    fault: Fault
    name: str
    crash_at: int | None = None  # a later effect, where the life that went on ends after all


@dataclass(slots=True)
class StrikeHook:
    """Puts one strike on a disk."""

    strike: Strike
    landed: bool = False

    def __call__(self, effect: Effect) -> Fault | None:
        if effect.number == self.strike.number:
            self.landed = True
            return self.strike.fault
        return Crash() if effect.number == self.strike.crash_at else None


def strikes(effects: list[Effect], rng: Random) -> Iterator[Strike]:
    """Yield every fault that is put on every effect."""
    for effect in effects:
        yield Strike(effect.number, Crash(), "crash before")
        yield Strike(effect.number, CrashAfter(), "crash after")
        if effect.kind in ("write", "append") and effect.size > 1:
            cut = rng.randrange(1, effect.size)
            yield Strike(effect.number, Crash(done=cut), "crash inside a write")
            yield Strike(effect.number, Fail(errno.ENOSPC, done=cut), "short write, ENOSPC")
            most = Fail(errno.EIO, done=effect.size - 1)
            yield Strike(effect.number, most, "write short of one byte, EIO")
        if effect.kind == "sync":
            yield Strike(effect.number, LoseSync(), "sync that loses its data")
        yield Strike(effect.number, Fail(errno.EIO), f"EIO at {effect.kind}")
        yield Strike(effect.number, Fail(errno.ENOSPC), f"ENOSPC at {effect.kind}")


def deaths(
    disk: MemoryDisk, rng: Random, most: int = CHOICE_MAX
) -> Iterator[tuple[str, MemoryDisk]]:
    """Yield the disk as each kind of death leaves it, with at most so many power cuts."""
    yield "process killed", disk.kill()
    ways = list(choices(disk.pending(), rng, SUBSET_BOUND))
    if len(ways) > most:
        first = min(8, most // 2)
        ways = [*ways[:first], *rng.sample(ways[first:], most - first)]
    for kept in ways:
        yield f"power cut keeping {_words(kept)}", disk.power_cut(kept)


def any_death(disk: MemoryDisk, rng: Random) -> MemoryDisk:
    """Return the disk as a death by chance leaves it."""
    if rng.random() < 0.25:
        return disk.kill()
    ways = list(choices(disk.pending(), rng, 3))
    return disk.power_cut(rng.choice(ways))


def _words(kept: list[Keep]) -> str:
    if not kept:
        return "nothing"
    return ", ".join(
        f"{keep.index}{'' if keep.ranges is None else keep.ranges}" for keep in kept
    )
