"""The crash sweep of a shard: die at every effect of a life with segments and carry files.

`python -m headrace_lab.shard.sweep` does with a shard what `sweep.py` does with a bare group.
Each time: play (see `shard_script.py`) until a fault lands, die in some way, recover (dying
once more inside), compare every row with the history, ask again for what was answered, append,
checkpoint, die, recover and compare again. Two checkpoints later nothing may lie about that no
kept snapshot names.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

from headrace.errors import HeadraceError
from headrace.partition.shard_store import StoreOptions
from headrace_lab.counter.history import Broken
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Effect, Fail, Fault, LoseSync
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.strikes import Hook, Strike, any_death, deaths, strikes
from headrace_lab.harness.tally import Tally
from headrace_lab.shard.history import ShardHistory, check_named, check_tidy
from headrace_lab.shard.mutants import MUTANTS
from headrace_lab.shard.script import ShardActor, options, play

# A case costs some 30 ms, most of it Parquet: the short sweep takes a part of the strikes.
EVERY_SHORT, EVERY_FULL = 8, 1
CUTS_SHORT, CUTS_FULL = 2, 16  # power cuts at one crash point
STATES_SHORT, STATES_FULL = 3, 48  # crashed states whose recovery is swept effect by effect
_BROKEN = (Broken, HeadraceError, AssertionError, OSError, KeyError)


def effects_of_script() -> list[Effect]:
    """Return every effect of a life without faults."""
    disk = MemoryDisk()
    seen: list[Effect] = []
    disk.hook = seen.append
    play(ShardActor(disk))
    return seen


def shard_strikes(effects: list[Effect], rng: Random) -> Iterator[Strike]:
    """Yield every fault; the names of segments and carry files may be lost by a sync, too."""
    yield from strikes(effects, rng)
    for effect in effects:
        if effect.kind == "sync-dir" and effect.path in ("segments", "carry"):
            yield Strike(effect.number, LoseSync(), "sync that loses names")


def sweep(
    seed: int,
    *,
    share: tuple[int, int] = (0, 1),
    every: int = 1,
    cuts: int = CUTS_SHORT,
    stop_at_first: bool = False,
) -> Tally:
    """Run all strikes, or each `every`-th, of this share (index, of) of the work."""
    tally = Tally()
    rng = Random(seed)
    wanted = list(shard_strikes(effects_of_script(), rng))
    rng.shuffle(wanted)  # each share gets some of every kind, and a planted bug falls early
    for strike in wanted[::every][share[0] :: share[1]]:
        chance = Random(seed * 1_000_003 + strike.number)
        _strike(strike, chance, cuts, tally)
        if isinstance(strike.fault, Fail):
            soon = strike.number + chance.randrange(2, 12)
            _strike(replace(strike, crash_at=soon), chance, cuts, tally)
        if stop_at_first and tally.failures:
            break
    return tally


def sweep_recovery(
    seed: int,
    *,
    share: tuple[int, int] = (0, 1),
    states: int = STATES_SHORT,
    cuts: int = CUTS_SHORT,
    stop_at_first: bool = False,
) -> Tally:
    """Strike at every effect of the recovery of some crashed states, not at one by chance."""
    tally = Tally()
    rng = Random(seed)
    wanted = [one for one in strikes(effects_of_script(), rng) if "crash" in one.name]
    # In the middle of each of as many parts of the life.
    step = len(wanted) // states
    for strike in wanted[step // 2 :: step][share[0] :: share[1]]:
        disk, history = _crashed_state(strike, rng)
        trial = disk.clone()
        seen: list[Effect] = []
        trial.hook = seen.append
        ShardActor(trial).open()
        for inner in shard_strikes(seen, rng):
            _strike_recovery(disk.clone(), history, inner, rng, cuts, tally)
            if stop_at_first and tally.failures:
                return tally
    return tally


def _crashed_state(strike: Strike, rng: Random) -> tuple[MemoryDisk, ShardHistory]:
    disk = MemoryDisk()
    disk.hook = Hook(strike)
    actor = ShardActor(disk)
    with suppress(Crashed):
        play(actor)
    return any_death(disk, rng), actor.history


def _strike_recovery(
    disk: MemoryDisk,
    history: ShardHistory,
    strike: Strike,
    rng: Random,
    cuts: int,
    tally: Tally,
) -> None:
    hook = Hook(strike)
    disk.hook = hook
    try:
        with suppress(Crashed, HeadraceError):
            ShardActor(disk).open()
    except _BROKEN as error:
        tally.failures.append(_failure("in recovery", strike, "at once", error))
        return
    if not hook.landed:
        return
    tally.landed[f"in recovery: {strike.name}"] += 1
    for way, after in deaths(disk, rng, cuts):
        tally.cases += 1
        try:
            _check(ShardActor(after, history.copy(), _fresh_options(rng)), tally)
        except _BROKEN as error:
            tally.failures.append(_failure("in recovery", strike, way, error))
            return


def _strike(strike: Strike, rng: Random, cuts: int, tally: Tally) -> None:
    """Play until the fault lands, then see what every kind of death leaves behind."""
    hook = Hook(strike)
    disk = MemoryDisk()
    disk.hook = hook
    actor = ShardActor(disk)
    try:
        play(actor)
        ended = "went on"
    except Crashed:
        ended = "crashed"
    except HeadraceError as error:
        ended = type(error).__name__
    except _BROKEN as error:
        tally.failures.append(_failure("in life", strike, "at once", error))
        return
    if not hook.landed:
        return
    tally.landed[strike.name] += 1
    tally.found[f"the life {ended}"] += 1
    for way, after in deaths(disk, rng, cuts):
        tally.cases += 1
        try:
            _aftermath(after, actor.history.copy(), rng, tally)
        except _BROKEN as error:
            tally.failures.append(_failure("in life", strike, way, error))
            return


def _aftermath(disk: MemoryDisk, history: ShardHistory, rng: Random, tally: Tally) -> None:
    """Recover, dying once inside; compare; live on, die, recover and compare again."""
    disk = _die_in_recovery(disk, rng, tally)
    actor = ShardActor(disk, history, _fresh_options(rng))
    _check(actor, tally)
    actor.repeat()
    actor.go_on(rng.randrange(1, 4))
    if rng.random() < 0.5:
        actor.checkpoint()
        check_named(actor.running().store)
    last = any_death(disk, rng)
    again = ShardActor(last, history, actor.options)
    _check(again, tally)
    again.go_on(2)
    again.checkpoint()
    again.checkpoint()
    check_tidy(again.running().store)
    _check(ShardActor(any_death(last, rng), history, actor.options), tally)


def _die_in_recovery(disk: MemoryDisk, rng: Random, tally: Tally) -> MemoryDisk:
    """Crash at a random effect of the recovery, and cut the power or only kill the process."""
    trial = disk.clone()
    ShardActor(trial).open()
    if trial.effect_count == 0:
        return disk
    fault: Fault = rng.choice((Crash(), CrashAfter()))
    disk.hook = Hook(Strike(rng.randrange(1, trial.effect_count + 1), fault, "recovery"))
    try:
        ShardActor(disk).open()
    except Crashed:
        tally.landed["crash in recovery"] += 1
    disk.hook = None
    return any_death(disk, rng)


def _check(actor: ShardActor, tally: Tally) -> None:
    """Open and compare. A crash alone leaves no damage, so none may be reported."""
    store = actor.open().store
    report = store.report
    if report.faulty or report.fell_back or report.quarantined or store.findings:
        said = [*report.lines(), *(f"{one.path}: {one.what}" for one in store.findings)]
        raise Broken(f"damage reported where there was only a crash: {said}")
    aside = [path for path in actor.disk.files() if path.startswith("quarantine/")]
    if aside:
        raise Broken(f"in quarantine after a crash: {aside}")
    tally.found["cut a torn tail"] += report.cut is not None
    tally.found["wrote frames again"] += report.rewritten > 0
    tally.found["made the shard anew"] += report.is_new
    tally.found["replayed some ops"] += report.replayed > 0
    actor.history.check_store(store)


def _fresh_options(rng: Random) -> StoreOptions:
    """New file ids in each life: a process draws them at random."""
    fresh = options()
    for _ in range(rng.randrange(50, 100)):
        fresh.new_id()
    return fresh


def _failure(where: str, strike: Strike, way: str, error: BaseException) -> str:
    return (
        f"{where}, {strike.name} at effect {strike.number}, {way}: "
        f"{type(error).__name__}: {error}"
    )


def job(seed: int, part: tuple[int, int], full: bool, mutant: str) -> Tally:
    """Run one part of both sweeps, in a process of its own."""
    every, cuts = (EVERY_FULL, CUTS_FULL) if full else (EVERY_SHORT, CUTS_SHORT)
    states = STATES_FULL if full else STATES_SHORT
    stop = bool(mutant)
    with planted(mutant, MUTANTS):
        tally = sweep(seed, share=part, every=every, cuts=cuts, stop_at_first=stop)
        if not (stop and tally.failures):
            tally.merge(
                sweep_recovery(seed, share=part, states=states, cuts=cuts, stop_at_first=stop)
            )
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how the sweep notices a planted bug, or nothing if it does not."""
    try:
        tally = job(seed, (0, 1), False, mutant)
    except _BROKEN as error:
        return f"in a life without faults: {error!r}"
    return tally.failures[0] if tally.failures else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the sweeps from the command line."""
    parser = frame("headrace_lab.shard.sweep", "crash a shard at every effect", "full")
    arguments_read = parser.parse_args(arguments)
    if arguments_read.mutants:
        return hunt("sweep", catch, arguments_read, MUTANTS)
    parts = 64 if arguments_read.full else 4
    jobs = [
        (arguments_read.seed, (part, parts), arguments_read.full, "") for part in range(parts)
    ]
    return run_all("crash sweep of a shard", Tally(), job, jobs, arguments_read)


if __name__ == "__main__":
    sys.exit(main())
