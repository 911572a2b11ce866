"""`headrace pipeline reset`: have a pipeline go on elsewhere, in one commit to its table."""

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

import headrace
from headrace.cli.terminal.location import File, load
from headrace.cli.terminal.output import (
    Json,
    JsonShape,
    Yes,
    print_json,
    print_table,
    say,
    typed,
)
from headrace.errors import BadConfig, BadRequest, Unavailable

if TYPE_CHECKING:
    from headrace.spark.pipeline.definition import Definition
    from headrace.spark.pipeline.table_reset import ResetPlan
    from headrace.spark.tables.table_record import Record
    from headrace.spark.topic_source import TopicSource


class PipelineMove(JsonShape, frozen=True, kw_only=True):
    """One partition before and after a reset."""

    partition: int
    before: int
    after: int
    end: int  # of the log


class PipelineReset(JsonShape, frozen=True, kw_only=True):
    """What `pipeline reset` did, or would do. `changed` is false with --dry-run."""

    name: str
    topic: str
    table: str
    changed: bool
    version: int  # of the table, afterwards
    deleted: int  # rows that leave the table
    kept: int  # rows of others, which stay in it; counted with --truncate
    again: int  # rows of the log that were brought, and will be once more
    gone: int  # rows of the log that were brought, and will not be
    skipped: int  # rows of the log that were not brought, and will not be
    partitions: list[PipelineMove]


def reset(
    file: File,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help='earliest (default with --truncate), latest, or offsets: {"0": 10}.',
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Delete the pipeline's rows in the same commit."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have a pipeline go on from another place. Its table is changed, in one commit.

    Forward, rows are skipped: the table says so from then on, and `headrace prove` does. Back,
    the pipeline's rows must leave the table (--truncate), or they would be there twice; rows of
    others stay. It is refused while the pipeline runs.

    Examples:

        headrace pipeline reset orders.toml --truncate --dry-run

        headrace pipeline reset orders.toml --truncate --yes

        headrace pipeline reset orders.toml --to latest
    """
    from headrace.spark.pipeline.table_reset import planned
    from headrace.spark.source_options import parse
    from headrace.spark.tables.table_record import LogSource, look
    from headrace.spark.topic_source import TopicSource

    definition = load(file)
    with closing(TopicSource(parse(definition.options), "30s")) as desk:
        refuse_running(desk.log, definition.name, desk.topic.name)
        source = LogSource.reading(definition.name, desk.topic)
        record, bounds = look(definition.table, source), desk.bounds()
        before = {n: record.start_of(n, each.first) for n, each in bounds.items()}
        places = _places(definition, desk, to, before, truncate=truncate)
        plan = planned(record, bounds, places, truncate=truncate)
        if not as_json:
            _print(definition, plan, bounds)
        is_to_do = plan.changes and not dry_run
        if is_to_do:
            _confirm(definition, truncate=truncate, yes=yes)
            _carry_out(desk, record, plan)
    if as_json:
        print_json(_answer(definition, record, plan, bounds, changed=is_to_do))
    elif not is_to_do:
        say("Nothing is changed." if plan.changes else "It goes on from there anyway.")
    else:
        say(f"{definition.name} goes on from there; the table has version {_version(record)}.")


def refuse_running(log: headrace.Log, name: str, topic: str) -> None:
    """Raise BadRequest while a driver of the pipeline says that it runs."""
    from headrace.spark.pipeline.driver_reports import DriverState, newest

    for one in newest(log):
        if (one.pipeline, one.topic, one.state) == (name, topic, DriverState.RUNNING):
            raise BadRequest(
                f"{name} runs on {one.host}, process {one.pid}",
                hint=f"Stop it first: headrace pipeline stop {name}. A driver that was killed "
                "counts as running for a minute",
            )


def _places(
    definition: "Definition",
    desk: "TopicSource",
    to: str | None,
    before: Mapping[int, int],
    *,
    truncate: bool,
) -> dict[int, int]:
    """Return the offsets that are meant. Partitions that offsets leave out stay, or restart."""
    from headrace.spark.source_options import EARLIEST, parse

    if to is None and not truncate:
        raise BadRequest("no place is said", hint="Add --to PLACE, or --truncate to begin anew")
    try:
        options = parse({**definition.options, "startingOffsets": to or EARLIEST})
    except BadConfig as error:
        hint = 'Give earliest, latest, or {"0": 10}'
        raise BadRequest(f"--to: {to!r} is no place", hint=hint) from error
    where = options.start.offsets
    if isinstance(where, dict) and not truncate:
        where = {**before, **where}
    return desk.places(where)


def _confirm(definition: "Definition", *, truncate: bool, yes: bool) -> None:
    name = definition.name
    deed = f"deletes rows of pipeline {name}" if truncate else f"leaves rows out of {name}"
    typed(f"This {deed}.", name, f"pipeline {name} is not reset", yes=yes)


def _carry_out(desk: "TopicSource", record: "Record", plan: "ResetPlan") -> None:
    """Commit. The rows from the earlier place on are held before, whatever comes of it."""
    from headrace.spark.pipeline.driver_reports import group_of
    from headrace.spark.pipeline.table_reset import carry_out
    from headrace.spark.tables.table_errors import CommitRefused

    group = group_of(record.source.pipeline)
    lower = {n: min(place, plan.before[n]) for n, place in plan.after.ends.items()}
    desk.topic.store_cursors(group, lower, hold=True)
    try:
        is_done = carry_out(record, plan)
    except CommitRefused:
        desk.topic.store_cursors(group, plan.before, hold=True)
        raise
    if not is_done:
        desk.topic.store_cursors(group, plan.before, hold=True)
        raise Unavailable(
            "somebody committed to the table meanwhile, and nothing was changed",
            hint="Look whether a driver runs, and repeat",
        )
    desk.topic.store_cursors(group, plan.after.ends, hold=True)


def _answer(
    definition: "Definition",
    record: "Record",
    plan: "ResetPlan",
    bounds: "Mapping[int, headrace.Bounds]",
    *,
    changed: bool,
) -> PipelineReset:
    return PipelineReset(
        name=definition.name,
        topic=record.source.topic,
        table=definition.table,
        changed=changed,
        version=_version(record),
        deleted=plan.deleted,
        kept=plan.kept,
        again=plan.again,
        gone=plan.gone,
        skipped=plan.skipped,
        partitions=_moves(plan, bounds),
    )


def _version(record: "Record") -> int:
    return record.table.version()


def _moves(plan: "ResetPlan", bounds: "Mapping[int, headrace.Bounds]") -> list[PipelineMove]:
    return [
        PipelineMove(partition=n, before=plan.before[n], after=place, end=bounds[n].end)
        for n, place in plan.after.ends.items()
    ]


def _print(
    definition: "Definition", plan: "ResetPlan", bounds: "Mapping[int, headrace.Bounds]"
) -> None:
    lines = [
        [str(one.partition), str(one.before), str(one.after), str(one.end)]
        for one in _moves(plan, bounds)
    ]
    heads = ("partition", "next row", "after", "end of the log")
    print_table(heads, lines, f"{definition.name} in {definition.topic}")
    told = {
        "leave the table": plan.deleted,
        "of others stay in the table": plan.kept,
        "of the log come again": plan.again,
        "of the log do not come again": plan.gone,
        "of the log are skipped": plan.skipped,
    }
    for what, count in told.items():
        if count:
            typer.echo(f"  {count:,} rows {what}")
