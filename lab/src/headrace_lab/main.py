"""The `headrace-lab` command: the commands of the lab alone; `headrace` has them as well."""

import typer

from headrace.cli.main import run
from headrace_lab import verbs


def main() -> None:
    """Run one command of the lab."""
    run(made)


def made(word: str | None = None) -> typer.Typer:
    """Return the app: with the command `word`, or with all of them."""
    app = typer.Typer(
        name="headrace-lab",
        help="What breaks and measures Headrace: simulator, chaos and benches.",
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
