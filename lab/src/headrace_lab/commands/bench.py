"""`headrace bench`: measure a part beside the machine's own limit."""

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
# Where no terminal says how wide it is, lines are long enough for a whole row.
PLAIN_WIDTH = 140


Where = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        writable=True,
        help="Where to write; by default the current directory. "
        "A directory made inside it is removed at the end.",
    ),
]
Only = Annotated[str | None, typer.Option("--case", help="Only cases with this in their name.")]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Rounds that count; one more warms up. By default 5, of partitions 3."
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…", help="With partitions: over how many, each beside one partition."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0.1, help="With partitions: the least length of a round."),
]
FullCache = Annotated[
    bool,
    typer.Option(
        "--full-cache",
        help="Fill the page cache before each round, as on a machine that has run for "
        "a while. Takes a file as large as the memory.",
    ),
]


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("bench")(bench)


def bench(
    name: Annotated[
        str | None, typer.Argument(help="Which bench; without it, list them all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    rounds: Rounds = None,
    scale: Annotated[
        float, typer.Option(min=0.0, help="Work in a round, as a share of the usual.")
    ] = 1.0,
    data: Where = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With ingest: append over TCP, to the node at HOST:PORT, or to `local`, "
            "a node of the bench's own."
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
    """Measure a part of Headrace beside the machine's own limit.

    Rounds of ours and of the reference take turns, and each round swaps who goes first. Both
    values are medians of rates, so more is better. The ratio is ours to the reference; a
    floor is the least ratio accepted. The spread is (90th - 10th percentile) / median, of
    whichever side spreads more: a ratio is only as steady as its shakier side.
    """
    # A command that measures nothing loads no benches: they load all that they measure.
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
    """Find a bench, with the options that only it takes."""
    from headrace_lab.bench.cases.partitions import COUNTS, SECONDS, Steady, counts_in
    from headrace_lab.bench.registry import find
    from headrace_lab.bench.remote import Remote

    if address is not None and name != INGEST:
        raise Rejected(f"{name!r} takes no address", hint=f"Only {INGEST!r} does")
    if (counts is not None or seconds is not None) and name != PARTITIONS:
        raise Rejected(
            f"{name!r} takes no --partitions and no --seconds", hint=f"Only {PARTITIONS!r} does"
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
    """Measure the cases of `bench` in a directory of its own inside `data`."""
    if check:
        check_is_disk(data)
    elif fsync_is_free(data):
        _tell(
            f"WARNING: {data.resolve()} is in memory, where a sync costs nothing. "
            "These figures say nothing about a disk; choose one with --data."
        )
    try:
        with working_directory(data) as directory:
            cases = chosen_cases(bench.cases(directory, scale), only)
            if is_cache_full:
                _tell("writing a file as large as the memory, to fill the page cache with")
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
    """Give the cases with `only` in their name, whatever its letters' size; None: all."""
    found = [case for case in cases if only is None or only.lower() in case.name.lower()]
    if not found:
        names = ", ".join(repr(case.name) for case in cases)
        raise Rejected(f"no case has {only!r} in its name", hint=f"There are: {names}")
    return found


def floors_are_met(results: Sequence[Result]) -> bool:
    """Name each floor that was missed, and say whether none was."""
    missed = [result for result in results if not result.is_met]
    for result in missed:
        _tell(f"{result.name}: a ratio of {result.ratio:.3f} misses the floor {result.floor}")
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
