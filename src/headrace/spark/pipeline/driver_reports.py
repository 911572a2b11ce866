"""Status reports of pipelines and requests to stop them, as rows of one topic.

    report := a driver is alive or has ended, and what it has done
    stop   := a driver is asked to end after its current batch

The topic is `headrace/pipelines`, an ordinary topic: reports are durable, come from any
machine, and `headrace read headrace/pipelines` shows a pipeline's history. They are for people
and monitors. The position of a pipeline is in its table and nowhere else.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

import headrace
from headrace.errors import BadRequest, Rejected, TopicExists, TopicUnknown

NAME: Final = "headrace/pipelines"
KEPT: Final = "7d"
KEPT_SIZE: Final = "256MiB"  # about 200,000 reports, in batches of one row
TEXT_SIZE_MAX: Final = 1_000  # characters of a text in a report; longer ones are truncated
WINDOW: Final = 5_000  # rows read at a time, from the newest backwards
SILENT_SECONDS: Final = 60.0  # four missing reports: the driver is dead or disconnected
_GROUP: Final = "pipeline."  # plus the name: the consumer group that holds rows

_REPORT: Final = "report"
_STOP: Final = "stop"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_TIMES: Final = ("to_table_p50", "to_table_p99")
_FIRST: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("pipeline", pa.string()),
        ("topic", pa.string()),
        ("run", pa.string()),
        ("state", pa.string()),
        ("table", pa.string()),
        ("version", pa.int64()),
        ("rows", pa.int64()),
        ("rows_per_second", pa.float64()),
        ("committed_at", _TIMESTAMP),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("note", pa.string()),
    ]
)
# Topics of earlier releases lack the rest, until a driver of this one reports.
SCHEMA: Final = pa.schema([*_FIRST, *(pa.field(name, pa.float64()) for name in _TIMES)])


class DriverState(StrEnum):
    """The state of a driver."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    SILENT = "silent"  # never reported, but inferred from missing reports


@dataclass(frozen=True, slots=True)
class Report:
    """The newest report of one driver."""

    pipeline: str
    topic: str
    run: str  # of this driver alone
    state: DriverState
    table: str
    version: int | None = None  # of the table, after the newest commit of this driver
    rows: int = 0  # loaded by this driver
    rows_per_second: float = 0.0
    committed_at: datetime | None = None
    host: str = ""
    pid: int = 0
    note: str = ""  # why it failed, or what it does not keep
    to_table_p50: float | None = None  # seconds from the append of a row to its commit
    to_table_p99: float | None = None
    reported_at: datetime | None = None  # when the log got it

    def at(self, now: datetime) -> "Report":
        """Return the report as of `now`: a running driver without news counts as silent."""
        assert self.reported_at is not None
        is_late = now - self.reported_at > timedelta(seconds=SILENT_SECONDS)
        if self.state != DriverState.RUNNING or not is_late:
            return self
        return replace(self, state=DriverState.SILENT, rows_per_second=0.0)


def group_of(pipeline: str) -> str:
    """Return the consumer group that holds rows until they are in the table."""
    return f"{_GROUP}{pipeline}"


def pipeline_of(group: str) -> str | None:
    """Return the pipeline of a consumer group; None if it is not a pipeline's."""
    return group.removeprefix(_GROUP) if group.startswith(_GROUP) else None


def find(log: "headrace.Log") -> "headrace.Topic | None":
    """Return the topic of reports; None if no pipeline has ever reported."""
    try:
        topic = log.topic(NAME)
    except TopicUnknown:
        return None
    missing = [
        one.name
        for one in _FIRST
        if one.name not in topic.schema.names or topic.schema.field(one.name).type != one.type
    ]
    if missing or topic.partitions != 1:
        count = f"has {topic.partitions} partitions, but reports need exactly one"
        what = f"has no column {missing[0]!r} of the type of reports" if missing else count
        raise BadRequest(
            f"topic {NAME} {what}: it was not created by a pipeline",
            hint=f"Delete it to enable reports: headrace topic delete {NAME}",
        )
    return topic


