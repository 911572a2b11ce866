"""The `headrace` command: joins the commands and translates what they raise."""

import sys
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import (
    bench,
    completion,
    config,
    demo,
    doctor,
    group,
    inspect,
    pipeline,
    produce,
    prove,
    read,
    serve,
    sim,
    status,
    topic,
)
from headrace.cli.exits import Exit, exit_code
from headrace.errors import HeadraceError

# Each command's module puts itself on the app with `register(app)`.
COMMANDS = (
    bench,
    completion,
    config,
    demo,
    doctor,
    group,
    inspect,
    pipeline,
    produce,
    prove,
    read,
    serve,
    sim,
    status,
    topic,
)

app = typer.Typer(
    name="headrace",
    help="A durable, replicated log for Arrow data that feeds Spark.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run one command and exit with its code. What Headrace raises is told, not traced."""
    try:
        app()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


for command in COMMANDS:
    command.register(app)
