"""A pipeline's file, as the commands take it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import Unavailable

if TYPE_CHECKING:
    from headrace.spark.definition import Definition

File = Annotated[Path, typer.Argument(help="The pipeline's TOML file.", dir_okay=False)]


def load(file: Path) -> "Definition":
    """Read the file. Unavailable if what pipelines need is not installed."""
    try:
        from headrace.spark.definition import load as read
        from headrace.spark.record import Record  # noqa: F401  # its packages are needed, too
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install what pipelines need: pip install 'headrace[spark,delta]'",
        ) from error
    return read(file)
