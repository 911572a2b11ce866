"""`headrace produce`: rows from a file or a pipe into a topic."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import headrace
from headrace.cli import produce_options as options
from headrace.cli.exits import exit_code
from headrace.cli.formats import STDIN, Source, format_of, reading
from headrace.cli.formats_open import Incoming, incoming
from headrace.cli.output import Json, Shape, print_json, say, words
from headrace.cli.place import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.produce_run import Sent, send_all, settle
from headrace.client.schemas import field_word
from headrace.errors import BadRequest, HeadraceError, TopicUnknown, Unknown

BATCH_ROWS: Final = 65_536  # rows come many at a time: a batch is full by its bytes


class Acknowledged(Shape, frozen=True, kw_only=True):
    """Rows `start` to before `end` of one partition, on disk."""

    partition: int
    start: int
    end: int


class Produced(Shape, frozen=True, kw_only=True):
    """What `produce` prints. `error` is why it ended early; what is counted is on disk."""

    topic: str
    rows: int
    ranges: list[Acknowledged]
    error: str | None


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("produce")(produce)


def produce(
    topic: options.Topic,
    file: options.File = STDIN,
    kind: options.How = None,
    delimiter: options.Delimiter = None,
    create: options.Create = False,
    partitions: options.Partitions = None,
    key: options.Key = None,
    partition: options.Partition = None,
    ledger: options.Ledger = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Append rows from a file, or from standard input, and say when they are on disk.

    NDJSON, CSV (with a head line), Parquet and Arrow IPC are taken, in bounded memory. Values
    are taken exactly or not at all. At a row that does not fit, everything before it is
    appended and nothing after it; the message says the line. With --create the schema is told
    from the first megabyte of rows; of a pipe, from what comes first.

    Examples:

        headrace produce orders orders.parquet --data ./data

        headrace produce orders orders.csv --create --partitions 4 --key customer

        tail -f app.ndjson | headrace produce visits - --address node1:7654
    """
    if not create and (partitions is not None or key is not None):
        hint = "Add --create, or leave out --partitions and --key"
        raise BadRequest("partitions and key are those of a topic to be created", hint=hint)
    if file == STDIN and _is_typed():
        say("Reading rows from the terminal: one a line; Ctrl-D ends.")
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
    say(f"Topic {made.name} is created:")
    width = max(map(len, made.schema.names))
    for field in made.schema:
        say(f"  {field.name:<{width}}  {field_word(field)}")
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
        settle(producer, sent)  # what was sent is on its way; a second interrupt ends this, too
        _tell_count(sent, "before the interrupt")
        raise
    finally:
        with suppress(HeadraceError):  # it was told already, or nothing is open any more
            producer.close()
    return sent


def _tell(topic: str, sent: Sent, *, as_json: bool) -> None:
    """Say what is on disk. A failure comes after that, with its exit code."""
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
        say("Of the rows after them it is not known: look before you send them again.")
    raise typer.Exit(exit_code(sent.failure))


def _tell_count(sent: Sent, when: str) -> None:
    rows = "1 row" if sent.acknowledged == 1 else f"{sent.acknowledged:,} rows"
    places = "1 partition" if sent.partitions == 1 else f"{sent.partitions} partitions"
    say(f"{rows} acknowledged in {places}{' ' if when else ''}{when}")


@contextmanager
def _progress(source: Source) -> Iterator[Callable[[Sent], None]]:
    """Show how far it is, to a person at a terminal."""
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
