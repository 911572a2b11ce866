"""`headrace topic`: create, list, describe, alter and delete topics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer
from msgspec import structs

import headrace
from headrace.cli.formats.formats import format_of, reading
from headrace.cli.formats.open_rows import schema_in
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, Yes, confirm_name, print_json, say
from headrace.cli.topics.schema_text import schema_from_file, schema_from_words, split_columns
from headrace.cli.topics.topic_lines import (
    Column,
    TopicList,
    columns_of,
    described,
    line_of,
    print_columns,
    print_described,
    print_list,
    seconds_of,
)
from headrace.client.erasing import ERASE_TIMEOUT, erase_seconds
from headrace.client.values.answers import Unerased
from headrace.errors import BadConfig, BadRequest, NotErased, TopicExists, TopicUnknown
from headrace.model.column_types import said
from headrace.model.namespace import parse_topic
from headrace.model.schema import canonical, check_evolution
from headrace.model.units import parse_duration, parse_size

FOREVER: Final = "forever"


@dataclass(frozen=True, slots=True)
class KeptFor:
    """The limits that were given. None: not given; an empty string: unlimited."""

    age: str | None = None
    size: str | None = None


def kept_of(given: Sequence[str]) -> KeptFor:
    """Parse values of --retention; the unit tells a time from a size per partition."""
    ages, sizes = [], []
    parts = [part.strip() for each in given for part in each.split(",")]
    for part in parts:
        if part == FOREVER:
            ages.append("")
            sizes.append("")
        elif _is_time(part):
            ages.append(part)
        elif _is_size(part):
            sizes.append(part)
        else:
            hint = f"Give a time (7d), a size per partition (10GiB), or {FOREVER}"
            flaw = f"--retention: {said(part)!r} is neither a time nor a size"
            raise BadRequest(flaw, hint=hint)
    if len(ages) > 1 or len(sizes) > 1:
        raise BadRequest(
            "--retention has two times or two sizes", hint="Give at most one of each"
        )
    return KeptFor(ages[0] if ages else None, sizes[0] if sizes else None)


def _is_time(text: str) -> bool:
    try:
        parse_duration(text)
    except BadConfig:
        return False
    return True


def _is_size(text: str) -> bool:
    if text.isdigit():
        return False  # ambiguous: bytes or seconds
    try:
        parse_size(text)
    except BadConfig:
        return False
    return True


topics = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter and delete topics."
)

Name = Annotated[str, typer.Argument(help="The topic: `orders`, or `shop/orders`.")]
Retention = Annotated[
    list[str] | None,
    typer.Option(
        "--retention",
        metavar="7d|10GiB|forever",
        help="How long to keep rows, how many bytes per partition, or both: 7d,10GiB.",
    ),
]


class TopicCreated(JsonShape, frozen=True, kw_only=True):
    """Output of `topic create`. `created` is false if the topic already existed."""

    topic: str
    created: bool
    partitions: int
    key: str | None
    retention_seconds: float | None
    retention_size: int | None
    columns: list[Column]


class UnerasedFile(JsonShape, frozen=True, kw_only=True):
    """A file that still holds, or may hold, rows of deleted topics, and why."""

    path: str
    why: str


class TopicDeleted(JsonShape, frozen=True, kw_only=True):
    """Output of `topic delete`.

    `deleted` is false if the topic did not exist (`--if-exists`). `erased` is null without
    `--wait-erased`; if it is false, `left` names the first 100 files left at the timeout.
    """

    topic: str
    deleted: bool
    erased: bool | None = None
    left: Sequence[UnerasedFile] = ()


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(topics, name="topic")


@topics.command("create")
def create(
    name: Name,
    schema: Annotated[
        str | None, typer.Option(metavar="NAME:TYPE,…", help="The columns and their types.")
    ] = None,
    schema_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file: one object of names and types."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Take the schema of this file: Parquet, CSV, NDJSON, Arrow."
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHAR", help="With --like: CSV field separator."),
    ] = None,
    partitions: Annotated[int, typer.Option(help="Number of partitions.")] = 1,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that chooses the partition.")
    ] = None,
    retention: Retention = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept an existing topic if it matches.")
    ] = False,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Create a topic, and the log's directory if it does not exist.

    Types: bool, int8 to int64, float32, float64, string, binary, date, timestamp,
    decimal(10, 2), list<…>, map<…, …>, struct<name: …>; each may be followed by `not null`.

    Examples:

        headrace topic create orders --schema id:int64,customer:string --data ./data

        headrace topic create shop/orders --like orders.parquet --partitions 4 --key customer

        headrace topic create visits --schema-file visits.json --retention 7d,10GiB
    """
    wanted = _schema(schema, schema_file, like, delimiter)
    kept = kept_of(retention or [])
    with opened(data, address, timeout, create=True) as log:
        known = _created(log, name) if if_not_exists else None
        with _existing_told(name, if_not_exists=if_not_exists):
            topic = log.create_topic(
                name,
                wanted,
                partitions=partitions,
                key=key,
                retention=kept.age or None,
                retention_size=kept.size or None,
                if_not_exists=if_not_exists,
            )
        _tell_created(topic, is_new=topic.created != known, as_json=as_json)


