"""The `headrace-lab` command: only the lab's commands; `headrace` has them, too."""

import typer

from headrace.cli.main import run
from headrace_lab import verbs


def main() -> None:
    """Run one of the lab's commands."""
    run(made)


def made(word: str | None = None) -> typer.Typer:
    """Return the app with the command `word`, or with all commands."""
    app = typer.Typer(
        name="headrace-lab",
        help="Break and measure Headrace: simulator, chaos and benches.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    for each in [word] if word in verbs.LINES else verbs.LINES:
        verbs.load(each).register(app)
    return app


def _nothing() -> None:
    pass
