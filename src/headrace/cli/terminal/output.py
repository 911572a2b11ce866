"""Output of commands: data to standard output, messages to standard error.

With `--json` a command prints one JSON object: a struct of the command or of a lower package.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TextIO, cast

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.terminal.exits import STANDARD_OUTPUT, Cancelled, PipeClosed
from headrace.errors import StorageFailed

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

_WIDTH_OF_A_FILE = 10_000  # lines in a pipe are not folded


class JsonShape(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a command with --json. Fields may be added, and keep their meaning."""


def print_json(value: msgspec.Struct) -> None:
    """Print one object and nothing else; indented on a terminal."""
    data = msgspec.json.encode(value, order="deterministic")
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    out = _Output()
    out.write(data.decode() + "\n")
    out.flush()


def print_table(heads: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: the first column left-aligned, numbers right-aligned."""
    console().print(table_of(heads, lines, title))


def table_of(heads: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table as `print_table` prints it."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        is_number = number > 0 and all(_is_number(line[number]) for line in lines)
        table.add_column(head, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def console() -> Console:
    """Return the console for data. It honours NO_COLOR, and folds no lines in a pipe."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=cast("TextIO", _Output()),
        highlight=False,
        emoji=False,  # `:x:` in a value is not an emoji
        soft_wrap=not is_terminal,
        width=None if is_terminal else _WIDTH_OF_A_FILE,
    )


class _Output:
    """Standard output. Reports failed writes, except to a closed pipe."""

    def write(self, text: str) -> int:
        with _told():
            return sys.stdout.write(text)

    def flush(self) -> None:
        with _told():
            sys.stdout.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stdout, name)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise PipeClosed from None
    except OSError as error:
        hint = "Free some space at its destination, and retry"
        raise StorageFailed(STANDARD_OUTPUT, "write", error, hint=hint) from error


def words() -> Console:
    """Return the console for messages: questions, progress, results."""
    return Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one message to the user."""
    words().print(escape(text))


def confirm_name(what: str, name: str, *, yes: bool) -> None:
    """Have the name typed before a permanent deletion. Raises Cancelled if it differs."""
    said = f"This permanently deletes {what} {name}."
    otherwise = f"{what} {name} was not deleted"
    typed(said, name, otherwise, yes=yes)


def typed(said: str, name: str, otherwise: str, *, yes: bool) -> None:
    """Print `said`, and have a name typed. Raises Cancelled(otherwise) if it differs."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Cancelled(otherwise, hint="Add --yes to skip the confirmation")
    say(f"{said} Type its name to continue:")
    if sys.stdin.readline().strip() != name:
        raise Cancelled(otherwise)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm a change. Raises Cancelled if they do not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Cancelled("nothing was changed", hint="Add --yes to skip the confirmation")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("nothing was changed")


def _is_number(text: str) -> bool:
    return (
        text.replace(",", "").replace(".", "").lstrip("-").split(" ")[0].isdigit() or not text
    )
