"""Random histories of a node's reconcilers: chance decides every step and every fault.

`python -m headrace_lab.reconcile.histories` plays them by the thousand. Topics come, change and
go under few names and ids; proposals are dropped, deletes fail, wakes get lost, metadata lags,
is missing or goes back to an earlier moment, the node dies anywhere. Then the faults stop, and
everything must converge to the metadata.
"""

import sys
from dataclasses import dataclass, field
from random import Random

from headrace.metadata.state import MetadataState
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.node.shard.retry_table import DELAY_MAX_MS
from headrace.partition.reader import Key
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import Broken
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.tally import Tally
from headrace_lab.reconcile.mutants import MUTANTS
from headrace_lab.reconcile.shard import BITS, SimShard
from headrace_lab.reconcile.world import SHARDS, TICK_MS, ReconcileWorld

NAMES = ("orders", "clicks", "audit")
STEP_COUNT = 120
PUT_BACK = 0.1  # at each step in doubt: the chance that it ends
STUBBORN_MAX = 4  # deletes that fail in a row
# Each failure that is left costs at most the longest delay, and some ticks until it is seen.
ROUND_COUNT_MAX = (STUBBORN_MAX + 3) * (DELAY_MAX_MS // TICK_MS + 3)
HISTORY_COUNT_SHORT, HISTORY_COUNT_FULL = 400, 20_000
PART_SIZE = 100
_BROKEN = (Broken, AssertionError, KeyError, ValueError)


@dataclass(slots=True)
class ReconcileHistory:
    """One history, as its seed decides."""

    random: Random
    world: ReconcileWorld = field(default_factory=ReconcileWorld)

    def play(self, step_count: int = STEP_COUNT) -> None:
        """Take all steps, then let the faults stop; wake nobody when a Seal ends late."""
        for _ in range(step_count):
            self.step()
        converge(self.world)
        for shard in self.world.shards.values():
            shard.files.update(shard.ever_closed[-1:])
        converge(self.world)

    def step(self) -> None:
        steps = (
            (self._metadata, 5),
            (self._run, 12),
            (self._land, 12),
            (self._time, 6),
            (self._ask, 6),
            (self._files, 4),
            (self._fault, 3),
            (self._back, 1),
        )
        if self.world.doubt is not None and self.random.random() < PUT_BACK:
            self.random.choice((self.world.put_back, self.world.adopt))()
        acts, weights = zip(*steps, strict=True)
        (act,) = self.random.choices(acts, weights)
        act()

    def _shard(self) -> SimShard:
        return self.world.shards[self.random.choice(SHARDS)]

    def _metadata(self) -> None:
        world, random = self.world, self.random
        for one in list(world.truth.topics_in_order()):
            if one.name not in NAMES:  # adopted: its ids are few
                world.delete(one)
        name, wake = random.choice(NAMES), random.random() < 0.7
        topic = world.topic(name)
        if topic is None:
            world.create(name, random.choice(SHARDS), random.randint(1, 2), wake=wake)
        elif random.random() < 0.4:
            world.delete(topic, wake=wake)
            if random.random() < 0.5:
                world.create(name, random.choice(SHARDS), random.randint(1, 2), wake=wake)
        elif random.random() < 0.5:
            world.grow(topic, wake=wake)
        else:
            for _ in range(random.randint(1, 3)):
                topic = world.topic(name)
                assert topic is not None
                world.evolve(topic, wake=wake)

    def _run(self) -> None:
        self.world.run(self._shard())

    def _land(self) -> None:
        fates = ("done", "dropped", "late")
        (fate,) = self.random.choices(fates, (8, 1, 1))
        self.world.land(self._shard(), fate)

    def _time(self) -> None:
        self.world.pass_time(self.random.choice((10, 300, TICK_MS, 5 * TICK_MS, 70 * TICK_MS)))

    def _ask(self) -> None:
        world, random = self.world, self.random
        namespace = Namespace(random.randrange(1 << sum(BITS)))
        created = Revision(random.choice(world.past).revision + random.choice((0, 0, 1 << 20)))
        target = list(world.truth.target().items())
        if target and random.random() < 0.6:
            namespace, wanted = random.choice(target)
            created = wanted.created
        rows = sorted(world.rows_of(self._shard().number), key=str)
        if rows and random.random() < 0.3:  # as a client asks that was served before
            row = random.choice(rows)
            namespace, created = row.namespace, row.created
        deadline_ms = world.now_ms + random.choice((500, 3 * TICK_MS, 60 * TICK_MS))
        size = random.choice((0, 100, 3_000_000))
        world.request(Key(namespace, created), deadline_ms, self._some_metadata(), size)

    def _some_metadata(self) -> MetadataState:
        """Mostly the truth: what a request is shown may lag, too."""
        if self.random.random() < 0.8:
            return self.world.truth
        return self.random.choice(self.world.past[: self.world.count + 1])

    def _files(self) -> None:
        """Write rows; some of their files will be hard to delete. A Seal may end late."""
        shard, random = self._shard(), self.random
        lives = sorted(shard.lives, key=str)
        if random.random() < 0.15:
            lives = shard.ever_closed
            self.world.landed["file of a closed life"] += bool(lives)
        if lives:
            key = random.choice(lives)
            shard.files.add(key)
            shard.named[key] = random.randint(0, 2)
            if random.random() < 0.4:
                shard.stubborn[key] = random.randint(1, STUBBORN_MAX)

    def _back(self) -> None:
        """Let metadata go back to an earlier moment."""
        back = self.random.choice((1, 1, 2, 3, 100))
        self.world.go_back(max(0, self.world.count - back))

    def _fault(self) -> None:
        world, random = self.world, self.random
        match random.randrange(6):
            case 0 | 1:
                world.crash(kept=random.randrange(4))
            case 2:
                back = random.randint(1, 4)
                world.shown = max(0, world.count - back)
                world.is_normal = random.random() < 0.7
                world.landed["metadata lags"] += 1
            case 3:
                world.shown, world.is_normal = 0, random.random() < 0.7
                world.landed["metadata wiped"] += 1
            case 4:
                world.shown, world.is_normal = None, random.random() < 0.9
            case _:
                shard = self._shard()
                shard.is_primary = not shard.is_primary
                world.landed["primary changed"] += 1


def converge(world: ReconcileWorld, round_count_max: int = ROUND_COUNT_MAX) -> int:
    """Let the faults stop; return the rounds until all is as it should be. No wake helps."""
    world.put_back()
    world.shown, world.is_normal = None, True
    for shard in world.shards.values():
        shard.is_primary = True
    for number in range(round_count_max):
        if number and not world.flaw():
            _rest(world)
            return number
        world.pass_time(TICK_MS)
        for shard in world.shards.values():
            world.run(shard)
            while shard.pending:
                world.land(shard)
    raise Broken(f"after {round_count_max} rounds without faults: {world.flaw()}")


def _rest(world: ReconcileWorld) -> None:
    """Nothing is left: the next passes are skipped, and every life is served."""
    for shard in world.shards.values():
        is_resting = False
        for _ in range(2):
            before = shard.reconciler.counters.skip_count
            world.pass_time(TICK_MS)
            world.run(shard)
            is_resting = shard.reconciler.counters.skip_count > before
        if not is_resting:
            raise Broken(f"shard {shard.number} finds no rest")
        for key in world.lives_of(shard.number):
            if world.request(key, world.now_ms + 1, world.truth) != "served":
                raise Broken(f"{key} is there, and is not served")
    if world.requests:
        raise Broken(f"{world.requests[0].key}: never answered")


def job(seed: int, count: int, mutant: str) -> Tally:
    """Play `count` histories, in a process of its own. A planted bug ends it."""
    tally = Tally()
    with planted(mutant, MUTANTS):
        for number in range(seed, seed + count):
            history = ReconcileHistory(Random(number))
            tally.cases += 1
            try:
                history.play()
            except _BROKEN as error:
                tally.failures.append(f"seed {number}: {type(error).__name__}: {error}")
                if mutant:
                    break
            tally.landed.update(history.world.landed)
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how the histories notice a planted bug, or nothing if they do not."""
    tally = job(seed, HISTORY_COUNT_SHORT, mutant)
    return tally.failures[0] if tally.failures else ""


def main(arguments: list[str] | None = None) -> int:
    """Play histories from the command line."""
    program = "headrace_lab.reconcile.histories"
    parser = frame(program, "play histories of reconcilers", "full")
    options = parser.parse_args(arguments)
    if options.mutants:
        return hunt("histories", catch, options, MUTANTS)
    count = HISTORY_COUNT_FULL if options.full else HISTORY_COUNT_SHORT
    jobs = [(options.seed + first, PART_SIZE, "") for first in range(0, count, PART_SIZE)]
    return run_all("histories of reconcilers", Tally(), job, jobs, options)


if __name__ == "__main__":
    sys.exit(main())
