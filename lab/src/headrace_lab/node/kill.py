"""Kills a node with SIGKILL at random moments under producers, and holds it to their ledgers.

`python -m headrace_lab.node.kill [--kills 200] [--seed N] [--producers 8] [--json]`. A real
`headrace serve` is killed at its start, in its recovery, between a topic and its first row, at
checkpoints, under appends; now and then it is stopped with SIGTERM instead. Its producers,
transactions and consumer groups live in a separate process and reconnect on their own. At
intervals all rows are read and compared with the answers they got. Planted bugs run first and
must be caught.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from headrace_lab.harness.kill import kill_command
from headrace_lab.harness.tally import Tally
from headrace_lab.harness.trial import Tell
from headrace_lab.node.plants import (
    CUT_TOO_MUCH,
    PLANTS,
    PUBLISHERS_FORGOTTEN,
)
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


@dataclass(frozen=True, slots=True)
class KillPlan:
    """What one run does."""

    kills: int
    seed: int
    producers: int = 8
    transactors: int = 2
    plant: str = ""
    audit_kills: int = AUDIT_KILLS
    patience: float = 120.0  # seconds, of most producers
    aims: Mapping[str, int] = field(default_factory=lambda: AIMS)


def kill_run(root: Path, plan: KillPlan, tell: Tell = lambda tally: None) -> Tally:
    """Kill until enough landed, or something is wrong."""
    tally = Tally()
    chance = Random(f"{plan.seed} node kills {plan.plant}")
    while tally.count < plan.kills and not tally.failures:
        workload = NodeWorkload(chance.getrandbits(32), plan.producers, plan.transactors)
        log = root / f"log-{tally.counts['logs']}"
        with NodeTrial(
            log, chance, workload, tally, plan.plant, plan.patience, plan.aims
        ) as trial:
            wanted = min(plan.kills, tally.count + LOG_KILLS)
            while tally.count < wanted and not tally.failures:
                _kill_some(trial, min(wanted, tally.count + plan.audit_kills), tell)
                _look(trial, plan.patience + REST_SECONDS)
                tell(tally)
    return tally


def _kill_some(trial: NodeTrial, wanted: int, tell: Tell) -> None:
    """Kill until it is time to look: after so many, or because the producers rest anyway."""
    tally = trial.tally
    trial.resume()
    aim = ""
    while aim != AT_REST and tally.count < wanted and not tally.failures:
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


def planted_run(root: Path, name: str, seed: int, kills: int = PLANTED_KILLS) -> Tally:
    """Kill with a planted bug, and look more often."""
    plan = KillPlan(
        kills,
        seed,
        transactors=PLANTED_TRANSACTORS,
        plant=name,
        audit_kills=PLANTED_AUDIT_KILLS,
        patience=PLANTED_PATIENCE,
        aims=PLANTED_AIMS.get(name, {"acknowledgement": 1}),
    )
    return kill_run(root, plan)


def _run(
    root: Path, kills: int, seed: int, plant: str, tell: Tell, producers: int = 8
) -> Tally:
    if plant:
        return planted_run(root, plant, seed)
    return kill_run(root, KillPlan(kills, seed, producers), tell)


if __name__ == "__main__":
    sys.exit(kill_command("node_kill", "headrace_lab.node.kill", _run, PLANTS, producers=8))
