"""`headrace completion`: the script that lets a shell complete commands and options."""

import os
from enum import StrEnum
from typing import Annotated

import typer

# Typer keeps these to itself, and offers them only as options of a whole app, which install
# into a person's shell. Its bound in pyproject.toml holds both names.
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from headrace.cli.main import COMPLETES

PROGRAM = "headrace"


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Put the command on `app`, and have what a script asks answered."""
    app.command("completion")(completion)
    if COMPLETES in os.environ:
        completion_init()


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to read it.")],
) -> None:
    """Print the script that completes headrace's commands and options in a shell.

    The script asks the installed program, so it stays right when that changes. Load it where
    the shell starts.

    Examples:

        headrace completion bash > ~/.local/share/bash-completion/completions/headrace

        headrace completion zsh > ~/.zfunc/_headrace

        headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    typer.echo(
        get_completion_script(prog_name=PROGRAM, complete_var=COMPLETES, shell=shell.value)
    )
