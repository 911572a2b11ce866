"""The `headrace` command: joins the commands and translates what they raise.

Each command's module puts itself on the app with `register(app)`. Only the one that was typed
is loaded, so that it starts quickly; help has a table of what the others do.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

import typer

from headrace import __version__
from headrace.cli import verbs
from headrace.cli.terminal.exits import (
    STANDARD_OUTPUT,
    Exit,
    PipeClosed,
    exit_code,
    from_os,
)
from headrace.errors import HeadraceError, StorageFailed

# Freed memory is kept for this many milliseconds, of large buffers for ten times as many.
KEEP_ARROW_MEMORY: Final = ("MIMALLOC_PURGE_DELAY", "5000")
COMPLETES: Final = "_HEADRACE_COMPLETE"  # a shell's script sets it to ask what may come next
VERSION: Final = "--version"  # it needs no command
HELP: Final = frozenset({"", "--help"})  # all that they need is a list
VERDICTS: Final = frozenset({"demo", "doctor", "inspect", "prove"})  # 0: it holds


def main() -> None:
    """Run one command of `headrace`."""
    run(made)


def run(make: Callable[[str | None], typer.Typer]) -> None:
    """Run one command and exit with its code. What Headrace raises is told, not traced."""
    _open_closed_streams()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        make(None if COMPLETES in os.environ else word)()
    except HeadraceError as error:
        if isinstance(error, StorageFailed) and error.path == STANDARD_OUTPUT:
            _forget_output()
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(exit_code(error))
    except OSError as error:
        failure = from_os(error)
        typer.echo(f"headrace: {failure}", err=True)
        sys.exit(exit_code(failure))
    except PipeClosed:
        _forget_output()
        is_verdict = word in VERDICTS or word in verbs.added()
        sys.exit(Exit.FAILURE if is_verdict else Exit.OK)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


def _open_closed_streams() -> None:
    """Put nothing where a standard stream is closed: else a socket may get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
            if name != "stdin":  # `produce` says that it is closed
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _forget_output() -> None:
    """What is still to be printed goes nowhere, without a word at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def made(word: str | None = None) -> typer.Typer:
    """Return the app: with what typing `word` first needs, by default with every command."""
    app = typer.Typer(
        name="headrace",
        help="A durable log for Arrow data that feeds Spark.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    if word == "serve":
        # Arrow's allocator reads it when it is loaded: `server/memory.py` says why.
        os.environ.setdefault(*KEEP_ARROW_MEMORY)
    if word == VERSION:
        return app
    if word in verbs.LINES:
        verbs.load(word).register(app)
    elif word in HELP:
        verbs.list_on(app)
    elif word is None or word.startswith("-"):
        for each in verbs.all_lines():
            verbs.load(each).register(app)
    elif word in verbs.added():
        verbs.load(word).register(app)
    else:
        verbs.list_on(app)  # to say that there is no such command
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            VERSION, callback=_print_version, is_eager=True, help="Print the version."
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
