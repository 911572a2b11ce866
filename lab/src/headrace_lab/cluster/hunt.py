"""Hunts planted bugs: seed after seed, until one fails with the bug but not without it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace_lab.cluster.cluster import run_seed
from headrace_lab.cluster.mutants import MUTANTS, SHOWN_BY
from headrace_lab.harness.mutants import planted

SEEDS_MAX = 500  # a bug that so many seeds do not show is missed


@dataclass(frozen=True, slots=True)
class Catch:
    """How one planted bug was noticed; nothing in `how` if it was not."""

    name: str
    seed: int | None
    seeds: int  # tried
    how: str


def hunt(names: Sequence[str], *, first: int = 0, jobs: int = 1) -> Iterator[Catch]:
    """Hunt each, and yield how it was caught, in order."""
    if jobs == 1:
        for name in names:
            yield catch(name, first)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(catch, names, [first] * len(names))


def catch(name: str, first: int = 0, most: int = SEEDS_MAX) -> Catch:
    """Run seeds with the bug in; the one that fails must pass with the bug out."""
    seeds: list[tuple[int, int | None]] = [(seed, None) for seed in range(first, first + most)]
    seeds[:0] = [SHOWN_BY[name]] if name in SHOWN_BY else []
    for count, (seed, replicas) in enumerate(seeds, 1):
        how = look(name, seed, replicas)
        if how and not look("", seed, replicas):
            return Catch(name, seed, count, how)
    return Catch(name, None, most, "")


def look(name: str, seed: int, replicas: int | None = None) -> str:
    """Return what one seed says with this bug in, nothing if it passes."""
    with planted(name, MUTANTS):
        try:
            outcome = run_seed(seed, replicas)
        except (HeadraceError, LookupError, ValueError, TypeError, StopIteration) as error:
            return f"{type(error).__name__}: {error}"
    return outcome.violation or ""
