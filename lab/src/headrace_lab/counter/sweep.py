"""The crash sweep of a bare group: `python -m headrace_lab.counter.sweep`.

Its life is in `script.py`; the sweep itself is in `harness/sweep.py`.
"""

import sys
from random import Random
from typing import Any

from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace_lab.counter.script import GroupActor, play
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.mutants import MUTANTS
from headrace_lab.harness.strikes import CHOICE_MAX
from headrace_lab.harness.sweep import Extent, Sweep


class GroupSweep(Sweep[GroupActor]):
    """A group of counters."""

    program = "headrace_lab.counter.sweep"
    title = "crash sweep"
    what = "crash at every effect and recover"
    mutants = MUTANTS
    short = Extent(seeds=1, parts=8, every=1, cuts=CHOICE_MAX, states=12)
    full = Extent(seeds=8, parts=8, every=1, cuts=CHOICE_MAX, states=96)

    def actor(self, disk: MemoryDisk, *known: Any) -> GroupActor:  # noqa: ANN401
        return GroupActor(disk, *known)

    def play(self, actor: GroupActor) -> None:
        play(actor)

    def check(self, actor: GroupActor) -> RecoveryReport:
        solo = actor.open()
        actor.history.check(solo)
        return solo.report

    def live_on(self, actor: GroupActor, rng: Random) -> None:
        actor.append(30, rng.randrange(10, 1500))
        actor.append(rng.randrange(10, 300))
        if rng.random() < 0.3:
            actor.checkpoint()

    def settle(self, actor: GroupActor) -> None:
        actor.append(25)


SWEEP = GroupSweep()

if __name__ == "__main__":
    sys.exit(SWEEP.main())