def make(log: "headrace.Log") -> "headrace.Topic":
    """Return the topic of reports, creating it if needed."""
    found = find(log)
    if found is None:
        with suppress(TopicExists):  # another driver was faster
            log.create_topic(NAME, SCHEMA, retention=KEPT, retention_size=KEPT_SIZE)
        found = find(log)
    assert found is not None
    new = [one for one in SCHEMA if one.name not in found.schema.names]
    if new:
        with suppress(Rejected):  # another driver was faster
            found.evolve(pa.schema([*found.schema, *new]))
        found.refresh()
    return found


def tell(topic: "headrace.Topic", report: Report) -> datetime | None:
    """Append a report. Returns when, by the log's clock; None if it is trimmed already."""
    row = {field.name: getattr(report, field.name, None) for field in SCHEMA}
    place = _append(topic, {**row, "kind": _REPORT, "state": str(report.state)})
    rows = topic.read(start=place, end=place + 1, columns=["_timestamp"]).to_table()
    return rows.column(0)[0].as_py() if rows.num_rows else None


def ask_to_stop(topic: "headrace.Topic", report: Report) -> None:
    """Ask the driver of a report to end."""
    row = dict.fromkeys(SCHEMA.names)
    wanted = {"pipeline": report.pipeline, "topic": report.topic, "run": report.run}
    _append(topic, {**row, **wanted, "kind": _STOP})


def end_of(topic: "headrace.Topic") -> int:
    """Return where the next row of the topic of reports will be."""
    return topic.bounds()[0].end


def is_asked(topic: "headrace.Topic", run: str, start: int, end: int) -> bool:
    """Whether rows `start` up to but not including `end` ask a driver to stop."""
    if start >= end:
        return False
    start = max(start, topic.bounds()[0].first)
    if start >= end:
        return False
    rows = topic.read(start=start, end=end, columns=["kind", "run"]).to_table()
    return {"kind": _STOP, "run": run} in rows.to_pylist()


def newest(log: "headrace.Log", wanted: Iterable[tuple[str, str]] = ()) -> list[Report]:
    """Return the newest report of each driver as of now, newest first.

    Finds all drivers in the last `WINDOW` rows. For the `wanted` pairs of pipeline and topic it
    searches back through all retained rows.
    """
    topic = find(log)
    if topic is None:
        return []
    bounds, now = topic.bounds()[0], datetime.now(UTC)
    left, found, end = set(wanted), dict[str, Report](), bounds.end
    while end > bounds.first and (left or end == bounds.end):
        start = max(bounds.first, end - WINDOW)
        for row in reversed(topic.read(start=start, end=end).to_table().to_pylist()):
            report = _report_of(row)
            if report is not None and report.run not in found:
                found[report.run] = report.at(now)
                left.discard((report.pipeline, report.topic))
        end = start
    return list(found.values())


def summed_up(reports: Iterable[Report]) -> dict[tuple[str, str], Report]:
    """Return one report per pipeline and topic: of a running driver, or else the newest."""
    found: dict[tuple[str, str], Report] = {}
    for report in reports:
        known = found.setdefault((report.pipeline, report.topic), report)
        if report.state == DriverState.RUNNING != known.state:
            found[report.pipeline, report.topic] = report
    return found


def _append(topic: "headrace.Topic", row: Mapping[str, Any]) -> int:
    cut = {
        name: value[:TEXT_SIZE_MAX] if isinstance(value, str) else value
        for name, value in row.items()
    }
    # A topic of another release has other columns besides the first ones.
    appended = topic.append(pa.Table.from_pylist([cut], topic.schema), partition=0)
    return appended.ranges[0].start


def _report_of(row: Mapping[str, Any]) -> Report | None:
    """Parse a row; None for rows that are not, or not valid, reports."""
    texts = ("pipeline", "topic", "run", "table")
    if row["kind"] != _REPORT or not all(row[name] for name in texts):
        return None
    if row["state"] not in (DriverState.RUNNING, DriverState.STOPPED, DriverState.FAILED):
        return None
    return Report(
        **{name: row[name] for name in texts},
        state=DriverState(row["state"]),
        version=row["version"],
        rows=row["rows"] or 0,
        rows_per_second=row["rows_per_second"] or 0.0,
        committed_at=row["committed_at"],
        host=row["host"] or "",
        pid=row["pid"] or 0,
        note=row["note"] or "",
        reported_at=row["_timestamp"],
        to_table_p50=row.get("to_table_p50"),  # a topic of an earlier release has none
        to_table_p99=row.get("to_table_p99"),
    )
