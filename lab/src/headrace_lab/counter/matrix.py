"""The corruption matrix: every damage of every file has one exact outcome.

`python -m headrace_lab.counter.matrix` damages one file of a group at rest, recovers, and
compares what happened with what `expect.py` says must happen. Any other outcome fails, a safe
one included. After each recovery that succeeds the log and the state are compared with the
history; some are recovered a second time.
"""

import errno
import sys
from collections.abc import Iterable
from functools import cache
from itertools import islice

from headrace.errors import HeadraceError
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace_lab.counter.counter import CounterMachine
from headrace_lab.counter.damage import (
    Damage,
    damaged,
    every,
    ranges_of,
    sample,
    sample_ranges,
)
from headrace_lab.counter.expect import Outcome, expected, refused
from headrace_lab.counter.scene import RESTED, STORIES, Scene, build, opened
from headrace_lab.counter.solo import Solo
from headrace_lab.disk.faults import SECTOR_SIZE
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import Broken
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.tally import Tally

CASES_SHORT = 60_000  # without --full: everything but flips and cuts, and a sample of those
RANGES_SHORT = 100  # of each story that rested; --full takes every range at every sector
TWICE_EVERY = 8  # of the cases that recover, how many are recovered a second time


def run(
    name: str,
    damages: Iterable[Damage],
    *,
    stop_at_first: bool = False,
) -> Tally:
    """Put each damage on the scene of this name."""
    scene = build(name)
    tally = Tally()
    for damage in damages:
        _case(scene, damage, tally)
        if stop_at_first and tally.failures:
            break
    return tally


def _case(scene: Scene, damage: Damage, tally: Tally) -> None:
    wanted = expected(scene, damage)
    if wanted is None:
        tally.counts["without effect"] += 1
        return
    tally.cases += 1
    tally.landed[damage.kind] += 1
    disk = _damaged_disk(scene, damage)
    try:
        found = _recover(scene, disk, twice=tally.cases % TWICE_EVERY == 0)
    except AssertionError as error:
        found = Outcome(f"wrong: {error!r}")
    tally.found[found.family] += 1
    if not found.name.startswith("refused") and found.head < scene.vouched:
        tally.failures.append(f"{scene.name}: {damage}: ops above {found.head} are gone")
    elif found != wanted:
        tally.failures.append(f"{scene.name}: {damage}: expected {wanted}, found {found}")


def _damaged_disk(scene: Scene, damage: Damage) -> MemoryDisk:
    disk = scene.disk.clone()
    content = damaged(scene, damage)
    if damage.kind == "unreadable":
        start, end = damage.at * SECTOR_SIZE, (damage.at + 1) * SECTOR_SIZE

        def read_fault(path: str, position: int, size: int) -> int | None:
            hit = path == damage.path and position < end and start < position + size
            return errno.EIO if hit else None

        disk.read_fault = read_fault
    elif content is None:
        disk.remove(damage.path)
    else:
        disk.put(damage.path, content)
    return disk


def _recover(scene: Scene, disk: MemoryDisk, *, twice: bool) -> Outcome:
    before = disk.effect_count
    try:
        solo = opened(scene, disk)
    except HeadraceError as error:
        if disk.effect_count != before:
            return Outcome(f"wrong: refused {type(error).__name__} and yet changed something")
        return refused(type(error).__name__)
    if not _holds(scene, solo):
        return Outcome("wrong: log or state differ from the history")
    if twice and disk.read_fault is None:
        again = opened(scene, disk.kill())
        if again.head != solo.head or not _holds(scene, again):
            return Outcome("wrong: a second recovery differs from the first")
    return _outcome(solo.report, solo)


def _outcome(report: RecoveryReport, solo: Solo) -> Outcome:
    """Name what a recovery reported: its gravest finding."""
    if report.superblock_rebuilt:
        return Outcome("rebuilt", solo.head)
    if report.cut is not None:
        return Outcome(f"cut at op {report.cut.first}", solo.head)
    if report.fell_back:
        return Outcome("fell back", solo.head)
    if report.faulty:
        return Outcome("damage below", solo.head)
    if report.quarantined:
        return Outcome("quarantined", solo.head)
    return Outcome("noted" if report.notes else "clean", solo.head)


def _holds(scene: Scene, solo: Solo) -> bool:
    """Compare log and state with what was acknowledged, up to the recovered head."""
    if solo.head > scene.head:
        return False
    chain = scene.history.acknowledged[: solo.head]
    headers = solo.group.journal.headers(solo.group.applied, solo.head)
    if headers and headers[-1].checksum != chain[-1]:
        return False
    return solo.machine.digest() == _digest(tuple(chain), _Entries(scene))


class _Entries:
    """A scene's entries, hashable, so that digests of prefixes are computed once."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def __hash__(self) -> int:
        return hash(self.scene.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entries) and other.scene is self.scene


@cache
def _digest(chain: tuple[bytes, ...], entries: _Entries) -> bytes:
    model = CounterMachine()
    for checksum in chain:
        model.apply(entries.scene.history.submitted[checksum])
    return model.digest()


def share(name: str, part: tuple[int, int], count: int | None, seed: int, mutant: str) -> Tally:
    """Run one part of one scene's cases; a `count` of None runs them all."""
    with planted(mutant):
        scene = build(name)
        choose = sample_ranges if scene.vouched else sample
        whole = ranges_of if scene.vouched else every
        chosen = whole(scene) if count is None else choose(scene, count, seed)
        mine = islice(chosen, part[0], None, part[1])
        return run(name, mine, stop_at_first=bool(mutant))


def catch(mutant: str, seed: int) -> str:
    """Return how the matrix notices a planted bug, or nothing if it does not."""
    return _caught(mutant, seed, dict.fromkeys(STORIES, 1500))


def catch_by_ranges(mutant: str, seed: int) -> str:
    """Return how ranges that damage groups at rest notice it, or nothing."""
    return _caught(mutant, seed, dict.fromkeys(RESTED, RANGES_SHORT))


def _caught(mutant: str, seed: int, counts: dict[str, int]) -> str:
    for name, count in counts.items():
        try:
            tally = share(name, (0, 1), count, seed, mutant)
        except (Broken, HeadraceError, OSError, AssertionError) as error:
            return f"{name}: {error!r}"
        if tally.failures:
            return tally.failures[0]
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the matrix from the command line."""
    parser = frame(
        "headrace_lab.counter.matrix", "damage every file of a group in every way", "full"
    )
    options = parser.parse_args(arguments)
    if options.mutants:
        missed = hunt("matrix", catch, options)
        return hunt("ranges", catch_by_ranges, options) or missed
    counts = dict.fromkeys(STORIES, CASES_SHORT // len(STORIES))
    counts |= dict.fromkeys(RESTED, RANGES_SHORT)
    jobs = [
        (name, (part, 8), None if options.full else count, options.seed, "")
        for name, count in counts.items()
        for part in range(8)
    ]
    return run_all("corruption matrix", Tally(), share, jobs, options)


if __name__ == "__main__":
    sys.exit(main())
