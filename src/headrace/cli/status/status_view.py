"""Renders a picture of a node as lines on a terminal."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.status.status_figures import LagFigures, OrphanFigures, Picture, TopicFigures
from headrace.client.values.answers import shown_size
from headrace.model.revisions import shown

_LABEL_WIDTH = 12
_SECTIONS = 2  # tables below the figures: topics, consumer groups
_TABLE_LINES = 3  # of a table, besides its rows: blank, headers, "and N more"
_ROWS_MIN = 3  # of each table, however small the terminal
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def drawn(picture: Picture, height: int | None = None) -> RenderableType:
    """Return the picture; with a `height` lines are not folded, and tables are cut to fit."""
    head = [_title(picture), *_reasons(picture), Text(""), *_figures(picture)]
    lengths = [len(picture.topics), len(picture.lags)]
    if height is not None:
        for line in head:
            line.no_wrap, line.overflow = True, "ellipsis"
        left = height - len(head) - _SECTIONS * _TABLE_LINES
        lengths = _shares(lengths, max(left, _SECTIONS * _ROWS_MIN))
    return Group(
        *head,
        *_topics(picture, lengths[0]),
        *_lags(picture, lengths[1]),
    )


def _shares(wanted: Sequence[int], left: int) -> list[int]:
    """Split lines between two tables: half each, plus what the other does not need."""
    first, second = wanted
    half = left // 2
    if first <= half:
        return [first, min(second, left - first)]
    if second <= half:
        return [min(first, left - second), second]
    return [left - half, half]


def _title(picture: Picture) -> Text:
    node = picture.node
    line = Text.assemble(("headrace", "bold"), f" {node.release}  {node.address}  ")
    if not node.ready:
        line.append("not ready", "bold red")
    elif node.degraded:
        line.append(_degraded(picture), "bold red")
    elif node.served:
        line.append("ready", "green")
    if node.ready and not node.served:
        line.append("  " if node.degraded else "")
        return line.append("not running, opened by this command", "yellow")
    return line.append(f"  up {_span(node.uptime_seconds)}")


def _degraded(picture: Picture) -> str:
    orphans = picture.node.orphan_count
    if orphans:
        return f"degraded: {_count(orphans, 'partition')} without a topic"
    return "degraded: some rows or topics are unavailable"


def _reasons(picture: Picture) -> list[Text]:
    style = "yellow" if picture.node.ready else "red"
    lines = doubt_lines(picture.node.reasons, picture.node.orphans)
    more = picture.node.orphan_count - len(picture.node.orphans)
    if more:
        lines.append(f"and {more:,} more partitions without a topic")
    if picture.node.next_step:
        lines.append(f"{picture.node.next_step}.")
    return [Text(f"  {each}", style=style) for each in lines]


def doubt_lines(reasons: Sequence[str], orphans: Sequence[OrphanFigures]) -> list[str]:
    """Return what is wrong, each once: an orphan's own line says more than its reason."""
    named = [f"partition {one.partition} of revision {shown(one.created)} " for one in orphans]
    others = [one for one in reasons if not any(name in one for name in named)]
    return [*others, *map(_orphan, orphans)]


def _orphan(one: OrphanFigures) -> str:
    times = "" if one.first_at is None else f" from {one.first_at} to {one.last_at}"
    return (
        f"partition {one.partition} of revision {shown(one.created)}: {_count(one.rows, 'row')}"
        f"{times}, {', '.join([_size(one.bytes), *one.schema])}"
    )


def _figures(picture: Picture) -> list[Text]:
    disk, checkpoints, reconciler = picture.disk, picture.checkpoints, picture.reconciler
    free = "" if disk.free is None else f"{_size(disk.free)} free of {_size(disk.total or 0)}"
    ring = f"{disk.free_slots:,} of {disk.slots:,} journal slots free" if disk.slots else ""
    last = "none yet" if checkpoints.last_at is None else f"last {_ago(checkpoints.last_at)}"
    failures = sum(reconciler.failures.values())
    return [
        *_work(picture),
        _line("disk", f"{_size(disk.used)} used", free, ring),
        _line(
            "checkpoints",
            last,
            f"{checkpoints.pending} pending",
            f"{_count(checkpoints.waiting, 'request')} waiting",
            f"{_size(checkpoints.unsealed_bytes)} unsealed",
        ),
        _line(
            "reconciler",
            _count(reconciler.passes, "pass", "passes"),
            _count(reconciler.builds, "build"),
            _count(reconciler.removals, "removal"),
            _count(failures, "failure"),
            f"{reconciler.parked} parked",
        ),
    ]


def _work(picture: Picture) -> list[Text]:
    rates, work = picture.rates, picture.work
    if not picture.node.served:
        return []
    if rates is None:
        return [
            _line(
                "since start",
                f"{work.appended_rows:,} rows, {_size(work.appended_bytes)} appended",
                f"{_size(work.fetched_bytes)} read",
            )
        ]
    return [
        _line(
            "appended",
            f"{rates.appended_rows:,.0f} rows/s",
            f"{_size(rates.appended_bytes)}/s",
            f"{work.appended_rows:,} rows since the start",
        ),
        _line(
            "read",
            f"{_size(rates.fetched_bytes)}/s",
            f"{_size(work.fetched_bytes)} since the start",
        ),
    ]


def _topics(picture: Picture, count: int) -> list[RenderableType]:
    if not picture.topics:
        return [Text("\nno topics yet", style="dim")]
    has_rates = picture.rates is not None
    heads = ["topic", "partitions", "rows", "size", *(["rows/s"] if has_rates else [])]
    table = _table(heads)
    for each in sorted(picture.topics, key=_busiest)[:count]:
        rate = [f"{each.rows_per_second or 0:,.0f}"] if has_rates else []
        table.add_row(
            Text(each.topic), str(each.partitions), f"{each.rows:,}", _size(each.size), *rate
        )
    return [Text(""), table, *_rest(len(picture.topics) - count)]


def _lags(picture: Picture, count: int) -> list[RenderableType]:
    if not picture.lags:
        return []
    table = _table(["consumer group", "lag in rows", "partitions"], after=["topic", ""])
    for each in picture.lags[:count]:
        table.add_row(
            Text(each.group),
            Text(f"{each.lag:,}", style="" if each.lag == 0 else "bold"),
            str(each.partitions),
            Text(each.topic),
            _hold(each),
        )
    return [Text(""), table, *_rest(len(picture.lags) - count)]


def _busiest(topic: TopicFigures) -> tuple[float, int, str]:
    return (-(topic.rows_per_second or 0), -topic.rows, topic.topic)


def _hold(lag: LagFigures) -> str:
    return "holds retention" if lag.holds else ""


def _table(heads: Sequence[str], after: Sequence[str] = ()) -> Table:
    """Create a table: first column and `after` left-aligned, numbers right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for head in after:
        table.add_column(head, no_wrap=True)
    return table


def _rest(count: int) -> list[Text]:
    return [Text(f"and {count:,} more", style="dim")] if count > 0 else []


def _line(label: str, *parts: str) -> Text:
    said = "   ".join(part for part in parts if part)
    return Text.assemble((f"{label:<{_LABEL_WIDTH}}", "cyan"), said)


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _size(size: float) -> str:
    return shown_size(int(size)) or "0 B"


def _ago(moment: str) -> str:
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return f"{_span(max(0.0, seconds))} ago"


def _span(seconds: float) -> str:
    """Format a duration in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
