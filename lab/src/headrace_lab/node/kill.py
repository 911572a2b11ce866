"""Kill a node with SIGKILL at random moments under producers, and hold it to their ledgers.

`python -m headrace_lab.node.kill [--kills 200] [--seed N] [--producers 8] [--json]`. A real
`headrace serve` is killed at its start, in its recovery, between a topic and its first row, at
checkpoints, under appends; now and then it is stopped with SIGTERM instead. Its producers,
transactions and consumer groups live in a process of their own and reconnect by themselves.
Every so many kills all rows are read and compared with what was told to them. Planted bugs run
first and have to be caught.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from headrace_lab.node.plants import (
    CUT_TOO_MUCH,
    PLANTS,
    PUBLISHERS_FORGOTTEN,
)
from headrace_lab.node.tally import Tally
from headrace_lab.node.trial import AIMS, AT_REST, NodeTrial
from headrace_lab.node.workload import NodeWorkload

LOG_KILLS: Final = 40  # then a new log begins, so that making one is killed as well
AUDIT_KILLS: Final = 20
STOP_CHANCE: Final = 0.12  # of a life that serves to be stopped with SIGTERM
REST_SECONDS: Final = 30.0  # that producers take to rest, beyond their patience
PLANTED_KILLS: Final = 24  # most planted bugs show within the first few
PLANTED_AUDIT_KILLS: Final = 2
PLANTED_AIMS: Final = {
    PUBLISHERS_FORGOTTEN: {"publication": 1},
    CUT_TOO_MUCH: {AT_REST: 1},
}
PLANTED_TRANSACTORS: Final = 6  # so that a kill often finds one that publishes
PLANTED_PATIENCE: Final = 6.0  # seconds: with a bug some batches are never taken

# A node that does not serve yet knows no SIGTERM, and of two ends one is enough.
_ALWAYS_KILLED: Final = ("start", "recovery", AT_REST, "stop")

HELD, FAILED = 0, 1  # how the command ends

Tell = Callable[[Tally], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does."""

    kills: int
    seed: int
    producers: int = 8
    transactors: int = 2
    plant: str = ""
    audit_kills: int = AUDIT_KILLS
    patience: float = 120.0  # seconds, of most producers
    aims: Mapping[str, int] = field(default_factory=lambda: AIMS)


def kill_run(root: Path, plan: Plan, tell: Tell = lambda tally: None) -> Tally:
    """Kill until enough landed, or something is wrong."""
    tally = Tally()
    chance = Random(f"{plan.seed} node kills {plan.plant}")
    while tally.count < plan.kills and not tally.problems:
        workload = NodeWorkload(chance.getrandbits(32), plan.producers, plan.transactors)
        log = root / f"log-{tally.log_count}"
        with NodeTrial(
            log, chance, workload, tally, plan.plant, plan.patience, plan.aims
        ) as trial:
            wanted = min(plan.kills, tally.count + LOG_KILLS)
            while tally.count < wanted and not tally.problems:
                _kill_some(trial, min(wanted, tally.count + plan.audit_kills), tell)
                _look(trial, plan.patience + REST_SECONDS)
                tell(tally)
    return tally


def _kill_some(trial: NodeTrial, wanted: int, tell: Tell) -> None:
    """Kill until it is time to look: after so many, or because the producers rest anyway."""
    tally = trial.tally
    trial.resume()
    aim = ""
    while aim != AT_REST and tally.count < wanted and not tally.problems:
        with trial.node() as node:
            aim = trial.await_moment(node)
            if aim not in _ALWAYS_KILLED and trial.chance.random() < STOP_CHANCE:
                trial.stop(node)
            else:
                trial.kill(node, aim)
        tell(tally)


