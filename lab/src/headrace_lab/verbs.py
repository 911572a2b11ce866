"""Every command of the lab: its module, loaded when it is typed, and its line of help."""

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from headrace.cli.verbs import Command

# As in `headrace.cli.verbs`, which shows these beside its own.
LINES: Final = {
    "bench": "Measure a part of Headrace beside the machine's own limit.",
    "chaos": "Kill processes at named moments, and look for rows lost, doubled or invented.",
    "sim": "Simulate whole groups of replicas under faults, and look for what must never be.",
}


def load(word: str) -> "Command":
    """Load the module of one command."""
    return cast("Command", import_module(f"headrace_lab.commands.{word}"))
