"""Kills a machine's processes with SIGKILL at random moments, and compares everything.

The moments are drawn from a seed; where they land depends on the machine and is counted. After
each kill a separate process recovers and compares everything.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol

from rich.console import Console

from headrace_lab.harness.process import LabProcess, T
from headrace_lab.harness.tally import Tally
from headrace_lab.harness.trial import FAILED, Outcome, Tell, Trial

LOG_ROUNDS: Final = 30  # then a new log begins, so that making one is killed as well


@dataclass(slots=True)
class Kills(Generic[T]):
    """One run: write, kill, verify, again and again."""

    trial: Trial[T]
    tell: Tell = lambda tally: None

    def run(self, kills: int) -> Tally:
        """Kill until enough landed, or something is wrong."""
        tally = self.trial.tally
        for number in range(2 * kills):  # a few come too late; more than that is no run
            if tally.count >= kills or tally.failures:
                break
            if number % LOG_ROUNDS == 0:
                self.trial.begin_log()
            self._round()
            self.tell(tally)
        return tally

    def _round(self) -> None:
        """Kill a writer, then perhaps the recovery from that, then look at everything."""
        trial = self.trial
        with trial.process("write") as writer:
            writer.await_recovery()
            trial.await_moment(writer)
            with self._killed(writer, landed=lambda said: True):
                trial.judge_end(writer.testimony)
                for _ in range(trial.chance.randint(0, 1)):
                    self._kill_recovery()
                trial.verify()

    def _kill_recovery(self) -> None:
        with self.trial.process("verify") as verifier:
            verifier.await_recovery()
            self.trial.await_recovery_moment(verifier)
            # In its audit it only reads: what counts is that it had not recovered yet.
            with self._killed(verifier, landed=lambda said: said.recovered is None):
                self.trial.judge_recovery(verifier.testimony)

    @contextmanager
    def _killed(self, process: LabProcess[T], landed: Callable[[T], bool]) -> Iterator[None]:
        """Kill a process, and watch its orphans meanwhile: whoever comes next does not wait."""
        trial, tally = self.trial, self.trial.tally
        if process.kill() and landed(process.testimony):
            tally.landed[trial.phase(process.testimony)] += 1
        else:
            tally.counts["came too late"] += 1
        tally.counts["left half-written segments"] += trial.has_leftover()
        with ThreadPoolExecutor(1) as watch:
            orphans = watch.submit(process.await_orphans)
            yield
        trial.note_orphans(orphans.result())


class KillRun(Protocol):
    """Kills in a directory, with a seed and perhaps a planted bug."""

    def __call__(self, root: Path, kills: int, seed: int, plant: str, tell: Tell) -> Tally: ...


def kill_all(
    name: str, run: KillRun, plants: Sequence[str], kills: int, seed: int, tell: Tell
) -> Outcome:
    """Run the planted bugs and then the kills, each in a directory of its own."""
    started = time.monotonic()
    planted: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-kill-") as made:
        for number, plant in enumerate(plants):
            root = Path(made, f"planted-{number}")
            root.mkdir()
            planted[plant] = run(root, kills, seed, plant, lambda tally: None)
        tally = run(Path(made), kills, seed, "", tell)
    is_whole = tally.count >= kills
    return Outcome(name, seed, planted, tally, is_whole, time.monotonic() - started)


def kill_command(
    name: str, program: str, run: KillRun, plants: Sequence[str], **more: int
) -> int:
    """Run a command that kills; `more` are options for `run`. Return 0 if all held."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--kills", type=int, default=200, help="kills that must land")
    parser.add_argument("--seed", type=int, default=1, help="of the rows and of the moments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for option, default in more.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    asked = parser.parse_args()
    told = {option: getattr(asked, option) for option in more}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # processes must not outlive us
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    with Console(stderr=True).status("killing") as status:

        def tell(tally: Tally) -> None:
            status.update(f"{tally.count} of {asked.kills} kills")

        outcome = kill_all(name, partial(run, **told), plants, asked.kills, asked.seed, tell)
    return outcome.tell(console, in_json=asked.json)
