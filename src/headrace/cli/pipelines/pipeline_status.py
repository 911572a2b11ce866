"""`headrace pipeline status`: every pipeline of a log, or one by its file."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import headrace
from headrace.cli.terminal import live_view
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, load, opened
from headrace.cli.terminal.output import (
    Json,
    JsonShape,
    console,
    print_json,
    print_table,
    say,
    table_of,
)
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
    "to table (p50, p99)",
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
    to_table_p50_seconds: float | None  # from append to commit, over its last 100 rounds
    to_table_p99_seconds: float | None
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
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every second; q or Ctrl-C quits.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the state of all pipelines of a log, or of one by its file. Does not start Spark.

    A pipeline is running, stopped, failed, or silent: its driver was killed, or cannot reach
    the log. Lag is the number of rows that are not in the table, and the age of the oldest.
    The time to the table is that from the append of a row to the commit with it, for half and
    for 99 % of the rows of the driver's last 100 commits. With --watch all pipelines are shown
    live on a terminal; in a pipe they are printed once.

    Examples:

        headrace pipeline status --address 127.0.0.1:7654

        headrace pipeline status orders.toml

        headrace pipeline status --address 127.0.0.1:7654 --watch

        headrace pipeline status --json | jq '.pipelines[] | select(.state != "running")'
    """
    is_watched = watch and not as_json and sys.stdout.isatty()
    if file is None:
        with opened(data, address, timeout) as log:
            if is_watched:
                live_view.watch(lambda: lines_of(log), _drawn, console())
                return
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
    definition = load(file)
    if is_watched:
        live_view.watch(lambda: _status(definition), _one_drawn, console())
        return
    answer = _status(definition)
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
        to_table_p50_seconds=report.to_table_p50 if report else None,
        to_table_p99_seconds=report.to_table_p99 if report else None,
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


def _print(lines: Sequence[PipelineLine]) -> None:
    """Print a table, then each target path below it: long paths would fold the table."""
    print_table(HEADS, [_cells(line) for line in lines])
    typer.echo()
    for text in _tables(lines):
        typer.echo(text)
    for text in _notes(lines):
        say(text)


def _drawn(lines: Sequence[PipelineLine], height: int | None = None) -> RenderableType:
    """Return what `_print` prints, or its first lines."""
    if not lines:
        return Text("No pipeline has run on this log yet.")
    texts = ["", *_tables(lines), *_notes(lines)]
    rows = [_cells(line) for line in lines]
    if height is not None:
        rows = rows[: max(1, height - 1)]
        texts = texts[: max(0, height - 1 - len(rows))]
    return Group(table_of(HEADS, rows), *map(Text, texts))


def _tables(lines: Iterable[PipelineLine]) -> Iterator[str]:
    for line in lines:
        version = "" if line.version is None else f", version {line.version}"
        yield f"{line.name}: table {line.table or 'unknown'}{version}"


def _notes(lines: Iterable[PipelineLine]) -> Iterator[str]:
    return (f"{line.name}: {line.note}" for line in lines if line.note)


def _cells(line: PipelineLine) -> list[str]:
    return [
        line.name,
        _state(line),
        line.topic,
        f"{line.rows_per_second:,.0f}",
        "?" if line.lag_rows is None else shown_rows(line.lag_rows),
        "?" if line.lag_seconds is None else shown_seconds(line.lag_seconds),
        _to_table(line) or "?",
        _ago(line.last_commit),
    ]


def _print_one(answer: PipelineStatus) -> None:
    for text in _told(answer):
        typer.echo(text)
    if answer.report.note:
        say(answer.report.note)


def _one_drawn(answer: PipelineStatus, height: int | None = None) -> RenderableType:
    note = [answer.report.note] if answer.report.note else []
    return Text("\n".join([*_told(answer), *note][:height]))


def _told(answer: PipelineStatus) -> Iterator[str]:
    line = answer.report
    yield f"{answer.name}: {answer.topic} -> {answer.table}, version {answer.version}"
    yield (
        f"  {_state(line)}, rows per second {line.rows_per_second:,.0f}, "
        f"last commit {_ago(line.last_commit)}"
    )
    age = (
        "" if line.lag_seconds is None else f", oldest unread {shown_seconds(line.lag_seconds)}"
    )
    yield (f"  commits {answer.commits:,}, lag in rows {answer.lag:,}{age}")
    if taken := _to_table(line):
        yield (f"  time to the table (p50, p99) {taken}")
    for number, end in answer.ends.items():
        yield (f"  partition {number}: next offset {end}")


def _state(line: PipelineLine) -> str:
    if line.state == "running" and line.drivers > 1:
        return f"running, {line.drivers} drivers"
    if line.state == "silent" and line.reported_at is not None:
        return f"silent since {_ago(line.reported_at)}"
    return line.state


def _to_table(line: PipelineLine) -> str:
    half, most = line.to_table_p50_seconds, line.to_table_p99_seconds
    if half is None or most is None:
        return ""
    return f"{shown_seconds(half)}, {shown_seconds(most)}"


def _ago(moment: str | None) -> str:
    if moment is None:
        return "unknown"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return f"{shown_seconds(max(0.0, seconds))} ago"


def _moment(found: datetime | None) -> str | None:
    return None if found is None else iso(found)
