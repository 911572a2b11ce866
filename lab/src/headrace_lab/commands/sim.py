"""`headrace sim`: simulates whole groups under faults, and proves it finds planted bugs."""

from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.output import (
    Json,
    JsonShape,
    console,
    print_json,
    print_table,
    say,
    words,
)
from headrace_lab.cluster.cluster import SeedOutcome
from headrace_lab.cluster.hunt import Catch, hunt
from headrace_lab.cluster.mutants import MUTANTS
from headrace_lab.cluster.report import SimPlan, SimReport, run

LAST_EVENTS = 40  # shown for a violation


class SimShape(JsonShape, frozen=True):
    """The output of `headrace sim --json`."""

    seeds: int
    first: int
    seconds: float
    seeds_per_minute: float
    events: int
    events_per_second: float
    requests: int
    view_changes: int
    primary_crashes: int
    state_transfers: int
    faults_landed: dict[str, int]
    faults_median: float
    view_changes_median: float
    never_landed: list[str]
    named_halts: dict[str, int]
    violations: list[dict[str, str | int | list[str]]]


class MutantShape(JsonShape, frozen=True):
    """The output of `headrace sim --mutants --json`."""

    mutants: int
    caught: int
    missed: list[str]
    catches: dict[str, dict[str, str | int | None]]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("sim")(sim)


def sim(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=7, help="Replicas per group; by default chosen by the seed."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Parallel processes.")] = 1,
    budget: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after this many seconds.")
    ] = None,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Damage without a budget: a group may halt by name, but must never be wrong.",
        ),
    ] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Plant each known bug; all must be caught.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate whole groups of replicas under faults and check their invariants.

    The seed decides everything: faults, their rates, the network, the disks, the clients.
    Exits with 1 on a violation, and with 7 if a planned kind of fault never landed.

    Examples:

        headrace sim --seeds 200 --jobs 2

        headrace sim --first 4711 --seeds 1        repeats one seed

        headrace sim --mutants --jobs 2            does it catch planted bugs?
    """
    if mutants:
        _mutants(jobs, first, as_json=as_json)
        return
    plan = SimPlan(first, seeds, replicas, not unsafe, jobs, budget)
    report = _run(plan, as_json=as_json)
    if as_json:
        print_json(_shape(plan, report))
    else:
        _print(plan, report)
    if report.violations:
        raise typer.Exit(Exit.FAILURE)
    if report.missing:
        raise typer.Exit(Exit.NOT_SHOWN)


def _run(plan: SimPlan, *, as_json: bool) -> SimReport:
    out = words()
    if as_json or not out.is_terminal:
        return run(plan)
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("seeds", total=plan.count, note="")

        def tell(report: SimReport) -> None:
            note = f"{report.events:,} events, {report.view_changes:,} view changes"
            progress.update(task, completed=report.seeds, note=note)

        return run(plan, tell)


def _print(plan: SimPlan, report: SimReport) -> None:
    rate = report.events / report.seconds if report.seconds else 0.0
    per_minute = 60 * report.seeds / report.seconds if report.seconds else 0.0
    lines = [
        ["seeds", f"{report.seeds:,}", f"{plan.first} to {plan.first + report.seeds - 1}"],
        ["events", f"{report.events:,}", f"{rate:,.0f} a second"],
        ["seconds", f"{report.seconds:,.1f}", f"{per_minute:,.0f} seeds a minute"],
        ["requests", f"{report.requests:,}", f"at least {report.requests_least:,} in a seed"],
        ["view changes", f"{report.view_changes:,}", f"median {report.views_median:g}"],
        ["primary crashes", f"{report.primary_crashes:,}", ""],
        ["state transfers", f"{report.transfers:,}", ""],
        [
            "faults landed",
            f"{report.landed.total():,}",
            f"median {report.faults_median:g} in a seed",
        ],
    ]
    lines += [[f"  {kind}", f"{count:,}", ""] for kind, count in sorted(report.landed.items())]
    lines += [[f"halted: {why}"[:90], f"{count:,}", ""] for why, count in report.halts.items()]
    print_table(("what", "count", "in detail"), lines)
    for kind in report.missing:
        say(f"never landed: {kind}")
    for outcome in report.violations:
        _print_violation(plan, outcome)
    if not report.violations:
        say(f"no violation in {report.seeds:,} seed{'' if report.seeds == 1 else 's'}")


def _print_violation(plan: SimPlan, outcome: SeedOutcome) -> None:
    out = console()
    out.print(f"\nseed {outcome.seed}: {outcome.violation}", markup=False)
    for line in outcome.trace[-LAST_EVENTS:]:
        out.print(f"  {line}"[:200], markup=False)
    out.print(f"repeat it: {_command(plan, outcome.seed)}", markup=False)


def _command(plan: SimPlan, seed: int) -> str:
    command = f"headrace sim --seeds 1 --first {seed}"
    if plan.replicas is not None:
        command += f" --replicas {plan.replicas}"
    return command if plan.is_safe else f"{command} --unsafe"


def _shape(plan: SimPlan, report: SimReport) -> SimShape:
    seconds = report.seconds or 1e-9
    return SimShape(
        seeds=report.seeds,
        first=plan.first,
        seconds=round(report.seconds, 3),
        seeds_per_minute=round(60 * report.seeds / seconds, 1),
        events=report.events,
        events_per_second=round(report.events / seconds, 1),
        requests=report.requests,
        view_changes=report.view_changes,
        primary_crashes=report.primary_crashes,
        state_transfers=report.transfers,
        faults_landed=dict(sorted(report.landed.items())),
        faults_median=report.faults_median,
        view_changes_median=report.views_median,
        never_landed=report.missing,
        named_halts=dict(report.halts),
        violations=[
            {
                "seed": one.seed,
                "what": one.violation or "",
                "last_events": list(one.trace[-LAST_EVENTS:]),
                "repeat": _command(plan, one.seed),
            }
            for one in report.violations
        ],
    )


def _mutants(jobs: int, first: int, *, as_json: bool) -> None:
    catches: list[Catch] = []
    for catch in hunt([one.name for one in MUTANTS], first=first, jobs=jobs):
        catches.append(catch)
        if not as_json:
            seen = f"seed {catch.seed}: {catch.how}" if catch.how else "MISSED"
            say(f"{len(catches):>3} of {len(MUTANTS)}  {catch.name}: {seen}"[:160])
    missed = sorted(one.name for one in catches if not one.how)
    if as_json:
        found = {
            one.name: {"seed": one.seed, "seeds": one.seeds, "how": one.how} for one in catches
        }
        print_json(
            MutantShape(
                mutants=len(catches),
                caught=len(catches) - len(missed),
                missed=missed,
                catches=dict(sorted(found.items())),
            )
        )
    else:
        say(f"{len(catches) - len(missed)} of {len(catches)} planted bugs were caught")
    if missed:
        raise typer.Exit(Exit.FAILURE)
