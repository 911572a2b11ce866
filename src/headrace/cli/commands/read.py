"""`headrace read`: print rows of a topic, as a table or in a machine-readable format."""

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

_WHICH: Final = "Rows"
_HOW: Final = "Output"

Topic = Annotated[str, typer.Argument(help="The topic: `orders`, or `shop/orders`.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help=f"First row of each partition: {PLACES}. "
        "By default earliest; latest with --follow.",
        rich_help_panel=_WHICH,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="Stop before this position; by default at the current end.",
        rich_help_panel=_WHICH,
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Only the last N rows of each partition; --where then filters these.",
        rich_help_panel=_WHICH,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="At most N rows in total.", rich_help_panel=_WHICH),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Keep printing new rows until Ctrl-C.", rich_help_panel=_WHICH
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        min=0,
        help="Only this partition; may be repeated.",
        rich_help_panel=_WHICH,
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Only rows that match: comparisons, and, or, not, in (…), is null.",
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
        "--no-system", help="Omit _partition, _offset and _timestamp.", rich_help_panel=_HOW
    ),
]
How = Annotated[
    Shown | None,
    typer.Option(
        "--format",
        help="By default from the name of --output; a table on a terminal, NDJSON in a pipe.",
        rich_help_panel=_HOW,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file; it appears once it is complete.",
        rich_help_panel=_HOW,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The same as --format ndjson: one JSON object per row.",
        rich_help_panel=_HOW,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
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
    """Print rows of a topic, by partition and offset, or as they arrive with --follow.

    Rows are read in bounded memory and printed as soon as they arrive. In JSON and CSV, times
    are ISO 8601 in UTC and bytes are base64, as `headrace produce` accepts them. Exits with 0
    if the pipe is closed, and with 130 on Ctrl-C; a file written with --follow is complete.

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
    """Print rows and count them. With --follow, an interrupt completes the file first."""
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
        say(f"wrote 1 row to {output}" if count == 1 else f"wrote {count:,} rows to {output}")
    if interrupt is not None:
        raise interrupt
    return count


@contextmanager
def _progress(plan: ReadPlan, output: Path | None) -> Iterator[Callable[[int], None]]:
    """Show the progress of writing a file, on a terminal."""
    if output is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = (SpinnerColumn(), BarColumn()) if plan.row_count else (SpinnerColumn(),)
    rows = TextColumn("{task.completed:,.0f} rows")
    with Progress(*shown, rows, TimeElapsedColumn(), console=words(), transient=True) as bar:
        task = bar.add_task("", total=plan.row_count)
        yield lambda count: bar.update(task, completed=count)
