"""Kills a shard's writer with SIGKILL at random moments, and holds the shard to its ledger.

`python -m headrace_lab.shard.kills.kill [--kills 200] [--seed N] [--json]`. The moments are
drawn from a seed: in recovery, while child processes seal, or anywhere; where they land depends
on the machine and is counted. After each kill a separate process recovers and compares
everything; the next life begins with repeats of what was in flight. Planted bugs run first and
must be caught.
"""

import sys
from pathlib import Path
from random import Random
from typing import Final

from headrace_lab.harness.kill import Kills, kill_command
from headrace_lab.harness.tally import Tally
from headrace_lab.harness.trial import Tell
from headrace_lab.shard.kills.plants import KILL_PLANTS
from headrace_lab.shard.kills.trial import ShardTrial

PLANTED_KILL_COUNT: Final = 30  # most planted bugs show within the first few


def kill_run(
    root: Path, kills: int, seed: int, plant: str = "", tell: Tell = lambda tally: None
) -> Tally:
    """Kill in a directory of its own."""
    trial = ShardTrial(
        data=str(root / "data"),
        ledger=str(root / "ledger"),
        chance=Random(f"{seed} shard kills {plant}"),
        plant=plant,
    )
    return Kills(trial, tell).run(PLANTED_KILL_COUNT if plant else kills)


if __name__ == "__main__":
    sys.exit(kill_command("shard_kill", "headrace_lab.shard.kills.kill", kill_run, KILL_PLANTS))
