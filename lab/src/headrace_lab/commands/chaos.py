"""`headrace chaos spark`: exactly once, with processes killed at named moments."""

import secrets
import signal
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.location import empty_place
from headrace.cli.terminal.output import Json, JsonShape, print_json, print_table, say, words
from headrace.errors import BadRequest, Unavailable
from headrace_lab.spark.names import OF_BUCKETS, OF_EXECUTORS, Point, plan, point_named

if TYPE_CHECKING:
    from headrace_lab.spark.plants import Plant
    from headrace_lab.spark.run import ChaosReport, Run

RUN_COUNT = 30
SEED_BITS = 16  # short enough to type again

_HELD, _BROKEN, _NOT_SHOWN = "held", "broken", "not shown"
_EXITS = {_HELD: Exit.OK, _BROKEN: Exit.FAILURE, _NOT_SHOWN: Exit.NOT_SHOWN}


class Store(StrEnum):
    """Where the table of a run is."""

    PATH = "path"
    S3 = "s3"


Runs = Annotated[int, typer.Option(min=1, max=10_000, help="Number of runs.")]
Aims = Annotated[
    list[str] | None,
    typer.Option(help="Kill only at this point, in every run; may be repeated."),
]
OnCluster = Annotated[
    bool, typer.Option("--cluster", help="Use a real Spark cluster of two workers.")
]
InStore = Annotated[
    Store, typer.Option(help="Where the table is: a directory, or a bucket of an S3 here.")
]
Planted = Annotated[
    bool, typer.Option("--mutants", help="Plant each known bug; all must be caught.")
]
Budget = Annotated[
    float | None, typer.Option(min=0.0, help="Start no new run after this many seconds.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed for the moments; random by default.")
]
Kept = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Keep the logs, tables and ledgers of all runs in this directory.",
    ),
]


class ChaosStrike(JsonShape, frozen=True, kw_only=True):
    """One kill with SIGKILL, and the observed recovery."""

    run: int
    point: str
    pid: int
    landed: bool
    evidence: str  # empty: no recovery was observed


class ChaosRun(JsonShape, frozen=True, kw_only=True):
    """One run: a node, a pipeline into a table, and a streaming query into a second topic."""

    run: int
    holds: bool
    acknowledged: int  # rows in the ledgers
    in_table: int
    in_copy: int
    lost: int
    twice: int
    invented: int
    problems: list[str]
    silence: str  # what did not happen in time; empty if everything did
    executors: list[str]  # of a cluster, that have read rows
    seconds: float


class ChaosShape(JsonShape, frozen=True, kw_only=True):
    """The output of `headrace chaos spark --json`."""

    verdict: str  # held, broken or not shown
    seed: int
    cluster: bool
    store: str  # path or s3
    runs: list[ChaosRun]
    strikes: list[ChaosStrike]
    promised: dict[str, int]  # how often each point was attempted
    landed: dict[str, int]
    recovered: dict[str, int]
    missing: list[str]  # what was promised but not shown
    seconds: float


class ChaosMutants(JsonShape, frozen=True, kw_only=True):
    """The output of `headrace chaos spark --mutants --json`."""

    mutants: int
    caught: int
    missed: list[str]
    catches: dict[str, str]  # how each planted bug was reported


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    own = typer.Typer(
        help="Kill processes at named moments and check for lost, duplicated or invented rows.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
    )
    own.command("spark")(chaos_spark)
    app.add_typer(own, name="chaos")


def chaos_spark(
    runs: Runs = RUN_COUNT,
    point: Aims = None,
    cluster: OnCluster = False,
    store: InStore = Store.PATH,
    mutants: Planted = False,
    budget: Budget = None,
    seed: Seed = None,
    keep: Kept = None,
    as_json: Json = False,
) -> None:
    """Kill drivers, workers and nodes at named moments: every row must arrive exactly once.

    In each run producers send rows to a node and keep ledgers; a pipeline loads the rows into
    a Delta table, and a streaming query copies them to a second topic. A process is killed with
    SIGKILL at moments that are held open until the kill, and at random moments. Beside a commit
    nobody may die: its answer is lost, another writer is faster, or the store is away. Then
    table and second topic are compared with the ledgers, by plain pyarrow and by a proof.
    Exits with 1 if a row was lost, duplicated or invented, and with 7 if a planned point
    landed neither three times nor as often as planned.

    Examples:

        headrace chaos spark --runs 3

        headrace chaos spark --runs 1 --point "worker inside a stage" --keep ./kept

        headrace chaos spark --cluster --runs 3 --json

        headrace chaos spark --store s3 --runs 3

        headrace chaos spark --mutants
    """
    points = _points(point or [], cluster=cluster, store=store)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also ends drivers and nodes
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    if mutants:
        _mutants(
            seed,
            as_json=as_json,
            is_plain=not (points or cluster or keep or store != Store.PATH),
        )
        return
    is_s3 = store == Store.S3
    if is_s3 and cluster:
        raise BadRequest(
            "--store s3: a cluster writes to a directory", hint="Remove --cluster or --store"
        )
    planned = plan(runs, Random(seed), cluster=cluster, bucket=is_s3)
    aims = [points] * runs if points else planned
    report = _performed(aims, seed, keep, cluster=cluster, store=store, budget=budget)
    if as_json:
        print_json(_shape(report))
    else:
        _print(report)
    raise typer.Exit(_EXITS[_verdict(report)])


def _points(given: list[str], *, cluster: bool, store: Store) -> list[Point]:
    found = []
    for text in given:
        try:
            found.append(point_named(text))
        except ValueError as error:
            raise BadRequest(
                f"--point {text!r} does not name exactly one point",
                hint=f"The points are: {error}",
            ) from None
        if found[-1] in OF_EXECUTORS and not cluster:
            raise BadRequest(
                f"--point {text!r}: executors exist only on a cluster", hint="Add --cluster"
            )
        if found[-1] in OF_BUCKETS and store != Store.S3:
            raise BadRequest(
                f"--point {text!r}: only a bucket answers requests", hint="Add --store s3"
            )
    return found


