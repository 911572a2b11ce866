"""Cut the power of a real file system under a group, or with `--shard` under a shard.

`python -m headrace_lab.commands.powercut [--shard] [--cuts 30] [--seed N] [--json]`. What a cut
is, and what must hold after it, is in `counter/powercut.py` and `shard/kills/powercut.py`.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from headrace_lab.counter import powercut
from headrace_lab.disk.loopdisk import CannotCut
from headrace_lab.shard.kills import powercut as shard_powercut

HELD, FAILED, SKIPPED, INTERRUPTED = 0, 1, 7, 130  # how the command ends


def main() -> None:
    """Run the command. Exits with 0 if all held, 1 if not, 7 if it was skipped."""
    parser = argparse.ArgumentParser(prog="python -m headrace_lab.commands.powercut")
    parser.add_argument("--cuts", type=int, default=30, help="cuts that must land")
    parser.add_argument("--seed", type=int, default=1, help="of the log and of the moments")
    parser.add_argument("--shard", action="store_true", help="a shard, not a bare group")
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
    except KeyboardInterrupt:  # the disk is gone by now: each context has ended
        sys.exit(INTERRUPTED)
    if arguments.json:
        console.print(json.dumps(outcome.as_json(), indent=2))
    elif isinstance(outcome, shard_powercut.Outcome):
        shard_powercut.show(console, outcome)
    else:
        powercut.show(console, outcome)
    sys.exit(HELD if outcome.holds else FAILED)


def _cut_either(
    arguments: argparse.Namespace, say: Callable[[str], None]
) -> powercut.Outcome | shard_powercut.Outcome:
    cuts, seed = arguments.cuts, arguments.seed
    if arguments.shard:
        return shard_powercut.cut_all(
            cuts, seed, lambda tally: say(f"{tally.count} of {cuts} cuts")
        )
    return powercut.cut_all(cuts, seed, lambda tally: say(f"{tally.cut_count} of {cuts} cuts"))


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
