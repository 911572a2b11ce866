"""The crash sweep: die at every storage effect of a life, in every way, and recover.

`python -m headrace_lab.counter.sweep` plays one script (see `script.py`) again and again. Each
time it dies at another effect, before it, in the middle of its write or after it; then the
power cut keeps another subset of what was not synced, or only the process dies. Then: recover
(dying once more inside the recovery), compare with the history, append, die, recover, compare
again. Failing calls (EIO, ENOSPC, a sync that loses its data) are swept in the same way.
"""

import sys
from contextlib import suppress
from dataclasses import replace
from random import Random

from headrace.errors import HeadraceError
from headrace_lab.counter.history import Broken, History
from headrace_lab.counter.script import Actor, options, play
from headrace_lab.counter.solo import Solo
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Effect, Fail, Fault
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.strikes import Hook, Strike, any_death, deaths, strikes
from headrace_lab.harness.tally import Tally

STATES_SHORT, STATES_FULL = 12, 96  # crashed states whose recovery is swept effect by effect


def effects_of_script() -> list[Effect]:
    """Return every effect of a life without faults."""
    disk = MemoryDisk()
    seen: list[Effect] = []
    disk.hook = seen.append
    play(Actor(disk, History(), options()))
    return seen


def sweep(
    seed: int,
    *,
    share: tuple[int, int] = (0, 1),
    every: int = 1,
    stop_at_first: bool = False,
) -> Tally:
    """Run all strikes, or each `every`-th, of this share (index, of) of the work."""
    tally = Tally()
    rng = Random(seed)
    wanted = list(strikes(effects_of_script(), rng))[::every]
    rng.shuffle(wanted)  # each share gets some of every kind, and a planted bug falls early
    mine = wanted[share[0] :: share[1]]
    for strike in mine:
        chance = Random(seed * 1_000_003 + strike.number)
        _strike(strike, chance, tally)
        if isinstance(strike.fault, Fail):
            soon = strike.number + chance.randrange(2, 8)
            _strike(replace(strike, crash_at=soon), chance, tally)
        if stop_at_first and tally.failures:
            break
    return tally


