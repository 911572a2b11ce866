"""`headrace config`: show the settings a node would run with, and validate a config file."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.output import Json, JsonShape, console, print_json, say
from headrace.errors import BadConfig
from headrace.node.config.config import Layer, Traced, toml_of, trace
from headrace.node.config.settings import SETTINGS

_SHOWN_MAX = 100  # characters of a flag quoted in a message

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
    """Parse settings given as `section.key=value`; return them by key."""
    flags = {}
    for one in settings:
        key, equals, value = one.partition("=")
        if not equals:
            raise BadConfig(
                one[:_SHOWN_MAX], "has no value", hint="Write it as section.key=value"
            )
        flags[key.strip()] = value.strip()
    return flags


Value = str | int | bool


class ShownSetting(JsonShape, frozen=True, kw_only=True):
    """One setting. `origin` is default, file, variable or flag; `where` says exactly which."""

    key: str
    value: Value
    default: Value
    origin: str
    where: str


class ShownConfig(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace config show --json`."""

    settings: list[ShownSetting]


class Validated(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace config validate --json`. `where` is the file and line, if known."""

    file: str
    valid: bool
    given: tuple[str, ...] = ()  # the settings that the file gives
    key: str = ""
    where: str = ""
    problem: str = ""
    hint: str = ""


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Show and check a node's settings.")
    group.command("show")(show)
    group.command("validate")(validate)
    app.add_typer(group, name="config")


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Show where each setting came from.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Print the settings that `headrace serve` would run with, as TOML; secrets are masked.

    Each source overrides the one before: defaults, the file, HEADRACE_SECTION__KEY in the
    environment, --set. The output is itself a config file, except for masked secrets.

    Examples:

        headrace config show

        headrace config show --origin --config headrace.toml

        headrace config show --set seal.size=1GiB --json
    """
    traced = trace(config, os.environ, flags_of(settings or []))
    if as_json:
        print_json(ShownConfig(settings=_shown(traced)))
    else:
        _print_toml(traced, with_origin=origin)


def validate(
    file: Annotated[Path, typer.Argument(help="A TOML file with settings.")],
    as_json: Json = False,
) -> None:
    """Check a config file, together with the environment, as a starting node would.

    Exits with 0 if a node would run with it. Otherwise exits with 2, names the wrong setting
    with its file and line, and suggests a correction. Starts and changes nothing.

    Examples:

        headrace config validate headrace.toml

        headrace config validate /etc/headrace/headrace.toml --json
    """
    if not file.exists():
        raise NotFound(f"{str(file)!r} does not exist", hint="Give the path of a TOML file")
    try:
        traced = trace(file, os.environ, {})
    except BadConfig as error:
        if not as_json:
            raise
        print_json(_invalid(file, error))
        raise typer.Exit(Exit.USAGE) from None
    given = tuple(k for k, each in traced.origins.items() if each.layer is Layer.FILE)
    if as_json:
        print_json(Validated(file=str(file), valid=True, given=given))
    else:
        settings = "1 setting" if len(given) == 1 else f"{len(given)} settings"
        say(f"{file} is valid: it has {settings}, and a node would start with them")


def _invalid(file: Path, error: BadConfig) -> Validated:
    return Validated(
        file=str(file),
        valid=False,
        key=error.key,
        where=error.source,
        problem=str(error),
        hint=error.hint,
    )


def _shown(traced: Traced) -> list[ShownSetting]:
    return [
        ShownSetting(
            key=key,
            value=_value(toml_of(traced.config, setting)),
            default=_value(setting.kind.toml(setting.default)),
            origin=traced.origins[key].layer.value,
            where=traced.origins[key].where,
        )
        for key, setting in SETTINGS.items()
    ]


def _value(toml: str) -> Value:
    value: Value = tomllib.loads(f"value = {toml}")["value"]
    return value


def _print_toml(traced: Traced, *, with_origin: bool) -> None:
    """Print settings by section; those that differ from the default are bold on a terminal."""
    lines = {key: f"{s.name} = {toml_of(traced.config, s)}" for key, s in SETTINGS.items()}
    width = max(map(len, lines.values())) if with_origin else 0
    text, section = Text(), ""
    for key, setting in SETTINGS.items():
        if setting.section != section:
            text.append(f"\n\n[{setting.section}]" if section else f"[{setting.section}]")
            section = setting.section
        found = traced.origins[key]
        comment = f"  # {found.where}" if with_origin else ""
        style = "" if found.layer is Layer.DEFAULT else "bold"
        text.append(f"\n{lines[key]:<{width}}{comment}", style=style)
    console().print(text, soft_wrap=True)
