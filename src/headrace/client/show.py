"""Topics as tables, for a terminal and for a notebook."""

import re
from collections.abc import Sequence
from html import escape

from headrace.client.values.answers import Bounds, Retention, TopicSummary, shown_size

SHOWN_MAX = 20  # topics or partitions in a table; the rest is only counted

Line = tuple[str, ...]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_TOPIC_HEADS = ("topic", "partitions", "rows", "size", "kept")
_PARTITION_HEADS = ("partition", "first", "end", "rows", "size")


def printable(text: str) -> str:
    """Return text as one line, without terminal control characters."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def log_lines(topics: Sequence[TopicSummary]) -> list[Line]:
    """Return a table of topics."""
    lines: list[Line] = [_TOPIC_HEADS]
    lines += [
        (
            each.name,
            str(each.partition_count),
            f"{each.row_count:,}",
            shown_size(each.size),
            str(each.retention),
        )
        for each in topics
    ]
    return lines


def topic_lines(bounds: Sequence[Bounds]) -> list[Line]:
    """Return a table of partitions."""
    lines: list[Line] = [_PARTITION_HEADS]
    lines += [
        (
            str(each.partition),
            str(each.first),
            str(each.end),
            f"{each.row_count:,}",
            shown_size(each.size),
        )
        for each in bounds[:SHOWN_MAX]
    ]
    return lines


def as_text(title: str, lines: Sequence[Line], more: int = 0) -> str:
    """Return a table as text: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [title]
    for first, *rest in lines:
        cells = [first.ljust(widths[0])]
        cells += [each.rjust(width) for each, width in zip(rest, widths[1:], strict=True)]
        shown.append("  " + "  ".join(cells).rstrip())
    if more > 0:
        shown.append(f"  and {more} more")
    return "\n".join(shown)


def as_html(title: str, lines: Sequence[Line], more: int = 0) -> str:
    """Return a table as HTML."""
    heads, *rest = lines
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in line) + "</tr>" for line in rest
    )
    foot = f"<p>and {more} more</p>" if more > 0 else ""
    return (
        f"<div><p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{foot}</div>"
    )


def topic_title(name: str, key: str | None, retention: Retention) -> str:
    by = f" by {key}" if key else ""
    return f"topic {name}{by}, kept {retention}"
