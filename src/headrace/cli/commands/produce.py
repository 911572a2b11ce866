"""`headrace produce`: append rows from a file or a pipe to a topic."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import headrace
from headrace.cli.formats.formats import STDIN, Format, InputFile, format_of, reading
from headrace.cli.formats.open_rows import Incoming, incoming
from headrace.cli.terminal.exits import exit_code
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, print_json, say, words
from headrace.client.values.answers import Range, merged
from headrace.client.write.schemas import field_word
from headrace.errors import BadRequest, HeadraceError, TopicUnknown, Unknown

FLUSH_ROWS: Final = 1_000_000  # between two flushes
FLUSH_SIZE: Final = 32 * 1024 * 1024  # bytes in flight: bounds the memory for a large file
_TRIES: Final = 3  # flushes after a failure: each reports one error, and may hide another


@dataclass(slots=True)
class Sent:
    """Which rows were sent and acknowledged so far."""

    ranges: tuple[Range, ...] = ()  # acknowledged, sorted
    row_count: int = 0  # passed to the producer
    failure: HeadraceError | None = None
    _flushed: int = field(default=0)

    @property
    def acknowledged(self) -> int:
        return sum(each.row_count for each in self.ranges)

    @property
    def partitions(self) -> int:
        return len({each.partition for each in self.ranges})


def send_all(
    producer: headrace.Producer,
    batches: Iterable[pa.RecordBatch],
    sent: Sent,
    on_progress: Callable[[Sent], None],
) -> None:
    """Send all batches and wait until they are on disk. A failure is stored in `sent`."""
    flushed = size = 0
    try:
        for batch in batches:
            producer.send(batch)
            sent.row_count += batch.num_rows
            size += batch.nbytes
            if sent.row_count - flushed >= FLUSH_ROWS or size >= FLUSH_SIZE:
                flush(producer, sent)
                flushed, size = sent.row_count, 0
            on_progress(sent)
        flush(producer, sent)
    except HeadraceError as error:
        sent.failure = error
        settle(producer, sent)
    on_progress(sent)


def flush(producer: headrace.Producer, sent: Sent) -> None:
    """Wait until everything sent is acknowledged, and count it."""
    sent.ranges = merged([*sent.ranges, *producer.flush().ranges])


def settle(producer: headrace.Producer, sent: Sent) -> None:
    """After a failure, find out which rows were acknowledged anyway."""
    for _ in range(_TRIES):
        try:
            flush(producer, sent)
        except HeadraceError as error:
            sent.failure = sent.failure or error
        else:
            return


Topic = Annotated[str, typer.Argument(help="The topic: `orders`, or `shop/orders`.")]
File = Annotated[str, typer.Argument(help="Input file; - is standard input.")]
How = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Input format; detected from the content or the file name by default.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHAR", help="CSV field separator: a character, or tab; a comma by default."
    ),
]
Create = Annotated[
    bool, typer.Option("--create", help="Create the topic if it does not exist.")
]
Partitions = Annotated[
    int | None, typer.Option(min=1, help="With --create: number of partitions.")
]
Key = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="With --create: column that chooses the partition."),
]
Partition = Annotated[
    int | None,
    typer.Option(
        min=0, help="Partition for all rows; by default chosen by key, or round-robin."
    ),
]
Ledger = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write a line per acknowledged batch to this file."),
]


BATCH_ROWS: Final = 65_536  # high: a batch fills up by its bytes first


class Acknowledged(JsonShape, frozen=True, kw_only=True):
    """Rows from `start` to before `end` of one partition, on disk."""

    partition: int
    start: int
    end: int


class Produced(JsonShape, frozen=True, kw_only=True):
    """Output of `produce`. `error` says why it ended early; all counted rows are on disk."""

    topic: str
    rows: int
    ranges: list[Acknowledged]
    error: str | None


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("produce")(produce)


def produce(
    topic: Topic,
    file: File = STDIN,
    kind: How = None,
    delimiter: Delimiter = None,
    create: Create = False,
    partitions: Partitions = None,
    key: Key = None,
    partition: Partition = None,
    ledger: Ledger = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Append rows from a file or standard input, and report when they are on disk.

    Reads NDJSON, CSV (with a header row), Parquet and Arrow IPC in bounded memory. Values are
    converted exactly or rejected. If a row does not fit, all rows before it are appended and
    none after it; the message names the line. With --create the schema is inferred from the
    first megabyte of rows, or, in a pipe, from the rows that arrive first.

    Examples:

        headrace produce orders orders.parquet --data ./data

        headrace produce orders orders.csv --create --partitions 4 --key customer

        tail -f app.ndjson | headrace produce visits - --address node1:7654
    """
    if not create and (partitions is not None or key is not None):
        hint = "Add --create, or omit --partitions and --key"
        raise BadRequest("--partitions and --key apply only to a new topic", hint=hint)
    if file == STDIN and _is_typed():
        say("Reading rows from the terminal, one per line; press Ctrl-D to end.")
    with (
        reading(file) as source,
        incoming(source, format_of(source, kind), delimiter) as rows,
        opened(data, address, timeout, create=create) as log,
    ):
        target = _target(log, topic, rows, create=create, partitions=partitions, key=key)
        sent = _send(log, target, rows, partition, ledger)
    _tell(target.name, sent, as_json=as_json)


