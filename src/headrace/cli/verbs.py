"""Every command of `headrace`: its module, loaded on demand, and its line of help.

Another installed distribution may add commands: an entry point of the group
`headrace.commands` names a module with `LINES` and `load`, as here.
"""

from functools import cache
from importlib import import_module
from typing import Final, Protocol, cast

import typer

# The lines of `headrace --help`, shown without loading the commands. Each command's own help
# begins with the same sentence; a test compares them.
LINES: Final = {
    "completion": "Print a shell completion script for headrace's commands and options.",
    "config": "Show and check a node's settings.",
    "demo": "Write rows, kill -9 the node midway, and compare with what was acknowledged.",
    "doctor": "Check a log's files and report what is wrong, what it means and what to do.",
    "group": "List, describe, reset and delete consumer groups.",
    "inspect": "Show one file of a log as text and tables, even if it is damaged.",
    "metadata": "Recover or give up topics that are missing from the metadata.",
    "pipeline": "Load a topic into a Delta table, exactly once.",
    "produce": "Append rows from a file or standard input, and report when they are on disk.",
    "prove": "Prove that log and table agree: each row once, none changed, none foreign.",
    "read": "Print rows of a topic, by partition and offset, or as they arrive with --follow.",
    "serve": "Run a node: durable appends and reads over TCP and a unix socket.",
    "spark": "Check Spark's requirements, or open a Spark shell.",
    "status": "Show a node's readiness, topics, consumer lag, disk and checkpoints.",
    "topic": "Create, list, describe, alter and delete topics.",
}


class Command(Protocol):
    """Interface of a command's module."""

    def register(self, app: typer.Typer, /) -> None: ...


class Added(Protocol):
    """Interface of an entry point's module."""

    LINES: dict[str, str]

    def load(self, word: str, /) -> Command: ...


@cache
def added() -> dict[str, Added]:
    """Return the commands that other distributions add, each with its module."""
    from importlib.metadata import entry_points  # a tenth of the import time of --help

    modules = [cast(Added, each.load()) for each in entry_points(group="headrace.commands")]
    return {word: module for module in modules for word in module.LINES if word not in LINES}


def load(word: str) -> Command:
    """Load the module of one command."""
    if word in LINES:
        return cast(Command, import_module(f"headrace.cli.commands.{word}"))
    return added()[word].load(word)


def all_lines() -> dict[str, str]:
    """Return the help line of every command, sorted by name."""
    others = {word: module.LINES[word] for word, module in added().items()}
    return dict(sorted((LINES | others).items()))


def list_on(app: typer.Typer) -> None:
    """Add every command's name and help line to `app`: enough for --help."""
    for word, line in all_lines().items():
        app.command(word, help=line)(_nothing)


def _nothing() -> None:
    raise AssertionError("ran a command that is only listed")
