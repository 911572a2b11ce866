"""`headrace read`: rows of a topic, as a table or in a format for other programs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.cli.query.read_output import Shown, output_to, shown_as
from headrace.cli.query.read_plan import ReadPlan, Wish, plan_of
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import say, words
from headrace.cli.terminal.times import PLACES
from headrace.client.where.words import BadWhere

_WHICH: Final = "Which rows"
_HOW: Final = "How they are written"

Topic = Annotated[str, typer.Argument(help="`orders`, or `shop/orders`.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help=f"The first row of each partition: {PLACES}. "
        "By default earliest; latest with --follow.",
        rich_help_panel=_WHICH,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="The place before which it ends; by default the end as it is now.",
        rich_help_panel=_WHICH,
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="The last N rows of each partition; of them, those that --where wants.",
        rich_help_panel=_WHICH,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="At most N rows in all.", rich_help_panel=_WHICH),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Go on with new rows until Ctrl-C.", rich_help_panel=_WHICH
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", min=0, help="One partition; may be repeated.", rich_help_panel=_WHICH
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Only rows for which it holds: comparisons, and, or, not, in (…), is null.",
        rich_help_panel=_WHICH,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Only these columns.", rich_help_panel=_HOW),
]
NoSystem = Annotated[
    bool,
    typer.Option(
        "--no-system", help="Without _partition, _offset and _timestamp.", rich_help_panel=_HOW
    ),
]
How = Annotated[
    Shown | None,
    typer.Option(
        "--format",
        help="By default by the name of --output; a table on a terminal, NDJSON in a pipe.",
        rich_help_panel=_HOW,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="A file, which is there once it is whole.",
        rich_help_panel=_HOW,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The same as --format ndjson: one JSON object a row.",
        rich_help_panel=_HOW,
    ),
]


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("read")(read)


def read(
    topic: Topic,
    start: From = None,
    end: To = None,
    tail: Tail = None,
    limit: Limit = None,
    follow: Follow = False,
    partition: Partitions = None,
    where: Condition = None,
    columns: Columns = None,
    no_system: NoSystem = False,
    kind: How = None,
    output: Output = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print rows of a topic: by partition and offset, or as they come with --follow.

    Rows are read in bounded memory, and printed as soon as they are there. In JSON and CSV,
    times are ISO 8601 in UTC and bytes are base64, as `headrace produce` takes them. A closed
    pipe ends it with 0; Ctrl-C with 130, and a file that follows is whole then.

    Examples:

        headrace read orders --tail 20 --data ./data

        headrace read orders --from -10m --where "amount > 10 and customer == 'ann'" --follow

        headrace read orders --no-system --output orders.parquet
    """
    shown = shown_as(kind, output, as_json=as_json)
    wish = Wish(
        partitions=tuple(partition or ()),
        start=start,
        end=end,
        tail=tail,
        limit=limit,
        follow=follow,
        columns=None if columns is None else tuple(_names(columns)),
        where=where,
        no_system=no_system,
    )
    with opened(data, address, timeout) as log:
        try:
            _run(plan_of(log.topic(topic), wish), shown, output)
        except BadWhere as error:
            raise error.called("--where") from None


def _run(plan: ReadPlan, shown: Shown, output: Path | None) -> None:
    count = _print(plan, shown, output)
    if output is None and shown is Shown.TABLE and not count:
        say("no rows")


def _names(columns: str) -> Iterator[str]:
    return (name.strip() for name in columns.split(","))


def _print(plan: ReadPlan, shown: Shown, output: Path | None) -> int:
    """Print rows and count them. An interrupt of what follows finishes its file first."""
    count, interrupt = 0, None
    with output_to(output, shown, plan.schema) as sink:
        try:
            with _progress(plan, output) as on_progress:
                for batch in plan.rows():
                    sink.write(batch)
                    count += batch.num_rows
                    on_progress(count)
        except KeyboardInterrupt as error:
            if not plan.wish.follow:
                raise
            interrupt = error
    if output is not None:
        say(f"1 row is in {output}" if count == 1 else f"{count:,} rows are in {output}")
    if interrupt is not None:
        raise interrupt
    return count


@contextmanager
def _progress(plan: ReadPlan, output: Path | None) -> Iterator[Callable[[int], None]]:
    """Show how far it is, to a person who waits for a file."""
    if output is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = (SpinnerColumn(), BarColumn()) if plan.row_count else (SpinnerColumn(),)
    rows = TextColumn("{task.completed:,.0f} rows")
    with Progress(*shown, rows, TimeElapsedColumn(), console=words(), transient=True) as bar:
        task = bar.add_task("", total=plan.row_count)
        yield lambda count: bar.update(task, completed=count)
