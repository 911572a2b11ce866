"""Lives of group 0 with the copy of its metadata: everything acknowledged comes back.

`python -m headrace_lab.lives.copy_life` changes metadata on a disk in memory, takes checkpoints
alongside changes, kills the process or cuts the power anywhere, and then damages group 0 or its
copy: the end of its journal, its middle, all of it, or an older one in its place. After each
start:

    everything acknowledged is there, and the state is that of a replay of the log
    the copy on disk leads to the same state
    after a heal every old file lies next to the new one
    a start that refuses has changed nothing

`sweep` does the same for every effect of a heal; `doubts` for what must not be healed.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from headrace.errors import Corrupt, HeadraceError
from headrace.model.ids import Op
from headrace.node.doubt.metadata_copy import NAME, read_copy
from headrace.node.doubt.verdict import Healed
from headrace_lab.disk.faults import Crash, Crashed, Effect, Keep
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import Broken
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.strikes import StrikeHook, deaths, strikes
from headrace_lab.harness.tally import Tally
from headrace_lab.lives.copy_mutants import MUTANTS
from headrace_lab.lives.copy_world import (
    COPY_HARMS,
    HARMS,
    NOTHING_YET,
    OLDER,
    PLACE,
    ZERO,
    CopyWorld,
    Known,
    contents,
    harm,
    put_group,
)

STEPS = 60
SEEDS_SHORT = 24


@dataclass(slots=True)
class _CopyLife:
    rng: Random
    tally: Tally
    world: CopyWorld = field(default_factory=lambda: CopyWorld(MemoryDisk(), Known()))
    earlier: list[tuple[dict[str, bytes], Op, bytes]] = field(default_factory=list)
    forgot: bool = False  # a copy was lost, and with it the memory of older entries

    def run(self) -> None:
        self._start()
        for _ in range(STEPS):
            self._step()
            if self.rng.random() < 0.15:
                self._die()
        self._die()

    def _step(self) -> None:
        world, rng = self.world, self.rng
        if rng.random() < 0.2:
            world.disk.hook = self._fault
        try:
            if world.is_due or rng.random() < 0.1:
                world.checkpoint(rng.randrange(4), rng)
            else:
                world.change(rng.randrange(1, 4), rng)
            if rng.random() < 0.5:
                world.group.idle()
        except Crashed:
            self._die()
            return
        finally:
            self.world.disk.hook = None
        if rng.random() < 0.5:
            world.write_heads()
        if rng.random() < 0.3:
            journal = world.group.journal
            moment = (contents(world.disk, PLACE), journal.durable, journal.tip)
            self.earlier.append(moment)

    def _fault(self, effect: Effect) -> Crash | None:
        if self.rng.random() > 0.2:
            return None
        return Crash(self.rng.randrange(effect.size) if effect.kind == "write" else 0)

    def _die(self) -> None:
        world, rng = self.world, self.rng
        world.disk.hook = None
        ways = [disk for _, disk in deaths(world.disk, rng, 4)]
        world.disk = rng.choice(ways)
        kind = rng.choice(("none", OLDER, *HARMS, *COPY_HARMS))
        self.tally.landed[kind] += 1
        if kind == "none" or not self.earlier:
            self._start()
            return
        # What is hurt is at rest: the kernel has written out what it still had.
        everything = [Keep(change.index) for change in world.disk.pending()]
        world.disk = world.disk.power_cut(everything)
        whole = world.disk.clone()
        files, op, tip = rng.choice(self.earlier)
        harm(world.disk, kind, rng, files)
        self.forgot = self.forgot or kind in COPY_HARMS
        hurt = world.disk.clone()
        known = world.known.copy()
        is_kin = op == 0 or (op <= len(known.log) and known.log[op - 1].checksum == tip)
        try:
            self._start()
        except Corrupt as error:
            may_refuse = kind == OLDER and (self.forgot or not is_kin)
            self._refused(error, hurt, kind, None if may_refuse else whole)
            world.disk, world.known = whole, known
            self._start()
        else:
            self._check_aside(hurt)

    def _start(self) -> None:
        self.tally.cases += 1
        self.world.open()
        self.tally.found[type(self.world.start.verdict).__name__] += 1

    def _refused(
        self, error: Corrupt, hurt: MemoryDisk, kind: str, whole: MemoryDisk | None
    ) -> None:
        """A start may refuse only where a crash made the copy weaker, too.

        Or where what was put back is older than what the copy remembers, or of a branch: then
        `whole` is None.
        """
        self.tally.found["Held"] += 1
        if contents(self.world.disk) != contents(hurt):
            raise Broken(f"a start that refused has changed something: {error}")
        if whole is None:
            return
        found = read_copy(whole.root, ZERO)
        newest = Op(0) if found.copy is None else found.copy.newest.op
        is_weak = found.flaw or newest < len(self.world.known.log)
        if kind in COPY_HARMS or not is_weak:
            raise Broken(f"a start refused although the copy has everything: {error}")

    def _check_aside(self, hurt: MemoryDisk) -> None:
        start = self.world.start
        if not isinstance(start.verdict, Healed):
            return
        files = contents(hurt, PLACE)
        if start.swapped is None or (files and start.swapped.aside is None):
            raise Broken("nothing says where the old files are")
        if files and contents(self.world.disk, f"{start.swapped.aside}/") != files:
            raise Broken("an old file was not set aside as it was")


def a_hurt_world(rng: Random, kind: str) -> tuple[MemoryDisk, Known, dict[str, bytes]]:
    """A log at rest whose group 0 is hurt so that it must be healed, and the files of it."""
    while True:
        world = CopyWorld(MemoryDisk(), Known())
        world.open()
        world.change(3, rng)
        earlier = contents(world.disk, PLACE)
        world.checkpoint(2, rng)
        world.change(2, rng)
        world.group.idle()
        world.write_heads()
        disk = world.disk.kill().power_cut()
        harm(disk, kind, rng, earlier)
        trial = CopyWorld(disk.clone(), world.known.copy())
        trial.open()
        if isinstance(trial.start.verdict, Healed):
            return disk, world.known, contents(disk, PLACE)


def sweep(seed: int, every: int = 1) -> Tally:
    """Strike at every effect of a heal; the next starts must bring it to its end."""
    tally, rng = Tally(), Random(seed)
    for kind in ("end", OLDER, "gone", "headers"):
        disk, known, old = a_hurt_world(rng, kind)
        seen: list[Effect] = []
        trial = disk.clone()
        trial.hook = seen.append
        CopyWorld(trial, known.copy()).open()
        for strike in list(strikes(seen, rng))[::every]:
            hurt = disk.clone()
            hurt.hook = StrikeHook(strike)
            world = CopyWorld(hurt, known.copy())
            with suppress(Crashed, HeadraceError):
                world.open()
            for way, after in deaths(hurt, rng, 16):
                tally.cases += 1
                try:
                    _come_back(after, known.copy(), old if way == "process killed" else {})
                except (Broken, HeadraceError, AssertionError) as error:
                    what = f"{kind}, {strike.name} at effect {strike.number}, {way}"
                    tally.failures.append(f"{what}: {error!r}")
                    return tally
    return tally


def _come_back(disk: MemoryDisk, known: Known, old: dict[str, bytes]) -> None:
    """Start twice; everything is there, and so are the old files."""
    for _ in range(2):
        known.starts += 1
        world = CopyWorld(disk, known)
        world.open()
        disk = disk.kill()
    aside = contents(disk, "groups/")
    for name, data in old.items():
        if not any(path.endswith(name) and each == data for path, each in aside.items()):
            raise Broken(f"the old {name} is nowhere")


def doubts(seed: int) -> Tally:
    """Try what must not be healed: another history, and a copy that a shard is ahead of."""
    tally, rng = Tally(), Random(seed)
    for has_head in (True, False):
        old, early = _grown(rng)
        branch, late = _grown(rng, old.clone(), early.copy())
        theirs, _ = _grown(rng, old.clone(), early.copy())
        branch.put(NAME, theirs.content(NAME))
        late.head = late.head if has_head else None
        _must_refuse(tally, "a copy that does not continue group 0", branch, late)
        ahead, late = _grown(rng, old.clone(), early.copy())
        ahead.put(NAME, old.content(NAME))
        put_group(ahead, {})
        late.head = late.head if has_head else None
        _must_refuse(tally, "a copy that a shard is ahead of", ahead.clone(), late.copy())
        if has_head:
            behind = replace(late, follows=NOTHING_YET)
            _must_refuse(tally, "a copy short of the head", ahead, behind)
    return tally


def _grown(
    rng: Random, disk: MemoryDisk | None = None, known: Known | None = None
) -> tuple[MemoryDisk, Known]:
    """Start, change metadata, and come to rest."""
    world = CopyWorld(disk or MemoryDisk(), known or Known())
    world.open()
    world.serial = rng.randrange(10**6)
    world.change(4, rng)
    world.change(2, rng)
    world.group.idle()
    world.write_heads()
    return world.disk.kill(), world.known


def _must_refuse(tally: Tally, what: str, disk: MemoryDisk, known: Known) -> None:
    tally.cases += 1
    before = contents(disk)
    try:
        CopyWorld(disk, known).open()
    except Corrupt as error:
        if contents(disk) != before:
            tally.failures.append(f"{what}: refused, and changed something: {error}")
    except Broken as error:
        tally.failures.append(f"{what}: {error}")
    else:
        tally.failures.append(f"{what}: it was taken")


def share(first: int, count: int, mutant: str) -> Tally:
    """Live `count` lives from the seed `first` on; with a bug planted, until one fails."""
    tally = Tally()
    with planted(mutant, MUTANTS):
        for seed in range(first, first + count):
            try:
                _CopyLife(Random(seed), tally).run()
            except (Broken, HeadraceError, AssertionError) as error:
                tally.failures.append(f"seed {seed}: {error!r}")
            tally.merge(doubts(seed))
            if mutant and tally.failures:
                return tally
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how these lives notice a planted bug, or nothing if they do not."""
    return next(iter(share(seed, SEEDS_SHORT, mutant).failures), "")


def main(arguments: list[str] | None = None) -> int:
    """Run lives from the command line."""
    parser = frame("headrace_lab.lives.copy_life", "lives of group 0 with its copy", "full")
    asked = parser.parse_args(arguments)
    if asked.mutants:
        return hunt("copy", catch, asked, MUTANTS)
    count = 1_000 if asked.full else SEEDS_SHORT
    jobs = [(asked.seed + part * count // 8, count // 8, "") for part in range(8)]
    code = run_all("lives with a copy of metadata", Tally(), share, jobs, asked)
    every = 1 if asked.full else 8
    sweeps = [(asked.seed + part, every) for part in range(8 if asked.full else 1)]
    return code or run_all("sweep of a heal", Tally(), sweep, sweeps, asked)


if __name__ == "__main__":
    sys.exit(main())