@topics.command("list")
def list_topics(
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """List all topics: their rows, their bytes, and how long they are kept.

    Examples:

        headrace topic list --data ./data

        headrace topic list --address node1:7654

        headrace topic list --json | jq -r '.topics[].topic'
    """
    with opened(data, address, timeout) as log:
        found = log.summary()
    if as_json:
        print_json(TopicList(topics=[line_of(each) for each in found]))
    elif found:
        print_list(found)
    else:
        say("There are no topics yet. `headrace topic create --help` shows how to create one.")


@topics.command("describe")
def describe(
    name: Name,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Describe a topic: all versions of its schema, its partitions, its consumer groups.

    Examples:

        headrace topic describe orders --data ./data

        headrace topic describe shop/orders --address node1:7654

        headrace topic describe orders --json | jq '.partitions[].end'
    """
    with opened(data, address, timeout) as log:
        topic = log.topic(name)
        found = described(topic)
    if as_json:
        print_json(found)
    else:
        print_described(found, topic.retention)


@topics.command("alter")
def alter(
    name: Name,
    retention: Retention = None,
    partitions: Annotated[
        int | None, typer.Option(help="New number of partitions; it can only grow.")
    ] = None,
    add_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="Append a nullable column; may be repeated."),
    ] = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Alter a topic's retention, partitions or columns.

    --retention changes only the limits it names; `forever` lifts both. Adding partitions remaps
    keys: new rows of a key may go to another partition than its old ones. Existing rows read as
    null in a new column.

    Examples:

        headrace topic alter orders --retention 30d --data ./data

        headrace topic alter orders --partitions 8

        headrace topic alter orders --add-column note:string --add-column paid_at:timestamp
    """
    kept = kept_of(retention or [])
    if not retention and partitions is None and not add_column:
        hint = "Add --retention, --partitions or --add-column"
        raise BadRequest("nothing to alter", hint=hint)
    with opened(data, address, timeout) as log:
        topic = log.topic(name)
        more = _more_partitions(topic, partitions)
        wider = _with_columns(topic, add_column or [])
        for line in _altered(topic, kept, more, wider):
            say(line)
        if as_json:
            print_json(described(topic))


@topics.command("delete")
def delete(
    name: Name,
    wait_erased: Annotated[
        bool,
        typer.Option(
            "--wait-erased", help="Wait until no file of the log holds bytes of its rows."
        ),
    ] = False,
    erase_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"With --wait-erased: how long to wait; {ERASE_TIMEOUT} by default.",
        ),
    ] = None,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed even if the topic does not exist.")
    ] = False,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Permanently delete a topic and all its rows. Asks you to type its name.

    With --wait-erased it returns once no file of the log holds bytes of its rows, and reports
    the files it waits for. On a timeout it exits with 5 and names them: the topic is deleted,
    and the command can be repeated with --if-exists, even after a crash.

    Examples:

        headrace topic delete orders --data ./data

        headrace topic delete shop/orders --yes --wait-erased

        headrace topic delete orders --yes --if-exists --wait-erased --json
    """
    longest = _erase_timeout(erase_timeout, wait_erased=wait_erased)
    with opened(data, address, timeout) as log:
        topic = _existing(log, name, if_exists=if_exists, wait_erased=wait_erased)
        if topic is not None:
            rows = sum(each.row_count for each in topic.bounds())
            if not yes:
                say(f"Topic {topic.name} has {rows:,} rows in {_partitions(topic.partitions)}.")
            confirm_name("topic", name, yes=yes)
            topic.delete()
            said = f"Deleted topic {topic.name} with {rows:,} rows."
        else:
            said = f"Topic {name} does not exist (already deleted?)."
        shown = TopicDeleted(topic=str(parse_topic(name)), deleted=topic is not None)
        if not as_json:
            say(said)
        if wait_erased:
            shown = _erased(log, shown, longest, name, as_json=as_json)
        if as_json:
            print_json(shown)


def _schema(
    words: str | None, file: Path | None, like: str | None, delimiter: str | None
) -> pa.Schema:
    if sum(each is not None for each in (words, file, like)) != 1:
        raise BadRequest(
            "exactly one schema is required",
            hint="Use one of --schema id:int64,…, --schema-file FILE or --like FILE",
        )
    if delimiter is not None and like is None:
        raise BadRequest("--delimiter applies only to a CSV given with --like")
    if words is not None:
        return schema_from_words(words)
    if file is not None:
        return schema_from_file(file)
    assert like is not None
    with reading(like) as source:
        return schema_in(source, format_of(source, None), delimiter)


def _erase_timeout(given: str | None, *, wait_erased: bool) -> str:
    """Validate the timeout before the topic is deleted."""
    if given is None:
        return ERASE_TIMEOUT
    if not wait_erased:
        raise BadRequest("--erase-timeout requires --wait-erased", hint="Add --wait-erased")
    erase_seconds(given)
    return given


def _existing(
    log: headrace.Log, name: str, *, if_exists: bool, wait_erased: bool
) -> headrace.Topic | None:
    """Return the topic; None if it does not exist and `if_exists` allows that."""
    try:
        return log.topic(name)
    except TopicUnknown as error:
        if if_exists:
            return None
        if wait_erased:
            raise TopicUnknown(
                Exception.__str__(error),
                hint="If it was already deleted, add --if-exists to wait for its leftovers",
            ) from None
        raise


def _erased(
    log: headrace.Log, shown: TopicDeleted, timeout: str, name: str, *, as_json: bool
) -> TopicDeleted:
    """Wait until nothing is left, and report the files waited for whenever they change."""
    left: list[UnerasedFile] = []

    def told(found: Sequence[Unerased]) -> None:
        before, now = set(left), [UnerasedFile(path=one.path, why=one.why) for one in found]
        left[:] = now
        if before and {one.path for one in before} == {one.path for one in now}:
            return
        if now:
            files = "1 file" if len(now) == 1 else f"{len(now)} files"
            say(f"Waiting for {files}. {now[0].path}: {now[0].why}")

    try:
        log.erase_deleted(erase_timeout=timeout, told=told)
    except NotErased as error:
        if as_json:
            print_json(structs.replace(shown, erased=False, left=left))
        again = f"headrace topic delete {name} --if-exists --wait-erased"
        raise NotErased(
            Exception.__str__(error),
            hint=f"The topic is deleted. Resolve that, then wait again: {again}",
        ) from None
    if not as_json:
        say("No file of the log holds bytes of deleted topics any more.")
    return structs.replace(shown, erased=True)


def _created(log: headrace.Log, name: str) -> int | None:
    """Return the life of an existing topic, or None."""
    try:
        return log.topic(name).created
    except TopicUnknown:
        return None


@contextmanager
def _existing_told(name: str, *, if_not_exists: bool) -> Iterator[None]:
    """Add a hint to the error about an existing topic."""
    try:
        yield
    except TopicExists as error:
        hint = "Choose another name, or add --if-not-exists to use it"
        if if_not_exists:
            alter = f"headrace topic alter {name} --add-column …"
            hint = f"`headrace topic describe {name}` shows it; `{alter}` adds to it"
        raise TopicExists(Exception.__str__(error), hint=hint) from None


def _tell_created(topic: headrace.Topic, *, is_new: bool, as_json: bool) -> None:
    columns = columns_of(topic.schema)
    if as_json:
        print_json(
            TopicCreated(
                topic=topic.name,
                created=is_new,
                partitions=topic.partitions,
                key=topic.key,
                retention_seconds=seconds_of(topic.retention),
                retention_size=topic.retention.size,
                columns=columns,
            )
        )
        return
    what = f"Created topic {topic.name}" if is_new else f"Topic {topic.name} already exists"
    say(f"{what}: {_partitions(topic.partitions)}, kept {topic.retention}.")
    print_columns(columns)


def _more_partitions(topic: headrace.Topic, wanted: int | None) -> int:
    if wanted is None:
        return 0
    if wanted <= topic.partitions:
        raise BadRequest(
            f"--partitions {wanted}: topic {topic.name} has {topic.partitions}",
            hint="Partitions can only be added; give the new total",
        )
    return wanted - topic.partitions


def _with_columns(topic: headrace.Topic, added: list[str]) -> pa.Schema | None:
    """Return the new schema. An invalid one is refused before anything changes."""
    if not added:
        return None
    new = schema_from_words(",".join(part for each in added for part in split_columns(each)))
    for field in new:
        if field.name in topic.schema.names:
            hint = f"`headrace topic describe {topic.name}` shows its columns"
            raise BadRequest(f"column {field.name!r} already exists", hint=hint)
    wider = pa.schema([*topic.schema, *new])
    check_evolution(topic.schema, canonical(wider))
    return wider


def _altered(
    topic: headrace.Topic, kept: KeptFor, more: int, wider: pa.Schema | None
) -> list[str]:
    """Change the topic, and return a line for each change."""
    said = []
    if kept != KeptFor():
        topic.alter(
            **({} if kept.age is None else {"retention": kept.age or None}),
            **({} if kept.size is None else {"retention_size": kept.size or None}),
        )
        said.append(f"Topic {topic.name} is now kept {topic.retention}.")
    if wider is not None:
        topic.evolve(wider)
        said.append(f"Its schema is now at version {max(topic.schemas)}.")
    if more:
        topic.add_partitions(more)
        said.append(f"It now has {_partitions(topic.partitions)}.")
    return said


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
