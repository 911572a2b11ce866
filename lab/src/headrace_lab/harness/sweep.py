"""The crash sweep of any machine: die at every storage effect of a life, in every way, recover.

One script is played again and again. Each time it dies at another effect, before, during or
after its write; then the power cut keeps another subset of the unsynced changes, or only the
process dies. Then: recover (dying once more during recovery), compare with the history, live
on, die, recover, compare again. Failing calls (EIO, ENOSPC, a sync that loses its data) are
swept in the same way. The target is a `Sweep` of its machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Effect, Fail, Fault, LoseSync
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import BROKEN, Broken, History
from headrace_lab.harness.mutants import Mutant, planted
from headrace_lab.harness.strikes import Strike, StrikeHook, any_death, deaths, strikes
from headrace_lab.harness.tally import Tally


class Actor(Protocol):
    """Drives one machine on one disk and tells a history what it saw."""

    disk: MemoryDisk
    history: Any  # of the machine
    options: Any

    def open(self) -> object: ...


A = TypeVar("A", bound=Actor)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a sweep is done."""

    seeds: int  # one after the other
    parts: int  # processes share a seed
    every: int  # strike of so many
    cuts: int  # power cuts at one crash point, at most
    states: int  # crashed states whose recovery is swept effect by effect


class Sweep(ABC, Generic[A]):
    """One machine, its script, and what to compare. It has no state: processes are sent it."""

    program: ClassVar[str]
    title: ClassVar[str]
    what: ClassVar[str]
    mutants: ClassVar[Sequence[Mutant]]
    short: ClassVar[Extent]
    full: ClassVar[Extent]
    rooms: ClassVar[tuple[str, ...]] = ()  # whose names a sync may lose, too

    @abstractmethod
    def actor(self, disk: MemoryDisk, *known: Any) -> A:  # noqa: ANN401
        """Return an actor; `known` are the history and the options of an earlier one."""

    @abstractmethod
    def play(self, actor: A) -> None:
        """Live a whole life."""

    @abstractmethod
    def check(self, actor: A) -> RecoveryReport:
        """Open, compare with the history, and return what the recovery reported."""

    @abstractmethod
    def live_on(self, actor: A, rng: Random) -> None:
        """Work a little after a recovery, as clients would."""

    @abstractmethod
    def settle(self, actor: A) -> None:
        """Work until nothing is left of what the deaths left behind."""

    def effects(self) -> list[Effect]:
        """Return every effect of a life without faults."""
        disk = MemoryDisk()
        seen: list[Effect] = []
        disk.hook = seen.append
        self.play(self.actor(disk))
        return seen

    def strikes(self, effects: list[Effect], rng: Random) -> Iterator[Strike]:
        """Yield every fault that is put on every effect."""
        yield from strikes(effects, rng)
        for effect in effects:
            if effect.kind == "sync-dir" and effect.path in self.rooms:
                yield Strike(effect.number, LoseSync(), "sync that loses names")

    def sweep(
        self,
        seed: int,
        *,
        share: tuple[int, int] = (0, 1),
        extent: Extent | None = None,
        stop_at_first: bool = False,
    ) -> Tally:
        """Run all strikes, or each so many-th, of this share (index, of) of the work."""
        extent, tally, rng = extent or self.short, Tally(), Random(seed)
        wanted = list(self.strikes(self.effects(), rng))
        rng.shuffle(wanted)  # each share gets some of every kind, and a planted bug falls early
        for strike in wanted[:: extent.every][share[0] :: share[1]]:
            chance = Random(seed * 1_000_003 + strike.number)
            self._strike(strike, chance, extent.cuts, tally)
            if isinstance(strike.fault, Fail):
                soon = strike.number + chance.randrange(2, 12)
                self._strike(replace(strike, crash_at=soon), chance, extent.cuts, tally)
            if stop_at_first and tally.failures:
                break
        return tally

    def sweep_recovery(
        self,
        seed: int,
        *,
        share: tuple[int, int] = (0, 1),
        extent: Extent | None = None,
        stop_at_first: bool = False,
    ) -> Tally:
        """Strike at every effect of the recovery of some crashed states, not at one of them."""
        extent, tally, rng = extent or self.short, Tally(), Random(seed)
        wanted = [one for one in strikes(self.effects(), rng) if "crash" in one.name]
        # In the middle of each of as many parts of the life.
        step = max(1, len(wanted) // extent.states)
        for strike in wanted[step // 2 :: step][share[0] :: share[1]]:
            disk, history = self._crashed_state(strike, rng)
            trial = disk.clone()
            seen: list[Effect] = []
            trial.hook = seen.append
            self.actor(trial).open()
            for inner in self.strikes(seen, rng):
                self._strike_recovery(disk.clone(), history, inner, rng, extent.cuts, tally)
                if stop_at_first and tally.failures:
                    return tally
        return tally

    def _crashed_state(self, strike: Strike, rng: Random) -> tuple[MemoryDisk, History]:
        disk = MemoryDisk()
        disk.hook = StrikeHook(strike)
        actor = self.actor(disk)
        with suppress(Crashed):
            self.play(actor)
        return any_death(disk, rng), actor.history

    def _strike_recovery(
        self,
        disk: MemoryDisk,
        history: History,
        strike: Strike,
        rng: Random,
        cuts: int,
        tally: Tally,
    ) -> None:
        hook = StrikeHook(strike)
        disk.hook = hook
        try:
            with suppress(Crashed, HeadraceError):
                self.actor(disk).open()
        except BROKEN as error:
            tally.failures.append(_failure("in recovery", strike, "at once", error))
            return
        if not hook.landed:
            return
        tally.landed[f"in recovery: {strike.name}"] += 1
        for way, after in deaths(disk, rng, cuts):
            tally.cases += 1
            try:
                self._check(_renewed(self.actor(after, history.copy()), rng), tally)
            except BROKEN as error:
                tally.failures.append(_failure("in recovery", strike, way, error))
                return

    def _strike(self, strike: Strike, rng: Random, cuts: int, tally: Tally) -> None:
        """Play until the fault lands, then see what every kind of death leaves behind."""
        hook = StrikeHook(strike)
        disk = MemoryDisk()
        disk.hook = hook
        actor = self.actor(disk)
        try:
            self.play(actor)
            ended = "went on"
        except Crashed:
            ended = "crashed"
        except HeadraceError as error:
            ended = type(error).__name__
        except BROKEN as error:
            tally.failures.append(_failure("in life", strike, "at once", error))
            return
        if not hook.landed:
            return
        tally.landed[strike.name] += 1
        tally.found[f"the life {ended}"] += 1
        for way, after in deaths(disk, rng, cuts):
            tally.cases += 1
            try:
                self._aftermath(after, actor.history.copy(), rng, tally)
            except BROKEN as error:
                tally.failures.append(_failure("in life", strike, way, error))
                return

    def _aftermath(self, disk: MemoryDisk, history: History, rng: Random, tally: Tally) -> None:
        """Recover, dying once inside; compare; live on, die, recover and compare again."""
        disk = self._die_in_recovery(disk, rng, tally)
        actor = _renewed(self.actor(disk, history), rng)
        self._check(actor, tally)
        self.live_on(actor, rng)
        last = any_death(disk, rng)
        again = self.actor(last, history, actor.options)
        self._check(again, tally)
        self.settle(again)
        self._check(self.actor(any_death(last, rng), history, actor.options), tally)

    def _die_in_recovery(self, disk: MemoryDisk, rng: Random, tally: Tally) -> MemoryDisk:
        """Crash at a random effect of the recovery: cut the power or only kill the process."""
        trial = disk.clone()
        self.actor(trial).open()
        if trial.effect_count == 0:
            return disk
        fault: Fault = rng.choice((Crash(), CrashAfter()))
        disk.hook = StrikeHook(
            Strike(rng.randrange(1, trial.effect_count + 1), fault, "recovery")
        )
        try:
            self.actor(disk).open()
        except Crashed:
            tally.landed["crash in recovery"] += 1
        disk.hook = None
        return any_death(disk, rng)

    def _check(self, actor: A, tally: Tally) -> None:
        """Open and compare. A crash alone leaves no damage, so none may be reported."""
        report = self.check(actor)
        if report.faulty or report.fell_back or report.quarantined:
            raise Broken(f"damage reported where there was only a crash: {report.lines()}")
        aside = [path for path in actor.disk.files() if path.startswith("quarantine/")]
        if aside:
            raise Broken(f"in quarantine after a crash: {aside}")
        tally.found["cut a torn tail"] += report.cut is not None
        tally.found["wrote frames again"] += report.rewritten > 0
        tally.found["rebuilt the superblock"] += report.superblock_rebuilt
        tally.found["made the group anew"] += report.is_new
        tally.found["replayed some ops"] += report.replayed > 0

    def job(self, seed: int, part: tuple[int, int], extent: Extent, mutant: str) -> Tally:
        """Run one part of both sweeps, in a process of its own."""
        stop = bool(mutant)
        with planted(mutant, self.mutants):
            tally = self.sweep(seed, share=part, extent=extent, stop_at_first=stop)
            if not (stop and tally.failures):
                tally.merge(
                    self.sweep_recovery(seed, share=part, extent=extent, stop_at_first=stop)
                )
        return tally

    def catch(self, mutant: str, seed: int) -> str:
        """Return how the sweep notices a planted bug, or nothing if it does not."""
        try:
            tally = self.job(seed, (0, 1), self.short, mutant)
        except BROKEN as error:
            return f"in a life without faults: {error!r}"
        return tally.failures[0] if tally.failures else ""

    def main(self, arguments: list[str] | None = None) -> int:
        """Run the sweeps from the command line."""
        asked = frame(self.program, self.what, "full").parse_args(arguments)
        if asked.mutants:
            return hunt("sweep", self.catch, asked, self.mutants)
        extent = self.full if asked.full else self.short
        jobs = [
            (seed, (part, extent.parts), extent, "")
            for seed in range(asked.seed, asked.seed + extent.seeds)
            for part in range(extent.parts)
        ]
        return run_all(self.title, Tally(), self.job, jobs, asked)


def _renewed(actor: A, rng: Random) -> A:
    """Give an actor new file ids: a process draws them at random."""
    for _ in range(rng.randrange(50, 100)):
        actor.options.new_id()
    return actor


def _failure(where: str, strike: Strike, way: str, error: BaseException) -> str:
    return (
        f"{where}, {strike.name} at effect {strike.number}, {way}: "
        f"{type(error).__name__}: {error}"
    )
