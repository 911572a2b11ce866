"""`headrace pipeline status`: every pipeline of a log, or one by its file."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, load, opened
from headrace.cli.terminal.output import Json, JsonShape, print_json, print_table, say
from headrace.cli.terminal.times import iso, shown_seconds
from headrace.cli.topics.consumer_lag import GroupLag, all_lags, lags_of, shown_rows
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from headrace.spark.pipeline.definition import Definition
    from headrace.spark.pipeline.driver_reports import Report

HEADS = (
    "pipeline",
    "state",
    "topic",
    "rows/s",
    "lag",
    "oldest unread",
    "last commit",
)


class PipelineLine(JsonShape, frozen=True, kw_only=True):
    """One pipeline, from its reports and its consumer group.

    Unknown values are null: lag without a consumer group, everything else without a report.
    """

    name: str
    topic: str
    state: str  # running, stopped, failed, silent
    drivers: int  # that are running
    rows_per_second: float
    lag_rows: int | None
    lag_seconds: float | None
    last_commit: str | None
    table: str | None
    version: int | None
    host: str | None
    pid: int | None
    reported_at: str | None
    note: str


class PipelineList(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline status` without a file."""

    pipelines: list[PipelineLine]


class PipelineStatus(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline status` with a file: its progress by the table and by the log."""

    name: str
    topic: str
    table: str
    version: int
    commits: int
    ends: dict[str, int]
    lag: int
    report: PipelineLine


def status(
    file: Annotated[
        Path | None,
        typer.Argument(help="The pipeline's TOML file; by default all pipelines."),
    ] = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Show the state of all pipelines of a log, or of one by its file. Does not start Spark.

    A pipeline is running, stopped, failed, or silent: its driver was killed, or cannot reach
    the log. Lag is the number of rows that are not in the table, and the age of the oldest.

    Examples:

        headrace pipeline status --address 127.0.0.1:7654

        headrace pipeline status orders.toml

        headrace pipeline status --json | jq '.pipelines[] | select(.state != "running")'
    """
    if file is None:
        with opened(data, address, timeout) as log:
            lines = lines_of(log)
        if as_json:
            print_json(PipelineList(pipelines=lines))
        elif lines:
            _print(lines)
        else:
            say("No pipeline has run on this log yet.")
        return
    if data is not None or address is not None:
        raise BadRequest("the file already names the log", hint="Omit --data and --address")
    answer = _status(load(file))
    if as_json:
        print_json(answer)
    else:
        _print_one(answer)


def lines_of(log: headrace.Log) -> list[PipelineLine]:
    """Return every pipeline that has a report or a consumer group, sorted by name."""
    from headrace.spark.pipeline.driver_reports import newest, pipeline_of

    lags: dict[tuple[str, str], GroupLag] = {}
    for lag in all_lags(log, None):
        name = pipeline_of(lag.group)
        if name is not None:
            lags[name, lag.topic] = lag
    return _lines(newest(log, lags), lags)


def _lines(
    reports: "Iterable[Report]", lags: Mapping[tuple[str, str], GroupLag]
) -> list[PipelineLine]:
    from headrace.spark.pipeline.driver_reports import DriverState, summed_up

    reports = list(reports)
    found = summed_up(reports)
    running = [(one.pipeline, one.topic) for one in reports if one.state == DriverState.RUNNING]
    return [
        _line(key, found.get(key), lags.get(key), running.count(key))
        for key in sorted({*found, *lags})
    ]


def _line(
    key: tuple[str, str], report: "Report | None", lag: GroupLag | None, drivers: int
) -> PipelineLine:
    from headrace.spark.pipeline.driver_reports import DriverState

    return PipelineLine(
        name=key[0],
        topic=key[1],
        state=str(report.state if report else DriverState.SILENT),
        drivers=drivers,
        rows_per_second=round(report.rows_per_second, 1) if report else 0.0,
        lag_rows=lag.lag_rows if lag else None,
        lag_seconds=lag.lag_seconds if lag else None,
        last_commit=_moment(report.committed_at if report else None),
        table=report.table if report else None,
        version=report.version if report else None,
        host=report.host if report else None,
        pid=report.pid if report else None,
        reported_at=_moment(report.reported_at if report else None),
        note=report.note if report else "it has not reported for a week, or never did",
    )


def _status(definition: "Definition") -> PipelineStatus:
    from headrace.spark.pipeline.driver_reports import group_of, newest
    from headrace.spark.source_options import parse
    from headrace.spark.tables.table_record import LogSource, look
    from headrace.spark.topic_source import TopicSource

    topic_source = TopicSource(parse(definition.options), "10s")
    try:
        topic = topic_source.topic
        key = (definition.name, topic.name)
        record = look(definition.location, LogSource.reading(definition.name, topic))
        bounds = topic_source.bounds()
        own_lags = lags_of(topic, group_of(definition.name))
        lags = {key: own_lags[0]} if own_lags else {}
        own = [
            one for one in newest(topic_source.log, [key]) if (one.pipeline, one.topic) == key
        ]
        (line,) = _lines(own, lags) or [_line(key, None, None, 0)]
    finally:
        topic_source.close()
    ends = {n: record.start_of(n, each.first) for n, each in bounds.items()}
    return PipelineStatus(
        name=definition.name,
        topic=topic.name,
        table=definition.table,
        version=record.table.version(),
        commits=record.number,
        ends={str(number): end for number, end in ends.items()},
        lag=sum(each.end - ends[number] for number, each in bounds.items()),
        report=line,
    )


def _print(lines: Iterable[PipelineLine]) -> None:
    """Print a table, then each target path below it: long paths would fold the table."""
    print_table(HEADS, [_cells(line) for line in lines])
    typer.echo()
    for line in lines:
        version = "" if line.version is None else f", version {line.version}"
        typer.echo(f"{line.name}: table {line.table or 'unknown'}{version}")
    for line in lines:
        if line.note:
            say(f"{line.name}: {line.note}")


def _cells(line: PipelineLine) -> list[str]:
    return [
        line.name,
        _state(line),
        line.topic,
        f"{line.rows_per_second:,.0f}",
        "?" if line.lag_rows is None else shown_rows(line.lag_rows),
        "?" if line.lag_seconds is None else shown_seconds(line.lag_seconds),
        _ago(line.last_commit),
    ]


def _print_one(answer: PipelineStatus) -> None:
    line = answer.report
    typer.echo(f"{answer.name}: {answer.topic} -> {answer.table}, version {answer.version}")
    typer.echo(
        f"  {_state(line)}, rows per second {line.rows_per_second:,.0f}, "
        f"last commit {_ago(line.last_commit)}"
    )
    age = (
        "" if line.lag_seconds is None else f", oldest unread {shown_seconds(line.lag_seconds)}"
    )
    typer.echo(f"  commits {answer.commits:,}, lag in rows {answer.lag:,}{age}")
    for number, end in answer.ends.items():
        typer.echo(f"  partition {number}: next offset {end}")
    if line.note:
        say(line.note)


def _state(line: PipelineLine) -> str:
    if line.state == "running" and line.drivers > 1:
        return f"running, {line.drivers} drivers"
    if line.state == "silent" and line.reported_at is not None:
        return f"silent since {_ago(line.reported_at)}"
    return line.state


def _ago(moment: str | None) -> str:
    if moment is None:
        return "unknown"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return f"{shown_seconds(max(0.0, seconds))} ago"


def _moment(found: datetime | None) -> str | None:
    return None if found is None else iso(found)
