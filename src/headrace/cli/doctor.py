"""`headrace doctor`: say what is wrong with a log, and bring its rows into a new one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.cli.doctor_shape import report_of, salvage_report_of
from headrace.cli.doctor_view import print_examination, print_salvage
from headrace.cli.exits import Exit, NotFound
from headrace.cli.output import Json, print_json, say, words
from headrace.doctor.examine import Examination, Tell, examine, say_nothing
from headrace.doctor.salvage import salvage as bring_over


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("doctor")(doctor)


def doctor(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The data directory to look at.")
    ],
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Check every byte, in several processes."),
    ] = False,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage",
            metavar="NEW_DIR",
            file_okay=False,
            help="Make a new log there, with every row of DIR that can be read and proven.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at a log's files and say what is wrong, what that means, and what can be done.

    Nothing in DIR is changed, and a process may go on using it. The journal, all headers and
    all tables are checked; --deep also reads every byte of segments and carry files. Exits with
    0 if there is no damage (notes do no harm) and with 6 if there is.

    With --salvage, DIR must not be in use and stays as it is; NEW_DIR must be new or empty. It
    gets all topics, schemas, settings, consumer groups' cursors and rows that can be proven,
    and salvage.json, which says which old rows are which new ones and which are missing. If it
    is interrupted, run it again: it begins anew. Exits with 6 if something could not be
    brought over.

    Examples:

        headrace doctor ./data

        headrace doctor ./data --deep --json | jq '.findings[].where'

        headrace doctor ./data --salvage ./data-new
    """
    if not directory.is_dir():
        raise NotFound(f"{str(directory)!r} is not there", hint="Name a node's data directory")
    if salvage is not None:
        with _progress(quiet=as_json) as tell:
            account = bring_over(str(directory), str(salvage), tell=tell)
        if as_json:
            print_json(salvage_report_of(account, directory, salvage))
        else:
            print_salvage(account, salvage)
        raise typer.Exit(Exit.OK if account.is_whole else Exit.INTEGRITY)
    with _progress(quiet=as_json) as tell:
        found = examine(str(directory), deep=deep, tell=tell)
    _require_log(found, directory)
    if as_json:
        print_json(report_of(found, directory))
    else:
        if found.who.holder.is_held:
            say(f"Process {found.who.holder.pid} uses {directory}: figures may move.")
        print_examination(found, directory)
    raise typer.Exit(Exit.INTEGRITY if found.damage else Exit.OK)


def _require_log(found: Examination, directory: Path) -> None:
    if found.cluster is None:
        raise NotFound(
            f"{directory} holds no log", hint="Name the directory that `headrace serve` has"
        )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """Show how far long work is, to a person who watches."""
    console = words()
    if quiet or not console.is_terminal:
        yield say_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield tell