def _look(trial: NodeTrial, rest_seconds: float) -> None:
    """Audit in a life that is left in peace, and ends with a clean stop."""
    with trial.node() as node:
        trial.await_serving(node)
        trial.audit(rest_seconds)
        trial.stop(node)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One whole command: the planted bugs, then the kills that count."""

    plan: Plan
    planted: dict[str, Tally]
    tally: Tally
    seconds: float

    @property
    def missed(self) -> list[str]:
        """The planted bugs that nobody saw."""
        return [name for name, tally in self.planted.items() if not tally.problems]

    @property
    def holds(self) -> bool:
        is_whole = self.tally.count >= self.plan.kills
        return is_whole and not self.missed and not self.tally.problems

    def as_json(self) -> dict[str, object]:
        return {
            "node_kill": "held" if self.holds else "failed",
            "seed": self.plan.seed,
            "producers": self.plan.producers,
            "kills": self.tally.count,
            **self.tally.as_json(),
            "planted": {
                name: {"caught": bool(one.problems), "at": one.count, "seen": one.problems[:1]}
                for name, one in self.planted.items()
            },
            "seconds": round(self.seconds, 1),
        }


def planted_run(root: Path, name: str, seed: int, kills: int = PLANTED_KILLS) -> Tally:
    """Kill with a planted bug, and look more often."""
    plan = Plan(
        kills,
        seed,
        transactors=PLANTED_TRANSACTORS,
        plant=name,
        audit_kills=PLANTED_AUDIT_KILLS,
        patience=PLANTED_PATIENCE,
        aims=PLANTED_AIMS.get(name, {"acknowledgement": 1}),
    )
    return kill_run(root, plan)


def kill_all(plan: Plan, tell: Tell) -> Outcome:
    """Run the planted bugs and then the kills."""
    started = time.monotonic()
    planted: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-node-kill-") as made:
        for number, name in enumerate(PLANTS):
            planted[name] = planted_run(Path(made, f"planted-{number}"), name, plan.seed)
        tally = kill_run(Path(made), plan, tell)
    return Outcome(plan, planted, tally, time.monotonic() - started)


def show(console: Console, outcome: Outcome) -> None:
    """Print a run for people."""
    tally = outcome.tally
    told = ", ".join(f"{count} {name}" for name, count in tally.told.most_common())
    rows = [
        ("landed", f"{tally.count} kills, and {tally.stopped_count} stops with SIGTERM"),
        *(("", f"{count:4}  in {phase}") for phase, count in tally.landed.most_common()),
        ("", f"{tally.open_rows:,} rows were in flight at them"),
        ("written", f"{tally.acknowledged_rows:,} rows acknowledged, {tally.log_count} logs"),
        ("", f"{tally.acknowledged_appends:,} appends of {tally.tried_batches:,} batches"),
        ("", f"{tally.transaction_count:,} transactions, {tally.commit_count:,} cursors"),
        ("", f"{tally.topic_count} topics made just before a kill"),
        ("clients", f"reconnected {tally.reconnect_count:,} times; were told: {told}"),
        *(("recovered", f"{n:5}  {what}") for what, n in tally.recovered.most_common()),
        ("audited", f"{tally.audit_count} times, {tally.compared_rows:,} rows read back"),
        ("", f"{tally.repeated_count} appends taken by one life and answered by a later one"),
        ("", f"{tally.unheard_count} batches there that were never acknowledged"),
        (
            "",
            f"{tally.wrong['lost']} lost, {tally.wrong['invented']} invented, "
            f"{tally.wrong['twice']} twice",
        ),
        ("children", f"outlived their parent by {tally.orphan_seconds:.2f} s at most"),
        *(("planted bug", _caught(name, one)) for name, one in outcome.planted.items()),
        *(("PROBLEM", problem) for problem in tally.problems),
    ]
    for label, text in rows:
        console.print(f"{label:<12} {text}")


def _caught(name: str, tally: Tally) -> str:
    if not tally.problems:
        return f"{name}: MISSED"
    return f"{name}: caught at {tally.count} — {tally.problems[0]}"


def main() -> None:
    """Run the command. Exits with 0 if all held, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m headrace_lab.node.kill")
    parser.add_argument("--kills", type=int, default=200, help="kills that must land")
    parser.add_argument("--seed", type=int, default=1, help="of the rows and of the moments")
    parser.add_argument("--producers", type=int, default=8, help="that append at once")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # nodes must not outlive us
    plan = Plan(arguments.kills, arguments.seed, arguments.producers)
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    with Console(stderr=True).status("killing") as status:
        outcome = kill_all(
            plan, lambda tally: status.update(f"{tally.count} of {plan.kills} kills")
        )
    if arguments.json:
        console.print(json.dumps(outcome.as_json(), indent=2))
    else:
        show(console, outcome)
        verdict = "HELD: nothing lost, nothing twice" if outcome.holds else "FAILED"
        console.print(f"{verdict} (seed {plan.seed}, {outcome.seconds:.0f} s)")
    sys.exit(HELD if outcome.holds else FAILED)


if __name__ == "__main__":
    main()
