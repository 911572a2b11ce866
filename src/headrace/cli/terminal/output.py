"""What a command prints: data to standard output, words to standard error.

With `--json` a command prints one JSON object: a struct, of the command or of the room below.
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
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_WIDTH_OF_A_FILE = 10_000  # lines that go into a pipe are not folded


class JsonShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a command prints with --json. Fields may be added, and keep their meaning."""


def print_json(value: msgspec.Struct) -> None:
    """Print one object and nothing else; a person gets it indented."""
    data = msgspec.json.encode(value, order="deterministic")
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    out = _Output()
    out.write(data.decode() + "\n")
    out.flush()


def print_table(heads: Sequence[str], lines: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: the first column to the left, numbers to the right."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        is_number = number > 0 and all(_is_number(line[number]) for line in lines)
        table.add_column(head, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    console().print(table)


def console() -> Console:
    """Return where data goes. It heeds NO_COLOR, and folds nothing in a pipe."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=cast("TextIO", _Output()),
        highlight=False,
        emoji=False,  # `:x:` in a value is no picture
        soft_wrap=not is_terminal,
        width=None if is_terminal else _WIDTH_OF_A_FILE,
    )


class _Output:
    """Standard output. What cannot be printed is told; that nobody reads any more is not."""

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
        hint = "Make room where it goes, and repeat"
        raise StorageFailed(STANDARD_OUTPUT, "write", error, hint=hint) from error


def words() -> Console:
    """Return where words go: questions, progress, what was done."""
    return Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """Say one thing to the person."""
    words().print(escape(text))


def confirm_name(what: str, name: str, *, yes: bool) -> None:
    """Have the name typed before something goes for ever. Cancelled if it is another."""
    said, otherwise = f"This deletes {what} {name} for ever.", f"{what} {name} is not deleted"
    typed(said, name, otherwise, yes=yes)


def typed(said: str, name: str, otherwise: str, *, yes: bool) -> None:
    """Say what will happen, and have a name typed. Cancelled, `otherwise`, if it is another."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Cancelled(otherwise, hint="Add --yes to do it without a question")
    say(f"{said} Type its name to go on:")
    if sys.stdin.readline().strip() != name:
        raise Cancelled(otherwise)


def confirm(question: str, *, yes: bool) -> None:
    """Have a person say yes before something is changed. Cancelled if they do not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Cancelled("nothing is changed", hint="Add --yes to do it without a question")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("nothing is changed")


def _is_number(text: str) -> bool:
    return (
        text.replace(",", "").replace(".", "").lstrip("-").split(" ")[0].isdigit() or not text
    )
