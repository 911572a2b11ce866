"""`headrace read`: rows of a topic, as a table or in a format for other programs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.cli import read_options as options
from headrace.cli.output import say, words
from headrace.cli.place import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.read_output import Shown, output_to, shown_as
from headrace.cli.read_plan import Plan, Wish, plan_of
from headrace.client.where.words import BadWhere


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("read")(read)


def read(
    topic: options.Topic,
    start: options.From = None,
    end: options.To = None,
    tail: options.Tail = None,
    limit: options.Limit = None,
    follow: options.Follow = False,
    partition: options.Partitions = None,
    where: options.Condition = None,
    columns: options.Columns = None,
    no_system: options.NoSystem = False,
    kind: options.How = None,
    output: options.Output = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: options.AsJson = False,
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


def _run(plan: Plan, shown: Shown, output: Path | None) -> None:
    count = _print(plan, shown, output)
    if output is None and shown is Shown.TABLE and not count:
        say("no rows")


def _names(columns: str) -> Iterator[str]:
    return (name.strip() for name in columns.split(","))


def _print(plan: Plan, shown: Shown, output: Path | None) -> int:
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
def _progress(plan: Plan, output: Path | None) -> Iterator[Callable[[int], None]]:
    """Show how far it is, to a person who waits for a file."""
    if output is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = (SpinnerColumn(), BarColumn()) if plan.row_count else (SpinnerColumn(),)
    rows = TextColumn("{task.completed:,.0f} rows")
    with Progress(*shown, rows, TimeElapsedColumn(), console=words(), transient=True) as bar:
        task = bar.add_task("", total=plan.row_count)
        yield lambda count: bar.update(task, completed=count)
