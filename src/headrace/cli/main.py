"""The `headrace` command: joins the commands and translates what they raise.

Each command's module puts itself on the app with `register(app)`. The everyday ones are loaded
alone, so that they start quickly; help and the others load all.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Protocol

import typer

from headrace import __version__
from headrace.cli.exits import Exit, exit_code
from headrace.errors import HeadraceError


class Command(Protocol):
    """What a command's module offers."""

    def register(self, app: typer.Typer, /) -> None: ...


def main() -> None:
    """Run one command and exit with its code. What Headrace raises is told, not traced."""
    try:
        made(sys.argv[1] if len(sys.argv) > 1 else "")()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


def made(word: str = "") -> typer.Typer:
    """Return the app: with the command called `word` alone, or with all of them."""
    app = typer.Typer(
        name="headrace",
        help="A durable, replicated log for Arrow data that feeds Spark.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in _loaded(word):
        command.register(app)
    return app


def _loaded(word: str) -> Sequence[Command]:
    match word:
        case "serve":
            from headrace.cli import serve

            return (serve,)
        case "topic":
            from headrace.cli import topic

            return (topic,)
        case "produce":
            from headrace.cli import produce

            return (produce,)
        case "read":
            from headrace.cli import read

            return (read,)
        case "status":
            from headrace.cli import status

            return (status,)
        case _:
            from headrace.cli.commands import COMMANDS

            return COMMANDS


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def __getattr__(name: str) -> typer.Typer:
    """Make `app`, with every command, for those who ask for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = made()
    return app