def _performed(
    aims: list[list[Point]],
    seed: int,
    keep: Path | None,
    *,
    cluster: bool = False,
    store: Store = Store.PATH,
    budget: float | None = None,
    plant: str = "",
) -> "ChaosReport":
    try:
        from headrace_lab.spark.run import Chaos, ChaosReport
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install it: pip install 'headrace[spark,delta]'",
        ) from error
    report = ChaosReport(seed, cluster, store == Store.S3)
    out = words()
    with (
        empty_place(keep, "--keep", "chaos") as directory,
        out.status("starting Spark", spinner="line") as status,
    ):
        told: list[str] = []

        def tell(text: str) -> None:
            status.update(text)
            for run in report.runs[len(told) :]:
                if run.seconds:
                    told.append(_line(run))
                    out.print(told[-1], markup=False)

        chaos = Chaos(directory, report, tell, budget=budget, plant=plant)
        chaos.perform(aims, keep=keep is not None)
        tell("")
    return report


def _line(run: "Run") -> str:
    landed = sum(one.is_landed for one in run.strikes)
    rows = 0 if run.checked is None else run.checked.acknowledged
    verdict = "each row once in table and copy" if run.holds else "not finished"
    verdict = "BROKEN" if run.is_broken else verdict
    read = f", read by executors {', '.join(run.executors)}" if run.executors else ""
    seconds = f"{run.seconds:.0f} s"
    kills = _count(landed, "kill")
    return f"run {run.number}: {kills}, {rows:,} rows{read}: {verdict} ({seconds})"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _print(report: "ChaosReport") -> None:
    from headrace_lab.spark.names import Point

    landed, recovered = report.landed, report.recovered
    seen = {
        one.point: one.evidence for run in report.runs for one in run.strikes if one.evidence
    }
    lines = [
        [point, str(landed[point]), str(recovered[point]), seen.get(point, "")]
        for point in Point
        if report.promised[point]
    ]
    print_table(("killed", "landed", "recovered", "seen last"), lines)
    for run in report.runs:
        if run.checked is not None:
            for problem in run.checked.problems:
                say(f"run {run.number}: {problem}")
    for one in report.missing:
        say(f"not shown: {one}")
    checked = [run.checked for run in report.runs if run.checked is not None]
    rows = sum(one.acknowledged for one in checked)
    wrong = [
        sum(getattr(one, kind) for one in checked) for kind in ("lost", "twice", "invented")
    ]
    kills = landed.total()
    counts = f"{wrong[0]:,} lost, {wrong[1]:,} duplicated, {wrong[2]:,} invented"
    done = f"{_count(len(report.runs), 'run')}, {_count(kills, 'kill')}"
    say(f"{done}, {rows:,} rows acknowledged; {counts}")
    say(f"{_verdict(report)}; seed {report.seed}, {report.seconds:,.0f} s")


def _verdict(report: "ChaosReport") -> str:
    if report.is_broken:
        return _BROKEN
    return _NOT_SHOWN if report.missing else _HELD


def _shape(report: "ChaosReport") -> ChaosShape:
    return ChaosShape(
        verdict=_verdict(report),
        seed=report.seed,
        cluster=report.is_cluster,
        store=Store.S3 if report.is_bucket else Store.PATH,
        runs=[_run_shape(run) for run in report.runs],
        strikes=[
            ChaosStrike(
                run=run.number,
                point=one.point,
                pid=one.pid,
                landed=one.is_landed,
                evidence=one.evidence,
            )
            for run in report.runs
            for one in run.strikes
        ],
        promised={str(point): count for point, count in report.promised.items()},
        landed={str(point): count for point, count in report.landed.items()},
        recovered={str(point): count for point, count in report.recovered.items()},
        missing=report.missing,
        seconds=round(report.seconds, 3),
    )


def _run_shape(run: "Run") -> ChaosRun:
    checked = run.checked
    assert checked is not None
    return ChaosRun(
        run=run.number,
        holds=run.holds,
        acknowledged=checked.acknowledged,
        in_table=checked.in_table,
        in_copy=checked.in_copy,
        lost=checked.lost,
        twice=checked.twice,
        invented=checked.invented,
        problems=list(checked.problems),
        silence=run.silence,
        executors=list(run.executors),
        seconds=round(run.seconds, 3),
    )


def _mutants(seed: int, *, as_json: bool, is_plain: bool) -> None:
    from headrace_lab.spark.plants import PLANTS

    if not is_plain:
        raise BadRequest(
            "--mutants chooses its own points and keeps nothing",
            hint="Remove --point, --cluster, --store and --keep",
        )

    catches = {name: _caught(plant, seed) for name, plant in PLANTS.items()}
    missed = [name for name, said in catches.items() if not said]
    if as_json:
        print_json(
            ChaosMutants(
                mutants=len(catches),
                caught=len(catches) - len(missed),
                missed=missed,
                catches=catches,
            )
        )
    else:
        lines = [[name, PLANTS[name].where, said or "MISSED"] for name, said in catches.items()]
        print_table(("planted bug", "in", "reported"), lines)
    if missed:
        raise typer.Exit(Exit.FAILURE)


def _caught(plant: "Plant", seed: int) -> str:
    """Return how a planted bug was reported; empty if it was missed."""
    report = _performed([list(plant.points)], seed, None, plant=plant.name)
    (run,) = report.runs
    return run.checked.problems[0] if run.is_broken and run.checked is not None else ""
