"""The corruption matrix of a bare group: `python -m headrace_lab.counter.matrix`.

`expect.py` gives the required outcome of a damage. After each successful recovery, log and
state are compared with the history; some are recovered a second time.
"""

import errno
import sys
from collections.abc import Iterable
from functools import cache
from typing import ClassVar

from headrace.errors import HeadraceError
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace_lab.counter.counter import CounterMachine
from headrace_lab.counter.damage import damaged, every, ranges_of, sample, sample_ranges
from headrace_lab.counter.expect import Ended, expected, refused
from headrace_lab.counter.scene import RESTED, STORIES, GroupScene, build, opened
from headrace_lab.counter.solo import Solo
from headrace_lab.disk.faults import SECTOR_SIZE
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.damage import Damage
from headrace_lab.harness.history import Broken
from headrace_lab.harness.matrix import Matrix
from headrace_lab.harness.mutants import MUTANTS

CASES_SHORT = 60_000  # without --full: everything but flips and cuts, and a sample of those
RANGES_SHORT = 100  # of each story that rested; --full takes every range at every sector
CASES_HUNT = 1_500  # of each story, for a planted bug
TWICE_EVERY = 8  # of the cases that recover, how many are recovered a second time


class GroupMatrix(Matrix[GroupScene]):
    """A group of counters."""

    program = "headrace_lab.counter.matrix"
    title = "corruption matrix"
    what = "damage every file of a group in every way"
    mutants = MUTANTS
    counts: ClassVar = {
        **dict.fromkeys(STORIES, CASES_SHORT // len(STORIES)),
        **dict.fromkeys(RESTED, RANGES_SHORT),
    }
    hunts: ClassVar = {
        "matrix": dict.fromkeys(STORIES, CASES_HUNT),
        "ranges": dict.fromkeys(RESTED, RANGES_SHORT),
    }
    parts = (8, 8)

    def build(self, name: str) -> GroupScene:
        return build(name)

    def damages(self, scene: GroupScene, count: int | None, seed: int) -> Iterable[Damage]:
        if count is None:
            return ranges_of(scene) if scene.vouched else every(scene)
        choose = sample_ranges if scene.vouched else sample
        return choose(scene, count, seed)

    def expected(self, scene: GroupScene, damage: Damage) -> Ended | None:
        return expected(scene, damage)

    def case(self, scene: GroupScene, damage: Damage, wanted: Ended, number: int) -> str:
        disk = _damaged_disk(scene, damage)
        found = _recover(scene, disk, twice=number % TWICE_EVERY == 0)
        if not found.name.startswith("refused") and found.head < scene.vouched:
            raise Broken(f"ops above {found.head} are gone")
        if found != wanted:
            raise Broken(f"found {found}")
        return found.family


def _damaged_disk(scene: GroupScene, damage: Damage) -> MemoryDisk:
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


def _recover(scene: GroupScene, disk: MemoryDisk, *, twice: bool) -> Ended:
    before = disk.effect_count
    try:
        solo = opened(scene, disk)
    except HeadraceError as error:
        if disk.effect_count != before:
            return Ended(f"wrong: refused {type(error).__name__} and yet changed something")
        return refused(type(error).__name__)
    if not _holds(scene, solo):
        return Ended("wrong: log or state differ from the history")
    if twice and disk.read_fault is None:
        again = opened(scene, disk.kill())
        if again.head != solo.head or not _holds(scene, again):
            return Ended("wrong: a second recovery differs from the first")
    return _outcome(solo.report, solo)


def _outcome(report: RecoveryReport, solo: Solo) -> Ended:
    """Name what a recovery reported: its gravest finding."""
    if report.superblock_rebuilt:
        return Ended("rebuilt", solo.head)
    if report.cut is not None:
        return Ended(f"cut at op {report.cut.first}", solo.head)
    if report.fell_back:
        return Ended("fell back", solo.head)
    if report.faulty:
        return Ended("damage below", solo.head)
    if report.quarantined:
        return Ended("quarantined", solo.head)
    return Ended("noted" if report.notes else "clean", solo.head)


def _holds(scene: GroupScene, solo: Solo) -> bool:
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

    def __init__(self, scene: GroupScene) -> None:
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


MATRIX = GroupMatrix()

if __name__ == "__main__":
    sys.exit(MATRIX.main())
