"""The lab's commands: the module of each, loaded on use, and its line of help."""

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from headrace.cli.verbs import Command

# As in `headrace.cli.verbs`, which lists these after its own.
LINES: Final = {
    "bench": "Measure a part of Headrace next to the machine's own limit.",
    "chaos": "Kill processes at named moments and check for lost, duplicated or invented rows.",
    "sim": "Simulate whole groups of replicas under faults and check their invariants.",
}


def load(word: str) -> "Command":
    """Load the module of one command."""
    return cast("Command", import_module(f"headrace_lab.commands.{word}"))
