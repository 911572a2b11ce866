"""Output about a topic, as text and as JSON."""

import pyarrow as pa

import headrace
from headrace.cli.terminal.output import JsonShape, console, print_table
from headrace.cli.terminal.times import iso, shown_seconds
from headrace.cli.topics.consumer_lag import GroupLag, lags_of, shown_rows
from headrace.cli.topics.schema_text import schema_lines
from headrace.client.values.answers import Bounds, Retention, TopicSummary, shown_size


class Column(JsonShape, frozen=True, kw_only=True):
    """A column of a schema; its type in the notation of `--schema`."""

    name: str
    type: str


class SchemaVersionShape(JsonShape, frozen=True, kw_only=True):
    """One version of a topic's schema."""

    version: int
    columns: list[Column]


class BoundsShape(JsonShape, frozen=True, kw_only=True):
    """The retained rows of a partition: from `first` to before `end`."""

    partition: int
    first: int
    end: int
    rows: int
    size: int
    sealed_rows: int


class TopicLine(JsonShape, frozen=True, kw_only=True):
    """One topic of a list. Rows are kept forever if the retention is null."""

    topic: str
    partitions: int
    rows: int
    size: int
    retention_seconds: float | None
    retention_size: int | None
    created_at: str


class TopicList(JsonShape, frozen=True, kw_only=True):
    """Output of `topic list`."""

    topics: list[TopicLine]


class TopicDescribed(JsonShape, frozen=True, kw_only=True):
    """Output of `topic describe`."""

    topic: str
    created_at: str
    revision: int
    key: str | None
    retention_seconds: float | None
    retention_size: int | None
    rows: int
    size: int
    schemas: list[SchemaVersionShape]
    partitions: list[BoundsShape]
    groups: list[GroupLag]


def columns_of(schema: pa.Schema) -> list[Column]:
    """Return a schema's columns in their JSON form."""
    return [Column(name=name, type=kind) for name, kind in schema_lines(schema)]


def line_of(found: TopicSummary) -> TopicLine:
    """Return one topic of a list."""
    return TopicLine(
        topic=found.name,
        partitions=found.partition_count,
        rows=found.row_count,
        size=found.size,
        retention_seconds=seconds_of(found.retention),
        retention_size=found.retention.size,
        created_at=iso(found.created_at),
    )


def described(topic: headrace.Topic) -> TopicDescribed:
    """Collect everything there is to know about a topic."""
    bounds = topic.bounds()
    return TopicDescribed(
        topic=topic.name,
        created_at=iso(topic.created_at),
        revision=topic.created,
        key=topic.key,
        retention_seconds=seconds_of(topic.retention),
        retention_size=topic.retention.size,
        rows=sum(each.row_count for each in bounds),
        size=sum(each.size for each in bounds),
        schemas=[
            SchemaVersionShape(version=version, columns=columns_of(schema))
            for version, schema in topic.schemas.items()
        ],
        partitions=[_partition(each) for each in bounds],
        groups=lags_of(topic),
    )


def print_list(topics: list[TopicSummary]) -> None:
    """Print a table of topics."""
    lines = [
        (
            each.name,
            str(each.partition_count),
            shown_rows(each.row_count),
            shown_size(each.size),
            str(each.retention),
        )
        for each in topics
    ]
    print_table(("topic", "partitions", "rows", "size", "kept"), lines)


def print_described(found: TopicDescribed, retention: Retention) -> None:
    """Print a described topic in tables."""
    print_facts(
        [
            ("topic", found.topic),
            ("created", found.created_at),
            ("key", found.key or "none: batches are placed round-robin"),
            ("kept", str(retention)),
            ("rows", f"{shown_rows(found.rows)}, {shown_size(found.size)}"),
        ]
    )
    for schema in found.schemas:
        _space()
        newest = (
            ", the newest" if len(found.schemas) > 1 and schema is found.schemas[-1] else ""
        )
        print_columns(schema.columns, f"schema version {schema.version}{newest}")
    _space()
    lines = [
        (
            str(each.partition),
            str(each.first),
            str(each.end),
            shown_rows(each.rows),
            shown_size(each.size),
            shown_rows(each.sealed_rows),
        )
        for each in found.partitions
    ]
    print_table(("partition", "first", "end", "rows", "size", "sealed"), lines)
    _space()
    if found.groups:
        print_groups(found.groups, with_topic=False)
    else:
        console().print("no consumer groups")


def print_groups(groups: list[GroupLag], *, with_topic: bool = True) -> None:
    """Print consumer groups with their lag."""
    heads = ["consumer group", "topic", "partitions", "lag", "oldest unread", "holds", "state"]
    lines = [
        [
            each.group,
            each.topic,
            str(each.partitions),
            shown_rows(each.lag_rows),
            shown_seconds(each.lag_seconds),
            "yes" if each.hold else "no",
            each.state,
        ]
        for each in groups
    ]
    if not with_topic:
        heads = [heads[0], *heads[2:]]
        lines = [[line[0], *line[2:]] for line in lines]
    print_table(heads, lines)


def print_columns(columns: list[Column], title: str = "") -> None:
    """Print a schema."""
    print_table(("column", "type"), [(each.name, each.type) for each in columns], title)


def print_facts(facts: list[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in facts)
    for name, fact in facts:
        console().print(f"{name:<{width}}  {fact}", markup=False)


def seconds_of(retention: Retention) -> float | None:
    """Return how long rows are kept, in seconds."""
    return None if retention.age is None else retention.age.total_seconds()


def _partition(bounds: Bounds) -> BoundsShape:
    return BoundsShape(
        partition=bounds.partition,
        first=bounds.first,
        end=bounds.end,
        rows=bounds.row_count,
        size=bounds.size,
        sealed_rows=max(0, bounds.sealed_end - bounds.first),
    )


def _space() -> None:
    console().print()
