"""Every command of `headrace`: its module, loaded when it is typed, and its line of help.

A distribution that is installed beside it may add commands: an entry point of the group
`headrace.commands` names a module with `LINES` and `load`, as here.
"""

from functools import cache
from importlib import import_module
from typing import Final, Protocol, cast

import typer

# What `headrace --help` says of each, without loading it. Each command's own help begins with
# the same sentence: a test compares them.
LINES: Final = {
    "completion": "Print the script that completes headrace's commands and options in a shell.",
    "config": "Show and check a node's settings.",
    "demo": "Write rows, kill -9 the node in the middle, and compare with what was "
    "acknowledged.",
    "doctor": "Look at a log's files and say what is wrong, what that means, and what can be "
    "done.",
    "group": "List, describe, reset and delete consumer groups.",
    "inspect": "Show one file of a log in words and tables, also if it is damaged.",
    "metadata": "Recover, or give up, what is missing from the metadata.",
    "pipeline": "Bring a topic into a Delta table, exactly once.",
    "produce": "Append rows from a file, or from standard input, and say when they are on "
    "disk.",
    "prove": "Show that log and table agree: each row once, nothing changed, nothing foreign.",
    "read": "Print rows of a topic: by partition and offset, or as they come with --follow.",
    "serve": "Run a node: durable appends and reads over TCP and a unix socket.",
    "spark": "Look at what Spark needs, and use it.",
    "status": "Show a node: whether it is ready, its topics, consumer groups' lag, disk and "
    "checkpoints.",
    "topic": "Create, list, describe, alter and delete topics.",
}


class Command(Protocol):
    """What a command's module offers."""

    def register(self, app: typer.Typer, /) -> None: ...


class Added(Protocol):
    """What the module of an entry point offers."""

    LINES: dict[str, str]

    def load(self, word: str, /) -> Command: ...


@cache
def added() -> dict[str, Added]:
    """Return the commands that other distributions add, each with the module that has it."""
    from importlib.metadata import entry_points  # a tenth of all that a page of help imports

    modules = [cast(Added, each.load()) for each in entry_points(group="headrace.commands")]
    return {word: module for module in modules for word in module.LINES if word not in LINES}


def load(word: str) -> Command:
    """Load the module of one command."""
    if word in LINES:
        return cast(Command, import_module(f"headrace.cli.commands.{word}"))
    return added()[word].load(word)


def all_lines() -> dict[str, str]:
    """Return the line of every command there is, in the order of the alphabet."""
    others = {word: module.LINES[word] for word, module in added().items()}
    return dict(sorted((LINES | others).items()))


def list_on(app: typer.Typer) -> None:
    """Put the names of all commands on `app`, and their lines: enough for a page of help."""
    for word, line in all_lines().items():
        app.command(word, help=line)(_nothing)


def _nothing() -> None:
    raise AssertionError("a command that is only listed was run")
