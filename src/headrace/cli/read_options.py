"""The options of `headrace read`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.read_output import Shown
from headrace.cli.times import PLACES

_WHICH: Final = "Which rows"
_HOW: Final = "How they are written"

Topic = Annotated[str, typer.Argument(help="`orders`, or `shop/orders`.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help=f"The first row of each partition: {PLACES}. "
        "By default earliest; latest with --follow.",
        rich_help_panel=_WHICH,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="The place before which it ends; by default the end as it is now.",
        rich_help_panel=_WHICH,
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="The last N rows of each partition; of them, those that --where wants.",
        rich_help_panel=_WHICH,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="At most N rows in all.", rich_help_panel=_WHICH),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Go on with new rows until Ctrl-C.", rich_help_panel=_WHICH
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", min=0, help="One partition; may be repeated.", rich_help_panel=_WHICH
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Only rows for which it holds: comparisons, and, or, not, in (…), is null.",
        rich_help_panel=_WHICH,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Only these columns.", rich_help_panel=_HOW),
]
NoSystem = Annotated[
    bool,
    typer.Option(
        "--no-system", help="Without _partition, _offset and _timestamp.", rich_help_panel=_HOW
    ),
]
How = Annotated[
    Shown | None,
    typer.Option(
        "--format",
        help="By default by the name of --output; a table on a terminal, NDJSON in a pipe.",
        rich_help_panel=_HOW,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="A file, which is there once it is whole.",
        rich_help_panel=_HOW,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="The same as --format ndjson: one JSON object a row.",
        rich_help_panel=_HOW,
    ),
]
