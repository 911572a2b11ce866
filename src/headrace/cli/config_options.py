"""How a command is told settings: a file, and one flag for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import BadConfig

_SHOWN_MAX = 100  # characters of a flag that a message repeats

ConfigFile = Annotated[
    Path | None, typer.Option("--config", dir_okay=False, help="A TOML file with settings.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting, such as seal.size=1GiB; may be repeated.",
    ),
]


def flags_of(settings: Sequence[str]) -> dict[str, str]:
    """Return settings that were given as `section.key=value`, by key."""
    flags = {}
    for one in settings:
        key, equals, value = one.partition("=")
        if not equals:
            raise BadConfig(
                one[:_SHOWN_MAX], "has no value", hint="Write it as section.key=value"
            )
        flags[key.strip()] = value.strip()
    return flags
