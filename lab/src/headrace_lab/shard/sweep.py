"""The crash sweep of a shard, through segments and carry files.

`python -m headrace_lab.shard.sweep`: its life is in `script.py`, the sweep in
`harness/sweep.py`. Every row is compared, answered requests are repeated, and two checkpoints
later no file may remain that no kept snapshot names.
"""

import sys
from random import Random
from typing import Any

from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.history import Broken
from headrace_lab.harness.sweep import Extent, Sweep
from headrace_lab.shard.history import check_named, check_tidy
from headrace_lab.shard.mutants import MUTANTS
from headrace_lab.shard.script import ShardActor, play


class ShardSweep(Sweep[ShardActor]):
    """A shard. A case costs some 30 ms, most of it Parquet: the short sweep takes a part."""

    program = "headrace_lab.shard.sweep"
    title = "crash sweep of a shard"
    what = "crash a shard at every effect"
    mutants = MUTANTS
    short = Extent(seeds=1, parts=4, every=8, cuts=2, states=3)
    full = Extent(seeds=1, parts=64, every=1, cuts=16, states=48)
    rooms = ("segments", "carry")

    def actor(self, disk: MemoryDisk, *known: Any) -> ShardActor:  # noqa: ANN401
        return ShardActor(disk, *known)

    def play(self, actor: ShardActor) -> None:
        play(actor)

    def check(self, actor: ShardActor) -> RecoveryReport:
        store = actor.open().store
        if store.findings:
            said = [
                *store.report.lines(),
                *(f"{one.path}: {one.what}" for one in store.findings),
            ]
            raise Broken(f"damage reported where there was only a crash: {said}")
        actor.history.check_store(store)
        return store.report

    def live_on(self, actor: ShardActor, rng: Random) -> None:
        actor.repeat()
        actor.go_on(rng.randrange(1, 4))
        if rng.random() < 0.5:
            actor.checkpoint()
            check_named(actor.running().store)

    def settle(self, actor: ShardActor) -> None:
        actor.go_on(2)
        actor.checkpoint()
        actor.checkpoint()
        check_tidy(actor.running().store)


SWEEP = ShardSweep()

if __name__ == "__main__":
    sys.exit(SWEEP.main())