def _is_typed() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _target(
    log: headrace.Log,
    name: str,
    rows: Incoming,
    *,
    create: bool,
    partitions: int | None,
    key: str | None,
) -> headrace.Topic:
    try:
        return log.topic(name)
    except TopicUnknown as error:
        if not create:
            hint = f"{error.hint} " if error.hint else ""
            text = Exception.__str__(error)
            raise TopicUnknown(text, hint=f"{hint}Add --create to create it") from None
    made = log.create_topic(
        name, rows.schema(), partitions=partitions or 1, key=key, if_not_exists=True
    )
    say(f"Created topic {made.name}:")
    width = max(map(len, made.schema.names))
    for column in made.schema:
        say(f"  {column.name:<{width}}  {field_word(column)}")
    return made


def _send(
    log: headrace.Log,
    topic: headrace.Topic,
    rows: Incoming,
    partition: int | None,
    ledger: Path | None,
) -> Sent:
    sent = Sent()
    producer = log.producer(topic, batch_rows=BATCH_ROWS, partition=partition, ledger=ledger)
    try:
        with _progress(rows.source) as on_progress:
            send_all(producer, rows.batches(topic.schema), sent, on_progress)
    except KeyboardInterrupt:
        settle(producer, sent)  # rows are in flight; a second interrupt ends this, too
        _tell_count(sent, "before the interrupt")
        raise
    finally:
        with suppress(HeadraceError):  # already reported, or nothing is open
            producer.close()
    return sent


def _tell(topic: str, sent: Sent, *, as_json: bool) -> None:
    """Report what is on disk, then exit with the code of the failure, if any."""
    if as_json:
        ranges = [
            Acknowledged(partition=each.partition, start=each.start, end=each.end)
            for each in sent.ranges
        ]
        error = None if sent.failure is None else str(sent.failure)
        print_json(Produced(topic=topic, rows=sent.acknowledged, ranges=ranges, error=error))
    if sent.failure is None:
        if not as_json:
            _tell_count(sent, "")
        return
    say(f"headrace: {sent.failure}")
    _tell_count(sent, "before that")
    if isinstance(sent.failure, Unknown):
        say("The fate of the rows after them is unknown: check before you send them again.")
    raise typer.Exit(exit_code(sent.failure))


def _tell_count(sent: Sent, when: str) -> None:
    rows = "1 row" if sent.acknowledged == 1 else f"{sent.acknowledged:,} rows"
    places = "1 partition" if sent.partitions == 1 else f"{sent.partitions} partitions"
    say(f"{rows} acknowledged in {places}{' ' if when else ''}{when}")


@contextmanager
def _progress(source: InputFile) -> Iterator[Callable[[Sent], None]]:
    """Show the progress on a terminal."""
    if not sys.stderr.isatty() or (_is_typed() and source.size is None):
        yield lambda _: None
        return
    shown = (SpinnerColumn(), BarColumn()) if source.size else (SpinnerColumn(),)
    rate = TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s")
    with Progress(*shown, rate, TimeElapsedColumn(), console=words(), transient=True) as bar:
        task = bar.add_task("", total=source.size, rows=0, rate=0.0)

        def on_progress(sent: Sent) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = sent.row_count / elapsed if elapsed else 0.0
            place = source.file.tell() if source.size else 0
            bar.update(task, completed=place, rows=sent.row_count, rate=rate)

        yield on_progress
