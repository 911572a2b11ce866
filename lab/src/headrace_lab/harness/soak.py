"""Runs every campaign in full: `make test` tries only a sample of what these commands try.

A campaign is a command with a budget of minutes. They run one after another; the output of each
goes to a file, and one line of it is shown. A campaign that exceeds its budget is ended and
counts as not shown.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from rich.console import Console

OK, FAILED, NOT_SHOWN = 0, 1, 7  # exit codes; 2 is argparse's
GRACE_SECONDS = 60  # for a campaign that is ended, to unmount disks and end its children
SEED_BITS = 20
_HARNESS = "-m headrace_lab"
_PYTEST = "-m pytest -q --whole -p no:cacheprovider"


class Verdict(StrEnum):
    """How a campaign ended."""

    HELD = "held"
    FAILED = "failed"
    NOT_SHOWN = "not shown"  # it was skipped or exceeded its budget


@dataclass(frozen=True, slots=True)
class Campaign:
    """A command of this Python, and the pattern of its summary line."""

    name: str
    minutes: float
    command: str  # the arguments of `python`; {seed} differs in each soak
    says: str  # a pattern: the last matching line is shown
    settings: tuple[tuple[str, str], ...] = ()  # of the environment

    def words(self, seed: int) -> list[str]:
        return [sys.executable, *shlex.split(self.command.format(seed=seed))]


_CASES = r": [\d,]+ cases in "
_CAUGHT = r" planted bugs (were )?caught"
_TESTS = r"\d+ (passed|failed|error)"
_VERDICT = r"^(HELD|FAILED|skipped)"


def _harness(name: str, minutes: float, module: str, whole: str) -> tuple[Campaign, Campaign]:
    """Return the campaigns of a full harness and of its planted bugs."""
    return (
        Campaign(name, minutes, f"{_HARNESS}.{module} {whole} --seed {{seed}}", _CASES),
        Campaign(f"{name}-bugs", minutes, f"{_HARNESS}.{module} --mutants", _CAUGHT),
    )


CAMPAIGNS = (
    Campaign("suite", 120, f"{_PYTEST} -m campaign tests lab/tests", _TESTS),
    *_harness("group-sweep", 30, "counter.sweep", "--full"),
    *_harness("group-matrix", 30, "counter.matrix", "--full"),
    *_harness("heads", 15, "lives.heads_life", "--full"),
    *_harness("copy", 15, "lives.copy_life", "--full"),
    *_harness("held", 15, "lives.held_life", "--full"),
    *_harness("shard-sweep", 90, "shard.sweep", "--full"),
    *_harness("shard-matrix", 90, "shard.matrix", "--full"),
    *_harness("reconcile", 15, "reconcile.histories", "--full"),
    *_harness("hostile", 30, "hostile.attack", ""),
    Campaign(
        "shard-kill", 40, f"{_HARNESS}.shard.kills.kill --kills 200 --seed {{seed}}", _VERDICT
    ),
    Campaign("node-kill", 30, f"{_HARNESS}.node.kill --kills 200 --seed {{seed}}", _VERDICT),
    Campaign("power", 15, f"{_HARNESS}.commands.powercut --cuts 60 --seed {{seed}}", _VERDICT),
    Campaign(
        "shard-power",
        15,
        f"{_HARNESS}.commands.powercut --shard --cuts 40 --seed {{seed}}",
        _VERDICT,
    ),
    Campaign(
        "shard-histories",
        180,
        f"{_PYTEST} tests/partition/test_histories.py",
        _TESTS,
        (("HEADRACE_HYPOTHESIS", "heavy"),),
    ),
    Campaign(
        "sim",
        60,
        "-m headrace_lab sim --seeds 6000 --jobs 2 --budget 3300 --first {seed}",
        "violation|^seed",
    ),
    Campaign(
        "sim-unsafe",
        30,
        "-m headrace_lab sim --unsafe --seeds 2000 --jobs 2 --budget 1500 --first {seed}",
        "violation|^seed",
    ),
    Campaign("sim-bugs", 60, "-m headrace_lab sim --mutants --jobs 2", _CAUGHT),
    Campaign(
        "spark-long",
        30,
        f"{_PYTEST} tests/spark/test_pipeline_long.py tests/spark/test_history.py",
        _TESTS,
        (("HEADRACE_BATCHES", "200"), ("HEADRACE_READS", "200")),
    ),
    Campaign(
        "chaos", 120, "-m headrace_lab chaos spark --runs 30 --seed {seed}", "^verdict|held"
    ),
    Campaign(
        "chaos-s3",
        180,
        "-m headrace_lab chaos spark --store s3 --runs 30 --seed {seed}",
        "^verdict|held",
    ),
    Campaign(
        "chaos-cluster",
        120,
        "-m headrace_lab chaos spark --cluster --runs 30 --seed {seed}",
        "^verdict|held",
    ),
    Campaign("chaos-bugs", 30, "-m headrace_lab chaos spark --mutants", _CAUGHT),
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome of one campaign."""

    campaign: Campaign
    verdict: Verdict
    said: str
    seconds: float
    output: str  # the file with its whole output


