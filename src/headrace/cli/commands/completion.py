"""`headrace completion`: print a script that completes commands and options in a shell."""

import os
from enum import StrEnum
from typing import Annotated

import typer

# Typer keeps these private: it offers them only as options of a whole app, which install into
# the user's shell. The bound on its version in pyproject.toml protects both names.
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from headrace.cli.main import COMPLETES

PROGRAM = "headrace"


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command to `app`, and answer a script that asks for completions."""
    app.command("completion")(completion)
    if COMPLETES in os.environ:
        completion_init()


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to print the script for.")],
) -> None:
    """Print a shell completion script for headrace's commands and options.

    The script asks the installed program, so it stays correct after an upgrade. Load it in the
    shell's startup file.

    Examples:

        headrace completion bash > ~/.local/share/bash-completion/completions/headrace

        headrace completion zsh > ~/.zfunc/_headrace

        headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    typer.echo(
        get_completion_script(prog_name=PROGRAM, complete_var=COMPLETES, shell=shell.value)
    )
