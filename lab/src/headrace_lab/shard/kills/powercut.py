"""Cut the power of a real file system under a shard's writer and its sealing children.

`python -m headrace_lab.commands.powercut --shard` runs this. Each session is a cut under load,
then none to two cuts in the middle of the recovery from it, then a recovery that is left in
peace and compared with the ledger, which lies on another disk. A cut counts only where it
landed.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from headrace_lab.disk.loopdisk import LoopDisk, Switch, loop_disk
from headrace_lab.shard.kills import kill
from headrace_lab.shard.kills.ledger import size_of, void_since
from headrace_lab.shard.kills.plants import POWER_PLANTS
from headrace_lab.shard.kills.process import Paths, ShardProcess, ShardTestimony
from headrace_lab.shard.kills.trial import Tally, Trial

LOG_SESSIONS: Final = 5  # then a new log begins, so that making one is cut as well
PLANTED_CUT_COUNT: Final = 12  # a planted bug is seen at the first cuts
SESSION_COUNT_FACTOR: Final = 4  # sessions tried for each cut wanted, before giving up

_NOUNS: Final = (
    ("superblock", "superblock"),
    (".snap", "snapshot"),
    (".wal", "journal file"),
    (".carry", "carry file"),
    (".parquet", "segment"),
    (".tmp", "half a segment"),
    ("spare", "spare files"),
    ("journal", "journal names"),
    ("snapshots", "snapshot names"),
    ("segments", "segment names"),
    ("carry", "carry names"),
)


@dataclass(slots=True)
class ShardPowerCuts:
    """One run on one disk."""

    disk: LoopDisk
    trial: Trial
    tell: Callable[[Tally], None] = lambda tally: None
    places: Counter[str] = field(default_factory=Counter)  # by the last effect before the cut
    session_count: int = 0

    def run(self, cuts: int) -> Tally:
        """Cut until enough landed, or something was lost."""
        tally = self.trial.tally
        for session in range(SESSION_COUNT_FACTOR * cuts):
            if has_landed(tally, cuts) or tally.problems:
                break
            if session % LOG_SESSIONS == 0:
                self.trial.begin_log()
            self._session()
            self.tell(tally)
        return tally

    def _session(self) -> None:
        self.session_count += 1
        self._cut_writer()
        for _ in range(self.trial.chance.randint(0, 2)):
            self._cut_recovery()
        self.trial.verify()

    def _cut_writer(self) -> None:
        with self.disk.armed() as switch, self.trial.process("write") as writer:
            writer.await_recovery()
            self.trial.await_moment(writer)
            moment = _moment(writer.testimony)
            self._cut(switch, writer)
        said = writer.testimony
        self.trial.judge_end(said)
        self._after_cut(said, moment, landed=said.failed is not None)

    def _cut_recovery(self) -> None:
        with self.disk.armed() as switch, self.trial.process("verify") as verifier:
            verifier.await_recovery()
            self.trial.await_recovery_moment(verifier)
            moment = _moment(verifier.testimony)
            self._cut(switch, verifier)
        said = verifier.testimony
        self._after_cut(said, moment, landed=_is_in_recovery(said))

    def _cut(self, switch: Switch, process: ShardProcess) -> None:
        """Cut, and let the process end, and its children: a mount is held by each.

        See `loopdisk` for why what it acknowledged after the cut is void.
        """
        size = size_of(self.trial.paths.ledger)
        switch.cut()
        process.wait()
        seconds = process.await_orphans()
        self.trial.tally.orphan_seconds = max(self.trial.tally.orphan_seconds, seconds)
        void_since(self.trial.paths.ledger, size)

    def _after_cut(
        self, said: ShardTestimony, moment: tuple[str, str], *, landed: bool
    ) -> None:
        """Count the cut by what it landed in; switch on again."""
        tally = self.trial.tally
        if said.failed is None and not said.is_done and not said.problems:
            tally.problems.append("a process did not say why it ended: see its trace")
        if landed:
            phase, place = moment
            tally.landed[phase] += 1
            self.places[place] += 1
        else:
            tally.missed_count += 1
        self.disk.power_off()
        self.disk.power_on()
        tally.leftover_count += self.trial.has_leftover()


def has_landed(tally: Tally, cuts: int) -> bool:
    """Enough cuts: a quarter of them in a recovery, an eighth while children sealed."""
    count = tally.count
    places = 4 * tally.among("recovery") >= count and 8 * tally.among("sealing") >= count
    return count >= cuts and places


def _is_in_recovery(said: ShardTestimony) -> bool:
    """A recovery had begun before the cut, and could not end, or not without leaving a seal."""
    if said.recovered is None:
        return said.failed is not None
    return said.recovered.unmended > 0


def _moment(said: ShardTestimony) -> tuple[str, str]:
    """Where a cut lands: what the process is at, and the last effect that it announced."""
    if said.effect is None:
        return said.phase, "before any effect"
    kind, name = said.effect
    noun = next((noun for part, noun in _NOUNS if part in name), "group names")
    return said.phase, f"{kind.removesuffix('-dir')} of {noun}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One whole command: the planted bugs, then the cuts that count."""

    seed: int
    planted: dict[str, Tally]
    run: ShardPowerCuts
    cuts: int
    seconds: float

    @property
    def tally(self) -> Tally:
        return self.run.trial.tally

    @property
    def holds(self) -> bool:
        caught = all(tally.problems for tally in self.planted.values())
        return caught and not self.tally.problems and has_landed(self.tally, self.cuts)

    def as_json(self) -> dict[str, object]:
        return {
            "powercut": "held" if self.holds else "failed",
            "seed": self.seed,
            "cuts": self.tally.count,
            "sessions": self.run.session_count,
            "places": dict(self.run.places.most_common()),
            **self.tally.as_json(),
            "planted": kill.planted_as_json(self.planted),
            "seconds": round(self.seconds, 1),
        }


def cuts_on(disk: LoopDisk, ledgers: str, seed: int, plant: str = "") -> ShardPowerCuts:
    """Prepare a run on `disk`, with its ledger in the directory `ledgers`."""
    paths = Paths(str(disk.mount / "data"), str(Path(ledgers, "ledger")))
    chance = Random(f"{seed} shard cuts {plant}")
    return ShardPowerCuts(disk, Trial(paths, chance, plant, tears_writes=True))


def cut_all(cuts: int, seed: int, tell: Callable[[Tally], None]) -> Outcome:
    """Run the planted bugs and then the cuts. CannotCut if this machine does not allow it."""
    started = time.monotonic()
    with loop_disk() as disk, tempfile.TemporaryDirectory(prefix="headrace-ledger-") as made:
        planted = {
            name: cuts_on(disk, made, seed, name).run(PLANTED_CUT_COUNT)
            for name in POWER_PLANTS
        }
        run = cuts_on(disk, made, seed)
        run.tell = tell
        run.run(cuts)
    return Outcome(seed, planted, run, cuts, time.monotonic() - started)


def show(console: Console, outcome: Outcome) -> None:
    """Print an outcome for people."""
    kill.show(console, outcome.tally, outcome.planted)
    console.print("just before  what a process was about to do when the power went")
    for place, count in outcome.run.places.most_common():
        console.print(f"{'':<12} {count:4}  {place}")
    verdict = "HELD: no acknowledged row lost, none invented" if outcome.holds else "FAILED"
    console.print(f"{verdict} (seed {outcome.seed}, {outcome.seconds:.0f} s)")