def soak(campaigns: Sequence[Campaign], seed: int, room: Path) -> Iterator[Ending]:
    """Run campaigns one after another and yield the ending of each."""
    for campaign in campaigns:
        yield run(campaign, seed, room)


def run(campaign: Campaign, seed: int, room: Path) -> Ending:
    """Run one campaign in its own process session, within its budget."""
    output = room / f"{campaign.name}.log"
    began = time.monotonic()
    with output.open("wb") as out:
        process = subprocess.Popen(
            campaign.words(seed),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | dict(campaign.settings),
            start_new_session=True,
        )
        try:
            code = process.wait(campaign.minutes * 60)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - began
    if code is None:
        said = f"ended after its budget of {campaign.minutes:g} minutes"
        return Ending(campaign, Verdict.NOT_SHOWN, said, seconds, str(output))
    verdicts = {OK: Verdict.HELD, NOT_SHOWN: Verdict.NOT_SHOWN}
    said = _said(output.read_text(errors="replace"), campaign.says)
    return Ending(campaign, verdicts.get(code, Verdict.FAILED), said, seconds, str(output))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a campaign gracefully, so that it unmounts its disks; then kill what is left."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _said(printed: str, says: str) -> str:
    """Return the last line that matches, or else the last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    matching = [line for line in lines if re.search(says, line)]
    return (matching or lines or ["printed nothing"])[-1]


def chosen(names: Sequence[str]) -> list[Campaign]:
    """Return the campaigns whose names begin with one of `names`; all if there are none."""
    unknown = [
        name for name in names if not any(each.name.startswith(name) for each in CAMPAIGNS)
    ]
    if unknown:
        known = ", ".join(each.name for each in CAMPAIGNS)
        raise ValueError(
            f"there is no campaign {', '.join(unknown)}; the campaigns are {known}"
        )
    return [each for each in CAMPAIGNS if not names or any(map(each.name.startswith, names))]


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exits with 1 if a campaign failed, with 7 if one was not shown."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace_lab.harness.soak", description="run every campaign in full"
    )
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        help="run only campaigns whose name begins with this; may be repeated",
    )
    parser.add_argument(
        "--budget", type=float, help="minutes per campaign, instead of its own budget"
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the campaigns; by default a new one each time"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the campaigns and run nothing"
    )
    asked = parser.parse_args(arguments)
    try:
        campaigns = chosen([name for part in asked.part for name in part.split(",")])
    except ValueError as error:
        parser.error(str(error))
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    seed = int(time.time()) % (1 << SEED_BITS) if asked.seed is None else asked.seed
    if asked.list:
        for each in campaigns:
            settings = "".join(f"{name}={value} " for name, value in each.settings)
            console.print(
                f"{each.name}: {settings}python {each.command} ({each.minutes:g} min)"
            )
        return OK
    if asked.budget is not None:
        campaigns = [replace(each, minutes=asked.budget) for each in campaigns]
    room = Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    console.print(f"{len(campaigns)} campaigns, seed {seed}, output in {room}")
    endings = []
    for ending in soak(campaigns, seed, room):
        endings.append(ending)
        took = f"{ending.campaign.name:18} {ending.seconds:6.0f} s"
        console.print(f"{ending.verdict:9} {took}  {ending.said}")
    counts = {verdict: sum(each.verdict is verdict for each in endings) for verdict in Verdict}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts[Verdict.FAILED]:
        return FAILED
    return NOT_SHOWN if counts[Verdict.NOT_SHOWN] else OK


if __name__ == "__main__":
    sys.exit(main())
