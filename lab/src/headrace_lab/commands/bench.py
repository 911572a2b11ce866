"""`headrace bench`: measures a part of Headrace next to the machine's own limit."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.terminal.exits import Exit
from headrace.errors import Rejected, StorageFailed
from headrace_lab.bench import report
from headrace_lab.bench.cache import full_cache
from headrace_lab.bench.frame import ROUND_COUNT, Case, Result, measure
from headrace_lab.bench.place import check_is_disk, fsync_is_free, working_directory

if TYPE_CHECKING:
    from headrace_lab.bench.registry import Bench

INGEST = "ingest"
PARTITIONS = "partitions"
LOCAL = "local"
# Without a terminal, lines are wide enough for a whole row.
PLAIN_WIDTH = 140


Where = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        writable=True,
        help="Directory to write to; by default the current one. "
        "The bench works in a subdirectory and removes it at the end.",
    ),
]
Only = Annotated[
    str | None, typer.Option("--case", help="Run only cases whose name contains this.")
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Counted rounds, after one to warm up; by default 5, for partitions 3."
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…",
        help="With partitions: the partition counts, each compared with one partition.",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0.1, help="With partitions: minimum length of a round."),
]
FullCache = Annotated[
    bool,
    typer.Option(
        "--full-cache",
        help="Fill the page cache before each round, as on a machine that has run for "
        "a while. Needs a file as large as the memory.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("bench")(bench)


def bench(
    name: Annotated[
        str | None, typer.Argument(help="Bench to run; by default list all benches.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    rounds: Rounds = None,
    scale: Annotated[
        float, typer.Option(min=0.0, help="Work per round, as a fraction of the usual.")
    ] = 1.0,
    data: Where = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With ingest: append over TCP to the node at HOST:PORT, or with `local` to "
            "a node that the bench starts."
        ),
    ] = None,
    partitions: Partitions = None,
    seconds: Seconds = None,
    only: Only = None,
    is_cache_full: FullCache = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a floor is missed.")
    ] = False,
) -> None:
    """Measure a part of Headrace next to the machine's own limit.

    Rounds of Headrace and of the reference alternate, and each round swaps their order. Both
    values are medians of rates, so higher is better. The ratio is Headrace to the reference; a
    floor is the lowest accepted ratio. The spread is (90th - 10th percentile) / median, of
    the side that spreads more: a ratio is only as steady as its noisier side.
    """
    # Benches are imported only to run: they load everything that they measure.
    from headrace_lab.bench.cases.partitions import Steady
    from headrace_lab.bench.registry import BENCHES, about

    if name is None:
        report.print_list(_console(), {each: about(BENCHES[each]) for each in BENCHES})
        return
    found = chosen(name, address, partitions, seconds)
    results = run(
        found,
        rounds=rounds or (found.rounds if isinstance(found, Steady) else ROUND_COUNT),
        scale=scale,
        data=data or Path(),
        check=check,
        only=only,
        is_cache_full=is_cache_full,
    )
    if as_json:
        typer.echo(json.dumps(report.as_json(name, results), indent=2))
    else:
        report.print_table(_console(), name, results)
    if check and not floors_are_met(results):
        raise typer.Exit(Exit.FAILURE)


def chosen(
    name: str, address: str | None, counts: str | None = None, seconds: float | None = None
) -> "Bench":
    """Find a bench and apply the options that are specific to it."""
    from headrace_lab.bench.cases.partitions import COUNTS, SECONDS, Steady, counts_in
    from headrace_lab.bench.registry import find
    from headrace_lab.bench.remote import Remote

    if address is not None and name != INGEST:
        raise Rejected(f"bench {name!r} does not take --address", hint=f"Only {INGEST!r} does")
    if (counts is not None or seconds is not None) and name != PARTITIONS:
        raise Rejected(
            f"bench {name!r} does not take --partitions or --seconds",
            hint=f"Only {PARTITIONS!r} does",
        )
    if name == PARTITIONS:
        return Steady(counts_in(counts) if counts else COUNTS, seconds or SECONDS)
    if address is None:
        return find(name)
    return Remote(None if address == LOCAL else address)


def run(
    bench: "Bench",
    *,
    rounds: int,
    scale: float,
    data: Path,
    check: bool,
    only: str | None = None,
    is_cache_full: bool = False,
) -> list[Result]:
    """Measure the cases of `bench` in a subdirectory of `data`."""
    if check:
        check_is_disk(data)
    elif fsync_is_free(data):
        _tell(
            f"WARNING: {data.resolve()} is in memory, where a sync costs nothing. "
            "These figures do not apply to a disk; choose one with --data."
        )
    try:
        with working_directory(data) as directory:
            cases = chosen_cases(bench.cases(directory, scale), only)
            if is_cache_full:
                _tell("writing a file as large as the memory to fill the page cache")
            with full_cache(directory) if is_cache_full else nullcontext(_nothing) as before:
                return [_measured(case, rounds, before) for case in cases]
    except OSError as error:
        raise StorageFailed(str(data), "bench", error) from error


def _measured(case: Case, rounds: int, before: Callable[[], None]) -> Result:
    """Measure a case, and tell at once what came out: a later one may fail."""
    found = measure(case, rounds, _tell, before)
    _tell(
        f"{case.name}: {found.ours:,.1f} of {found.reference_value:,.1f} {case.unit}, "
        f"a ratio of {found.ratio:.2f}, spread {found.spread:.0%}"
    )
    return found


def chosen_cases(cases: list[Case], only: str | None) -> list[Case]:
    """Return the cases whose name contains `only`, ignoring case; None: all."""
    found = [case for case in cases if only is None or only.lower() in case.name.lower()]
    if not found:
        names = ", ".join(repr(case.name) for case in cases)
        raise Rejected(f"no case has {only!r} in its name", hint=f"The cases are: {names}")
    return found


def floors_are_met(results: Sequence[Result]) -> bool:
    """Report each missed floor and return whether there is none."""
    missed = [result for result in results if not result.is_met]
    for result in missed:
        _tell(f"{result.name}: the ratio {result.ratio:.3f} is below the floor {result.floor}")
    return not missed


def _nothing() -> None:
    return


def _console() -> Console:
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def _tell(line: str) -> None:
    typer.echo(line, err=True)