def sweep_recovery(
    seed: int, *, share: tuple[int, int] = (0, 1), states: int = 12, stop_at_first: bool = False
) -> Tally:
    """Strike at every effect of the recovery of some crashed states, not at one by chance."""
    tally = Tally()
    rng = Random(seed)
    wanted = [one for one in strikes(effects_of_script(), rng) if "crash" in one.name]
    chosen = wanted[:: max(1, len(wanted) // states)][share[0] :: share[1]]
    for strike in chosen:
        disk, history = _crashed_state(strike, rng)
        trial = disk.clone()
        seen: list[Effect] = []
        trial.hook = seen.append
        Solo.open(trial.root, options())
        for inner in strikes(seen, rng):
            _strike_recovery(disk.clone(), history, inner, rng, tally)
            if stop_at_first and tally.failures:
                return tally
    return tally


def _crashed_state(strike: Strike, rng: Random) -> tuple[MemoryDisk, History]:
    disk = MemoryDisk()
    disk.hook = Hook(strike)
    actor = Actor(disk, History(), options())
    with suppress(Crashed):
        play(actor)
    return any_death(disk, rng), actor.history


def _strike_recovery(
    disk: MemoryDisk, history: History, strike: Strike, rng: Random, tally: Tally
) -> None:
    hook = Hook(strike)
    disk.hook = hook
    with suppress(Crashed, HeadraceError):
        Solo.open(disk.root, options())
    if not hook.landed:
        return
    tally.landed[f"in recovery: {strike.name}"] += 1
    for way, after in deaths(disk, rng):
        tally.cases += 1
        try:
            _check(Actor(after, history.copy(), options()), tally)
        except (Broken, HeadraceError, AssertionError) as error:
            tally.failures.append(
                f"in recovery, {strike.name} at effect {strike.number}, {way}: "
                f"{type(error).__name__}: {error}"
            )
            return


def _strike(strike: Strike, rng: Random, tally: Tally) -> None:
    """Play until the fault lands, then see what every kind of death leaves behind."""
    hook = Hook(strike)
    disk = MemoryDisk()
    disk.hook = hook
    actor = Actor(disk, History(), options())
    try:
        play(actor)
        ended = "went on"
    except Crashed:
        ended = "crashed"
    except HeadraceError as error:
        ended = type(error).__name__
    except Broken as broken:
        tally.failures.append(f"{strike.name} at effect {strike.number}: {broken}")
        return
    if not hook.landed:
        return
    tally.landed[strike.name] += 1
    tally.found[f"the life {ended}"] += 1
    for way, after in deaths(disk, rng):
        tally.cases += 1
        try:
            _aftermath(after, actor.history.copy(), rng, tally)
        except (Broken, HeadraceError, AssertionError) as error:
            tally.failures.append(
                f"{strike.name} at effect {strike.number}, {way}: "
                f"{type(error).__name__}: {error}"
            )
            return


def _aftermath(disk: MemoryDisk, history: History, rng: Random, tally: Tally) -> None:
    """Recover, dying once inside; compare; live on, die, recover and compare again."""
    disk = _die_in_recovery(disk, rng, tally)
    actor = Actor(disk, history, options())
    # New file ids in each life: a process draws them at random.
    for _ in range(rng.randrange(50, 100)):
        actor.options.new_id()
    _check(actor, tally)
    actor.append(30, rng.randrange(10, 1500))
    actor.append(rng.randrange(10, 300))
    if rng.random() < 0.3:
        actor.checkpoint()
    last = any_death(disk, rng)
    again = Actor(last, history, actor.options)
    _check(again, tally)
    again.append(25)
    _check(Actor(any_death(last, rng), history, actor.options), tally)


def _die_in_recovery(disk: MemoryDisk, rng: Random, tally: Tally) -> MemoryDisk:
    """Crash at a random effect of the recovery, and cut the power or only kill the process."""
    trial = disk.clone()
    Solo.open(trial.root, options())
    if trial.effect_count == 0:
        return disk
    fault: Fault = rng.choice((Crash(), CrashAfter()))
    disk.hook = Hook(Strike(rng.randrange(1, trial.effect_count + 1), fault, "recovery"))
    try:
        Solo.open(disk.root, options())
    except Crashed:
        tally.landed["crash in recovery"] += 1
    disk.hook = None
    return any_death(disk, rng)


def _check(actor: Actor, tally: Tally) -> None:
    """Open and compare. A crash alone leaves no damage, so none may be reported."""
    solo = actor.open()
    report = solo.report
    if report.faulty or report.fell_back or report.quarantined:
        raise Broken(f"damage reported where there was only a crash: {report.lines()}")
    tally.found["cut a torn tail"] += report.cut is not None
    tally.found["wrote frames again"] += report.rewritten > 0
    tally.found["rebuilt the superblock"] += report.superblock_rebuilt
    tally.found["made the group anew"] += report.is_new
    actor.history.check(solo)


def job(seed: int, part: tuple[int, int], states: int, mutant: str) -> Tally:
    """Run one part of both sweeps, in a process of its own."""
    with planted(mutant):
        tally = sweep(seed, share=part, stop_at_first=bool(mutant))
        if not (mutant and tally.failures):
            recovery = sweep_recovery(
                seed, share=part, states=states, stop_at_first=bool(mutant)
            )
            tally.merge(recovery)
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how the sweep notices a planted bug, or nothing if it does not."""
    try:
        tally = job(seed, (0, 1), STATES_SHORT, mutant)
    except (Broken, HeadraceError, AssertionError) as error:
        return repr(error)
    return tally.failures[0] if tally.failures else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the sweeps from the command line."""
    parser = frame("headrace_lab.counter.sweep", "crash at every effect and recover", "full")
    options = parser.parse_args(arguments)
    if options.mutants:
        return hunt("sweep", catch, options)
    seeds = range(options.seed, options.seed + (8 if options.full else 1))
    states = STATES_FULL if options.full else STATES_SHORT
    jobs = [(seed, (part, 8), states, "") for seed in seeds for part in range(8)]
    return run_all("crash sweep", Tally(), job, jobs, options)


if __name__ == "__main__":
    sys.exit(main())
