"""The common parts of matrix and sweep: arguments, processes, planted bugs, summary."""

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from headrace_lab.harness.mutants import MUTANTS, Mutant

Part = TypeVar("Part")
_SHOWN = 20  # failures printed


def frame(program: str, what: str, longer: str) -> ArgumentParser:
    """Return the arguments that every harness takes."""
    parser = ArgumentParser(prog=f"python -m {program}", description=what)
    parser.add_argument(f"--{longer}", action="store_true", help="everything, not a part of it")
    parser.add_argument(
        "--mutants", action="store_true", help="plant bugs: each must be caught"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides every random choice")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(started=time.monotonic())
    return parser


def in_processes(work: Callable[..., Part], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Part]:
    """Yield the result of each job as it ends, with as many processes as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(work, *job) for job in jobs]
        for done, future in enumerate(as_completed(waiting), start=1):
            if sys.stderr.isatty():
                print(f"\r{done} of {len(jobs)} parts", end="", file=sys.stderr)
            yield future.result()
        if sys.stderr.isatty():
            print(file=sys.stderr)


def hunt(
    harness: str,
    catch: Callable[[str, int], str],
    options: Namespace,
    mutants: Sequence[Mutant] = MUTANTS,
) -> int:
    """Plant each bug that this harness must catch, one after the other; a missed one fails."""
    names = [mutant.name for mutant in mutants if mutant.harness == harness]
    caught = dict(in_processes(_named, [(catch, name, options.seed) for name in names]))
    missed = [name for name in names if not caught[name]]
    if options.json:
        print(json.dumps({"mutants": {name: caught[name] for name in names}, "missed": missed}))
        return 1 if missed else 0
    for name in names:
        print(f"{'caught' if caught[name] else 'MISSED':7} {name}: {caught[name][:120]}")
    print(f"{len(names) - len(missed)} of {len(names)} planted bugs caught by the {harness}")
    return 1 if missed else 0


def _named(catch: Callable[[str, int], str], name: str, seed: int) -> tuple[str, str]:
    return name, catch(name, seed)


class Total(Protocol):
    """What the parts of a run add up to."""

    failures: list[str]

    def merge(self, other: Any) -> None: ...  # noqa: ANN401

    def figures(self) -> dict[str, Any]: ...


def run_all(
    title: str,
    total: Total,
    work: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    options: Namespace,
) -> int:
    """Do all parts, add them up, and tell what came of it; return the exit code."""
    for part in in_processes(work, jobs):
        total.merge(part)
    return tell(title, total.figures(), total.failures, options)


def tell(title: str, figures: dict[str, Any], failures: list[str], options: Namespace) -> int:
    """Print the figures and the failures; return the exit code."""
    seconds = round(time.monotonic() - options.started, 1)
    if options.json:
        print(json.dumps({**figures, "seconds": seconds, "failures": failures}))
        return 1 if failures else 0
    print(f"{title}: {figures['cases']} cases in {seconds} s, {len(failures)} failures")
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"  {name}")
            for key, count in value.items():
                print(f"    {count:>9}  {key}")
        elif name != "cases":
            print(f"  {name}: {value}")
    for failure in failures[:_SHOWN]:
        print(f"FAILED {failure}")
    return 1 if failures else 0
