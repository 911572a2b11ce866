"""Kill a shard's writer with SIGKILL at random moments, and hold the shard to its ledger.

`python -m headrace_lab.shard.kills.kill [--kills 200] [--seed N] [--json]`. The moments are
drawn from a seed: in recovery, while children seal, or anywhere; where they land is up to the
machine and is counted. After each kill a process of its own recovers and compares everything;
the next life begins with repeats of what was in flight. Planted bugs run first and have to be
caught.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from headrace_lab.shard.kills.plants import KILL_PLANTS
from headrace_lab.shard.kills.process import Paths, ShardProcess, ShardTestimony
from headrace_lab.shard.kills.trial import Tally, Trial

LOG_ROUNDS: Final = 30  # then a new log begins, so that making one is killed as well
PLANTED_KILL_COUNT: Final = 30  # most planted bugs show within the first few

HELD, FAILED = 0, 1  # how the command ends


@dataclass(slots=True)
class Kills:
    """One run: write, kill, verify, again and again."""

    trial: Trial
    tell: Callable[[Tally], None] = lambda tally: None

    def run(self, kills: int) -> Tally:
        """Kill until enough landed, or something is wrong."""
        tally = self.trial.tally
        for number in range(2 * kills):  # a few come too late; more than that is no run
            if tally.count >= kills or tally.problems:
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
                pass

    @contextmanager
    def _killed(
        self, process: ShardProcess, landed: Callable[[ShardTestimony], bool]
    ) -> Iterator[None]:
        """Kill a process, and watch its orphans meanwhile: whoever comes next does not wait."""
        tally = self.trial.tally
        if process.kill() and landed(process.testimony):
            tally.landed[process.testimony.phase] += 1
        else:
            tally.missed_count += 1
        tally.leftover_count += self.trial.has_leftover()
        with ThreadPoolExecutor(1) as watch:
            orphans = watch.submit(process.await_orphans)
            yield
        tally.orphan_seconds = max(tally.orphan_seconds, orphans.result())


@dataclass(frozen=True, slots=True)
class Outcome:
    """One whole command: the planted bugs, then the kills that count."""

    seed: int
    planted: dict[str, Tally]
    tally: Tally
    kills: int
    seconds: float

    @property
    def missed(self) -> list[str]:
        """The planted bugs that nobody saw."""
        return [name for name, tally in self.planted.items() if not tally.problems]

    @property
    def holds(self) -> bool:
        return not self.missed and not self.tally.problems and self.tally.count >= self.kills

    def as_json(self) -> dict[str, object]:
        return {
            "shard_kill": "held" if self.holds else "failed",
            "seed": self.seed,
            "kills": self.tally.count,
            **self.tally.as_json(),
            "planted": planted_as_json(self.planted),
            "seconds": round(self.seconds, 1),
        }


def planted_as_json(planted: dict[str, Tally]) -> dict[str, object]:
    return {
        name: {"caught": bool(tally.problems), "at": tally.count, "seen": tally.problems[:1]}
        for name, tally in planted.items()
    }


def kill_run(
    root: Path,
    kills: int,
    seed: int,
    plant: str = "",
    tell: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Kill in a directory of its own."""
    paths = Paths(str(root / "data"), str(root / "ledger"))
    trial = Trial(paths, Random(f"{seed} shard kills {plant}"), plant)
    return Kills(trial, tell).run(kills)


def kill_all(kills: int, seed: int, tell: Callable[[Tally], None]) -> Outcome:
    """Run the planted bugs and then the kills."""
    started = time.monotonic()
    planted: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-kill-") as made:
        for number, name in enumerate(KILL_PLANTS):
            root = Path(made, f"planted-{number}")
            root.mkdir()
            planted[name] = kill_run(root, PLANTED_KILL_COUNT, seed, name)
        tally = kill_run(Path(made), kills, seed, tell=tell)
    return Outcome(seed, planted, tally, kills, time.monotonic() - started)


def show(console: Console, tally: Tally, planted: dict[str, Tally]) -> None:
    """Print a run for people."""
    rows = [
        ("landed", f"{tally.count}, {tally.missed_count} came too late"),
        *(("", f"{count:4}  in {phase}") for phase, count in tally.landed.most_common()),
        ("", f"{tally.leftover_count} of them left half-written segments"),
        ("written", f"{tally.acknowledged_count:,} rows acknowledged, {tally.log_count} logs"),
        ("", f"{tally.checkpoint_count} checkpoints, {tally.roll_count} journal files begun"),
        ("recovered", f"{tally.checked_count} times in peace, each compared with the ledger"),
        ("", f"{tally.compared_count:,} rows read back, {tally.torn_tail_count} torn tails"),
        ("", f"{tally.unheard_count} batches there that nobody had acknowledged yet"),
        ("", f"{tally.lost_count} rows lost, {tally.invented_count} invented"),
        ("children", f"outlived their parent by {tally.orphan_seconds:.2f} s at most"),
        *(
            ("planted bug", f"{name}: {_caught(one)}{' — '.join(['', *one.problems[:1]])}")
            for name, one in planted.items()
        ),
        *(("PROBLEM", problem) for problem in tally.problems),
    ]
    for label, text in rows:
        console.print(f"{label:<12} {text}")


def _caught(tally: Tally) -> str:
    return f"caught at {tally.count}" if tally.problems else "MISSED"


def main() -> None:
    """Run the command. Exits with 0 if all held, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m headrace_lab.shard.kills.kill")
    parser.add_argument("--kills", type=int, default=200, help="kills that must land")
    parser.add_argument("--seed", type=int, default=1, help="of the rows and of the moments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    with Console(stderr=True).status("killing") as status:
        outcome = kill_all(
            arguments.kills,
            arguments.seed,
            lambda tally: status.update(f"{tally.count} of {arguments.kills} kills"),
        )
    if arguments.json:
        console.print(json.dumps(outcome.as_json(), indent=2))
    else:
        show(console, outcome.tally, outcome.planted)
        verdict = "HELD: no acknowledged row lost, none invented" if outcome.holds else "FAILED"
        console.print(f"{verdict} (seed {outcome.seed}, {outcome.seconds:.0f} s)")
    sys.exit(HELD if outcome.holds else FAILED)


if __name__ == "__main__":
    main()
