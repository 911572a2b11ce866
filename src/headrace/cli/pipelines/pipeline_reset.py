"""`headrace pipeline reset`: move a pipeline's position in one commit to its table."""

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
    """Output of `pipeline reset`, done or planned. `changed` is false with --dry-run."""

    name: str
    topic: str
    table: str
    changed: bool
    version: int  # of the table, afterwards
    deleted: int  # rows deleted from the table
    kept: int  # foreign rows that stay in the table; counted with --truncate
    again: int  # rows of the log that were loaded, and will be loaded again
    gone: int  # rows of the log that were loaded, and will not be loaded again
    skipped: int  # rows of the log that were not loaded, and will not be
    partitions: list[PipelineMove]


def reset(
    file: File,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help='New position: earliest (default with --truncate), latest, or {"0": 10}.',
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Delete the pipeline's rows in the same commit."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a pipeline to another position, in one commit to its table.

    Moving forward skips rows: the table records that, and `headrace prove` reports it. Moving
    back requires deleting the pipeline's rows (--truncate), or they would be duplicated;
    foreign rows stay. Refused while the pipeline runs.

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
    with closing(TopicSource(parse(definition.options), "30s")) as topic_source:
        refuse_running(topic_source.log, definition.name, topic_source.topic.name)
        source = LogSource.reading(definition.name, topic_source.topic)
        record, bounds = look(definition.location, source), topic_source.bounds()
        before = {n: record.start_of(n, each.first) for n, each in bounds.items()}
        places = _places(definition, topic_source, to, before, truncate=truncate)
        plan = planned(record, bounds, places, truncate=truncate)
        if not as_json:
            _print(definition, plan, bounds)
        is_to_do = plan.changes and not dry_run
        if is_to_do:
            _confirm(definition, truncate=truncate, yes=yes)
            _carry_out(topic_source, record, plan)
    if as_json:
        print_json(_answer(definition, record, plan, bounds, changed=is_to_do))
    elif not is_to_do:
        say("Nothing was changed." if plan.changes else "It already continues from there.")
    else:
        say(f"{definition.name} was moved; the table is at version {_version(record)}.")


def refuse_running(log: headrace.Log, name: str, topic: str) -> None:
    """Raise BadRequest while a driver of the pipeline reports that it runs."""
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
    topic_source: "TopicSource",
    to: str | None,
    before: Mapping[int, int],
    *,
    truncate: bool,
) -> dict[int, int]:
    """Return the new offsets. Partitions that `to` omits stay, or with `truncate` restart."""
    from headrace.spark.source_options import EARLIEST, parse

    if to is None and not truncate:
        hint = "Add --to PLACE, or --truncate to start from scratch"
        raise BadRequest("no position is given", hint=hint)
    try:
        options = parse({**definition.options, "startingOffsets": to or EARLIEST})
    except BadConfig as error:
        hint = 'Give earliest, latest, or {"0": 10}'
        raise BadRequest(f"--to: {to!r} is not a valid position", hint=hint) from error
    where = options.start.offsets
    if isinstance(where, dict) and not truncate:
        where = {**before, **where}
    return topic_source.places(where)


def _confirm(definition: "Definition", *, truncate: bool, yes: bool) -> None:
    name = definition.name
    deed = f"deletes rows of pipeline {name}" if truncate else f"skips rows of pipeline {name}"
    typed(f"This {deed}.", name, f"pipeline {name} was not reset", yes=yes)


def _carry_out(topic_source: "TopicSource", record: "Record", plan: "ResetPlan") -> None:
    """Commit the plan. First hold the rows from the earlier position on, whatever happens."""
    from headrace.spark.pipeline.driver_reports import group_of
    from headrace.spark.pipeline.table_reset import carry_out
    from headrace.spark.tables.table_errors import CommitRefused

    group = group_of(record.source.pipeline)
    lower = {n: min(place, plan.before[n]) for n, place in plan.after.ends.items()}
    topic_source.topic.store_cursors(group, lower, hold=True)
    try:
        is_done = carry_out(record, plan)
    except CommitRefused:
        topic_source.topic.store_cursors(group, plan.before, hold=True)
        raise
    if not is_done:
        topic_source.topic.store_cursors(group, plan.before, hold=True)
        raise Unavailable(
            "another commit to the table came first; nothing was changed",
            hint="Check whether a driver is running, and retry",
        )
    topic_source.topic.store_cursors(group, plan.after.ends, hold=True)


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
        "are deleted from the table": plan.deleted,
        "of other writers stay in the table": plan.kept,
        "of the log are loaded again": plan.again,
        "of the log are not loaded again": plan.gone,
        "of the log are skipped": plan.skipped,
    }
    for what, count in told.items():
        if count:
            typer.echo(f"  {count:,} rows {what}")
