"""Cuts the power of a real file system under a group, or with `--shard` under a shard.

`python -m headrace_lab.commands.powercut [--shard] [--cuts 30] [--seed N] [--json]`. What a cut
is, is described in `harness/powercut.py`; what must hold after it, in each machine's
`trial.py`.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from headrace_lab.counter import trial as group
from headrace_lab.disk.loopdisk import CannotCut
from headrace_lab.harness.powercut import cut_all
from headrace_lab.harness.tally import Tally
from headrace_lab.harness.trial import Outcome
from headrace_lab.shard.kills import trial as shard
from headrace_lab.shard.kills.plants import POWER_PLANTS

SKIPPED, INTERRUPTED = 7, 130  # further exit codes


def main() -> None:
    """Run the command. Exits with 0 if all held, 1 if not, 7 if it was skipped."""
    parser = argparse.ArgumentParser(prog="python -m headrace_lab.commands.powercut")
    parser.add_argument("--cuts", type=int, default=30, help="number of cuts that must land")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the log and of the moments"
    )
    parser.add_argument(
        "--shard", action="store_true", help="use a shard instead of a bare group"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)  # so that the disk is unmounted and detached
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    try:
        with Console(stderr=True).status("cutting") as status:
            outcome = _cut_either(arguments, status.update)
    except CannotCut as reason:
        console.print(
            json.dumps({"powercut": "skipped", "reason": str(reason)}, indent=2)
            if arguments.json
            else f"skipped: {reason}"
        )
        sys.exit(SKIPPED)
    except KeyboardInterrupt:  # the disk is detached by now: each context has ended
        sys.exit(INTERRUPTED)
    sys.exit(outcome.tell(console, in_json=arguments.json))


def _cut_either(arguments: argparse.Namespace, say: Callable[[str], None]) -> Outcome:
    cuts, seed = arguments.cuts, arguments.seed

    def tell(tally: Tally) -> None:
        say(f"{tally.count} of {cuts} cuts")

    if arguments.shard:
        return cut_all(shard.on_disk, POWER_PLANTS, cuts, seed, tell)
    return cut_all(group.on_disk, group.POWER_PLANTS, cuts, seed, tell)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
