"""Attacks a real server at its port: it must refuse by name, stay up, and lose nothing.

`python -m headrace_lab.hostile.attack [--strings N] [--frames N] [--bodies N] [--seed N]
[--json]`. Noise, mutated frames, hostile Arrow bodies and a crowd of slow peers, while a
well-behaved client appends and reads known rows. `--mutants` plants bugs in the server: each
must be caught.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from headrace_lab.harness.campaign import hunt, tell
from headrace_lab.hostile.bodies import BOMB_LIMIT
from headrace_lab.hostile.crowd import SHARE_MIN, Crowd, rates
from headrace_lab.hostile.peer import Peer
from headrace_lab.hostile.plants import MUTANTS, STAGE_OF, server_command
from headrace_lab.hostile.rows import (
    GOOD_SCHEMA,
    GOOD_TOPIC,
    ROWS_OF_A_LARGE_APPEND,
    GoodClient,
    Wrong,
    check_accepted,
    check_order,
    make_topic,
)
from headrace_lab.hostile.server import MIB, QUEUE_SIZE, SERVE, Gone, ServerProcess
from headrace_lab.hostile.stages import Attack, AttackCounts, Bodies, Frames, Strings, drive

GROWTH_MAX: Final = 64 * MIB  # of what stays, after the warm-up
# Where batches were inflated, Arrow's allocator may keep what its threads last held.
KEPT_MAX: Final = {"bodies": 2 * BOMB_LIMIT, "crowd": 2 * BOMB_LIMIT}
# Of the highest moment: what may be in flight, and what two threads may inflate.
PEAK_MAX: Final = GROWTH_MAX + QUEUE_SIZE + 2 * BOMB_LIMIT
WARM_UP: Final = 400  # cases of each stage before memory is looked at
BURST: Final = 200  # bombs at once
LARGE: Final = "large"
STAGES: Final = ("strings", "frames", "bodies", "crowd", LARGE)
_BEGINS: Final[dict[str, Callable[[Attack], Strings | Frames | Bodies]]] = {
    "strings": Strings,
    "frames": Frames.begin,
    "bodies": Bodies.begin,
}
# A planted server is not waited for as long: it may never answer.
_HASTY: Final = {"request.timeout": "1s", "request.timeout_max": "1s"}
_HASTY_PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """How much of each stage; a stage that is not named is left out."""

    strings: int = 1_000_000
    frames: int = 100_000
    bodies: int = 20_000
    bombs: bool = True
    crowd: int = 300
    windows: int = 7
    window_seconds: float = 2.0
    share_min: float = SHARE_MIN  # of its rate, that the crowd must leave the good client
    settle_seconds: float = 3.0  # until memory is looked at
    seconds: float = 0.0  # of each stage at most; 0: no limit
    stages: Sequence[str] = STAGES


@dataclass(slots=True)
class Siege:
    """One run against one server."""

    plan: AttackPlan
    attack: Attack
    baseline: int = 0  # memory after the warm-up
    settled: dict[str, int] = field(default_factory=dict)  # memory after each stage
    _stages: dict[str, Strings | Frames | Bodies] = field(default_factory=dict)

    def run(self) -> None:
        """Run all stages, a little of each first, and look at the memory behind each."""
        self._warm_up()
        for name in self.plan.stages:
            if self.attack.is_over():
                return
            if name in self._stages:
                self._drive(name)
            elif name == LARGE:
                self._large()
            else:
                self._crowd()
            self._weigh(name)

    def _warm_up(self) -> None:
        """Send some of everything: what memory is taken then is what is normal."""
        attack, plan = self.attack, self.plan
        for name in plan.stages:
            if name in _BEGINS:
                stage = self._stages[name] = _BEGINS[name](attack)
                drive(attack, stage, min(WARM_UP, self._count(name)))
        if attack.is_over():
            return
        if isinstance(bodies := self._stages.get("bodies"), Bodies) and plan.bombs:
            bodies.burst(BURST // 10)
            bodies.close()  # it would be idle for longer than a server allows
        if "crowd" in plan.stages:
            with Crowd(attack.server.port, attack.good.where, plan.crowd):
                time.sleep(1.0)
        self.baseline = attack.server.settled(plan.settle_seconds)

    def _drive(self, name: str) -> None:
        stage = self._stages[name]
        drive(self.attack, stage, self._count(name) - WARM_UP, self.plan.seconds)
        if isinstance(stage, Bodies) and self.plan.bombs:
            stage.bombs()
            stage.burst(BURST)

    def close(self) -> None:
        """Let go of the connections that are still open."""
        self.attack.good.close()
        if isinstance(bodies := self._stages.get("bodies"), Bodies):
            bodies.close()

    def _count(self, name: str) -> int:
        counts = {"strings": self.plan.strings, "frames": self.plan.frames}
        return counts.get(name, self.plan.bodies)

    def _large(self) -> None:
        """Append large batches beside the crowd: its promises must not take their room."""
        attack = self.attack
        with Crowd(attack.server.port, attack.good.where, self.plan.crowd):
            for _ in range(self.plan.windows):
                try:
                    attack.good.append(1, ROWS_OF_A_LARGE_APPEND)
                except (Wrong, Gone) as error:
                    attack.problem(LARGE, "good client", str(error))
                    return
        attack.look(LARGE)

    def _crowd(self) -> None:
        attack, plan = self.attack, self.plan
        crowd = Crowd(attack.server.port, attack.good.where, plan.crowd)
        try:
            found = rates(attack.good, crowd, plan.windows, plan.window_seconds)
        except Wrong as error:
            attack.problem("crowd", "good client", str(error))
            return
        attack.look("crowd")
        for problem in crowd.problems:
            attack.problem("crowd", "server", problem)
        attack.tally.sent.update({f"crowd: {kind}": n for kind, n in crowd.counts.items()})
        attack.tally.figures["appends a second, alone"] = _rounded(found.alone)
        attack.tally.figures["appends a second, crowded"] = _rounded(found.crowded)
        attack.tally.figures["what the crowd leaves of it"] = f"{found.share:.0%}"
        if found.share < plan.share_min:
            attack.problem("crowd", "rate", f"the crowd leaves {found.share:.0%} of it")

    def _weigh(self, stage: str) -> None:
        server, baseline = self.attack.server, self.baseline
        settled = self.settled[stage] = server.settled(self.plan.settle_seconds)
        if settled - baseline > GROWTH_MAX + KEPT_MAX.get(stage, 0):
            what = f"grew from {baseline // MIB} to {settled // MIB} MiB and stayed there"
            self.attack.problem(stage, "memory", what)
        if server.memory.peak - baseline > PEAK_MAX:
            what = f"went from {baseline // MIB} to {server.memory.peak // MIB} MiB"
            self.attack.problem(stage, "memory", what)


def besiege(
    root: Path,
    plan: AttackPlan,
    seed: int,
    command: Sequence[str] = SERVE,
    *,
    is_hasty: bool = False,
) -> AttackCounts:
    """Attack a server in a directory of its own; stop it, start it again, and compare."""
    hasty = _HASTY if is_hasty else {}
    tally = AttackCounts()
    with ServerProcess(root / "data", command, hasty) as server:
        attack = _begin(server, seed, tally)
        if is_hasty:
            attack.patience, attack.problems_max = _HASTY_PATIENCE, 1
        siege = Siege(plan, attack)
        try:
            siege.run()
        except Gone as error:
            said = "it took too much memory" if server.memory.is_too_much else str(error)
            attack.problem("server", "gone", said)
        finally:
            siege.close()
        _note(siege)
        if tally.problems:
            return tally
        tally.problems += [
            f"stop: {said}" for said in (server.stop(), *server.complaints()) if said
        ]
    _reopen(root, attack)
    return tally


def _begin(server: ServerProcess, seed: int, tally: AttackCounts) -> Attack:
    with Peer(server.port).greet() as peer:
        info = make_topic(peer, GOOD_TOPIC, GOOD_SCHEMA)
    good = GoodClient(server.port, info.partitions[0])
    return Attack(server, good, Random(f"{seed} hostile"), tally)


def _note(siege: Siege) -> None:
    attack, good = siege.attack, siege.attack.good
    attack.tally.figures |= {
        "good appends": good.append_count,
        "good reads compared": good.check_count,
        "slowest good append": f"{good.slowest * 1_000:.0f} ms",
        "memory after the warm-up": f"{siege.baseline // MIB} MiB",
        **{f"memory after the {k}": f"{v // MIB} MiB" for k, v in siege.settled.items()},
        "memory at its highest": f"{attack.server.memory.peak // MIB} MiB",
    }


def _reopen(root: Path, attack: Attack) -> None:
    """Everything that was acknowledged is there after a new start."""
    tally = attack.tally
    tally.problems += check_order(attack.accepted)
    with ServerProcess(root / "data") as server:
        attack.good.move(server.port)
        try:
            attack.good.check(0, attack.good.row_count)
            with Peer(server.port).greet() as peer:
                for taken in attack.accepted:
                    check_accepted(peer, taken)
        except (Wrong, Gone) as error:
            tally.problems.append(f"after a new start: {error}")
        attack.good.close()
        tally.problems += [
            f"stop: {said}" for said in (server.stop(), *server.complaints()) if said
        ]
    rows = attack.good.row_count + sum(one.row_count for one in attack.accepted)
    tally.figures["rows acknowledged, and there after a new start"] = rows


def _rounded(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.0f}" for number in numbers)


def small(stages: Sequence[str]) -> AttackPlan:
    """Return what a planted bug gets: enough to be seen."""
    return AttackPlan(
        strings=4_000,
        frames=2_500,
        bodies=1_500,
        crowd=60,
        windows=1,
        window_seconds=1.0,
        stages=stages,
    )


def catch(name: str, seed: int) -> str:
    """Return how the attack notices a planted bug, or nothing if it does not."""
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as made:
        plan, command = small((STAGE_OF[name],)), server_command(name)
        tally = besiege(Path(made), plan, seed, command, is_hasty=True)
    return tally.problems[0] if tally.problems else ""


def figures_of(tally: AttackCounts) -> dict[str, Any]:
    """Return a run's figures as `frame.tell` shows them."""
    by_stage = {
        stage: sum(n for kind, n in tally.sent.items() if kind.startswith(f"{stage}: "))
        for stage in ("frames", "bodies")
    }
    strings = sum(n for kind, n in tally.sent.items() if kind.endswith("the handshake"))
    return {
        "cases": strings + sum(by_stage.values()),
        **tally.figures,
        "landed": dict(sorted(tally.sent.items())),
        "came back": dict(sorted(tally.answers.items())),
        "accepted, and right": dict(sorted(tally.accepted.items())),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the attack from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace_lab.hostile.attack", description="attack a server at its port"
    )
    parser.add_argument("--strings", type=int, default=1_000_000, help="strings of noise")
    parser.add_argument("--frames", type=int, default=100_000, help="mutated frames")
    parser.add_argument("--bodies", type=int, default=20_000, help="hostile Arrow bodies")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a stage at most")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of the stages")
    parser.add_argument(
        "--mutants", action="store_true", help="plant bugs: each must be caught"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides every random choice")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(started=time.monotonic())
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the server with us
    if asked.mutants:
        return hunt("hostile", catch, asked, MUTANTS)
    plan = AttackPlan(
        strings=asked.strings,
        frames=asked.frames,
        bodies=asked.bodies,
        seconds=asked.seconds,
        stages=asked.stages.split(","),
    )
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as made:
        tally = besiege(Path(made), plan, asked.seed)
    return tell("hostile input", figures_of(tally), tally.problems, asked)


if __name__ == "__main__":
    sys.exit(main())
