"""Cuts the power of a real file system under a machine's processes, also while they recover.

Each session is a cut under load, then zero to two cuts during the recovery from it, then an
undisturbed recovery that is compared with everything acknowledged. A cut counts only where it
landed. Planted bugs run first and must be caught.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from headrace_lab.disk.loopdisk import LoopDisk, Switch, loop_disk
from headrace_lab.harness.process import LabProcess, T
from headrace_lab.harness.tally import Tally
from headrace_lab.harness.trial import Outcome, Tell, Trial

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
class PowerCuts(Generic[T]):
    """One run on one disk."""

    disk: LoopDisk
    trial: Trial[T]
    tell: Tell = lambda tally: None

    def run(self, cuts: int) -> Tally:
        """Cut until enough landed, or something was lost."""
        tally = self.trial.tally
        for session in range(SESSION_COUNT_FACTOR * cuts):
            if has_landed(self.trial, cuts) or tally.failures:
                break
            if session % LOG_SESSIONS == 0:
                self.trial.begin_log()
            self._session()
            self.tell(tally)
        return tally

    def _session(self) -> None:
        self.trial.tally.counts["sessions"] += 1
        self._cut_writer()
        for _ in range(self.trial.chance.randint(0, 2)):
            self._cut_recovery()
        self.trial.verify()

    def _cut_writer(self) -> None:
        with self.disk.armed() as switch, self.trial.process("write") as writer:
            writer.await_recovery()
            self.trial.await_moment(writer)
            moment = self._moment(writer.testimony)
            self._cut(switch, writer)
        said = writer.testimony
        self.trial.judge_end(said)
        self._after_cut(said, moment, landed=said.failed is not None)

    def _cut_recovery(self) -> None:
        with self.disk.armed() as switch, self.trial.process("verify") as verifier:
            verifier.await_recovery()
            self.trial.await_recovery_moment(verifier)
            moment = self._moment(verifier.testimony)
            self._cut(switch, verifier)
        said = verifier.testimony
        self.trial.judge_recovery(said)
        self._after_cut(said, moment, landed=said.ended_in_recovery)

    def _cut(self, switch: Switch, process: LabProcess[T]) -> None:
        """Cut, and let the process end, and its children: a mount is held by each.

        See `loopdisk` for why what it acknowledges after the cut is void.
        """
        with self.trial.dark(process):
            switch.cut()
            process.wait()
            self.trial.note_orphans(process.await_orphans())

    def _after_cut(self, said: T, moment: tuple[str, str], *, landed: bool) -> None:
        """Count the cut by what it landed in; switch on again."""
        tally = self.trial.tally
        if said.failed is None and not said.is_done and not said.problems:
            tally.failures.append("a process did not say why it ended: see its trace")
        if landed:
            phase, place = moment
            tally.landed[phase] += 1
            tally.more["just before"][place] += 1
        else:
            tally.counts["came too late"] += 1
        self.disk.power_off()
        self.disk.power_on()
        tally.counts["left half-written segments"] += self.trial.has_leftover()

    def _moment(self, said: T) -> tuple[str, str]:
        """Where a cut lands: what the process is at, and the last effect it announced."""
        phase = self.trial.phase(said)
        if said.effect is None:
            return phase, "before any effect"
        kind, name = said.effect
        noun = next((noun for part, noun in _NOUNS if part in name), "group names")
        return phase, f"{kind.removesuffix('-dir')} of {noun}"


def has_landed(trial: Trial[Any], cuts: int) -> bool:
    """Enough cuts, and enough of them where it matters most."""
    tally = trial.tally
    enough = (part * tally.among(word) >= tally.count for word, part in trial.shares.items())
    return tally.count >= cuts and all(enough)


def cut_all(
    on: Callable[[LoopDisk, str, int, str], Trial[Any]],
    plants: Sequence[str],
    cuts: int,
    seed: int,
    tell: Tell,
) -> Outcome:
    """Run the planted bugs and then the cuts. CannotCut if this machine does not allow it.

    `on` makes a trial: on a disk, with a directory on another one, a seed and a planted bug.
    """
    started = time.monotonic()
    with loop_disk() as disk, tempfile.TemporaryDirectory(prefix="headrace-ledger-") as made:
        planted = {
            name: PowerCuts(disk, on(disk, made, seed, name)).run(PLANTED_CUT_COUNT)
            for name in plants
        }
        trial = on(disk, made, seed, "")
        tally = PowerCuts(disk, trial, tell).run(cuts)
    seconds = time.monotonic() - started
    return Outcome("powercut", seed, planted, tally, has_landed(trial, cuts), seconds)
