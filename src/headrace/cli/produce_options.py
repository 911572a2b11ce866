"""The options of `headrace produce`."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.formats import Format

Topic = Annotated[str, typer.Argument(help="`orders`, or `shop/orders`.")]
File = Annotated[str, typer.Argument(help="Rows; - is standard input.")]
How = Annotated[
    Format | None,
    typer.Option(
        "--format", help="How rows are written; told from the bytes or the name if not said."
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHAR", help="Of CSV: what separates fields, or tab; a comma if not said."
    ),
]
Create = Annotated[bool, typer.Option("--create", help="Create the topic, if it is not there.")]
Partitions = Annotated[
    int | None, typer.Option(min=1, help="With --create: how many partitions it has.")
]
Key = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --create: what chooses a partition.")
]
Partition = Annotated[
    int | None, typer.Option(min=0, help="Where all rows go; by key or in turns if not said.")
]
Ledger = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="A file that gets a line for each acknowledged batch."),
]
