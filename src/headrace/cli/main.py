"""The `headrace` command: assembles the commands and turns exceptions into exit codes.

Each command's module adds itself to the app with `register(app)`. Only the module of the typed
command is loaded, so startup stays fast; `--help` lists the others from a static table.
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

# Milliseconds to keep freed memory; large buffers are kept ten times as long.
KEEP_ARROW_MEMORY: Final = ("MIMALLOC_PURGE_DELAY", "5000")
COMPLETES: Final = "_HEADRACE_COMPLETE"  # set by a shell's script to ask for completions
VERSION: Final = "--version"  # needs no command
HELP: Final = frozenset({"", "--help"})  # need only the list of commands
VERDICTS: Final = frozenset({"demo", "doctor", "inspect", "prove"})  # exit code 0: it holds


def main() -> None:
    """Run one command of `headrace`."""
    run(made)


def run(make: Callable[[str | None], typer.Typer]) -> None:
    """Run one command and exit with its code. Headrace's errors print without a traceback."""
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
    """Open closed standard streams on /dev/null, or a socket could get their number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            if name != "stdin":  # `produce` reports that it is closed
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _forget_output() -> None:
    """Discard the output still buffered, so that Python exits silently."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def made(word: str | None = None) -> typer.Typer:
    """Return the app with what the first word `word` needs; by default with every command."""
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
        # Arrow's allocator reads it at load time; see `server/memory.py`.
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
        verbs.list_on(app)  # enough for the error about an unknown command
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
    """Create `app`, with every command, on first access."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = made()
    return app
