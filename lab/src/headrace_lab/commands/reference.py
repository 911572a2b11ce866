"""Generates docs/cli.md from the app: every command with its arguments, options and examples.

python -m headrace_lab.commands.reference > docs/cli.md
"""

import re
import sys
from collections.abc import Iterator
from typing import Final

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from headrace.cli.main import made

PROGRAM: Final = "headrace"
_EXAMPLES: Final = "Examples:"

_HEAD: Final = """\
# The command

Every command and option of `headrace`, generated from the program by
`python -m headrace_lab.commands.reference`; `--help` of a command shows the same. The output of
`--json` is in [cli-json](cli-json.md), exit codes are in [operating](operating.md#installing).
`bench`, `chaos` and `sim` are the [lab's](testing.md): a checkout has them, the wheel does not.

Data goes to standard output, messages to standard error. Colours need a terminal; `NO_COLOR`
disables them.
"""

# Placeholders for values, by type, if the option has no metavar.
_VALUES: Final = {
    "directory": "DIR",
    "file": "FILE",
    "float": "NUMBER",
    "float range": "NUMBER",
    "int": "NUMBER",
    "int range": "NUMBER",
    "path": "PATH",
    "str": "TEXT",
}


def commands(
    group: TyperGroup | None = None, path: str = ""
) -> Iterator[tuple[str, TyperCommand]]:
    """Yield each command that is not a group, with its full name: `topic create`."""
    if group is None:
        whole = get_command(made())
        assert isinstance(whole, TyperGroup)
        group = whole
    for name, command in sorted(group.commands.items()):
        words = f"{path} {name}".strip()
        if isinstance(command, TyperGroup):
            yield from commands(command, words)
        else:
            assert isinstance(command, TyperCommand)
            yield words, command


def page() -> str:
    """Return the whole page."""
    found = dict(commands())
    listed = [
        f"| [{words}](#headrace-{words.replace(' ', '-')}) | {_cell(_first_line(command))} |"
        for words, command in found.items()
    ]
    parts = [_HEAD, "| command | what it does |\n| --- | --- |", *listed, ""]
    for words, command in found.items():
        parts += _section(words, command)
    return "\n".join(parts).rstrip() + "\n"


def examples(command: TyperCommand) -> list[str]:
    """Return the examples of the command's help; words after a gap become a comment."""
    _, _, shown = (command.help or "").partition(_EXAMPLES)
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    return [re.sub(r" {2,}(?=\w)", "  # ", line) for line in lines]


def options(command: TyperCommand) -> list[TyperOption]:
    """Return the options of the command, without hidden ones."""
    return [
        each for each in command.params if isinstance(each, TyperOption) and not each.hidden
    ]


def arguments(command: TyperCommand) -> list[TyperArgument]:
    """Return the positional arguments of the command."""
    return [each for each in command.params if isinstance(each, TyperArgument)]


def _section(words: str, command: TyperCommand) -> list[str]:
    body, _, _ = (command.help or "").partition(_EXAMPLES)
    parts = [f"## {PROGRAM} {words}", "", f"```text\n{_usage(words, command)}\n```", ""]
    parts += [body.strip(), ""]
    rows = [_argument_row(each) for each in arguments(command)]
    rows += [_option_row(each) for each in options(command)]
    if rows:
        parts += ["| | takes | default | meaning |\n| --- | --- | --- | --- |", *rows, ""]
    if shown := examples(command):
        parts += ["```sh", *shown, "```", ""]
    return parts


def _usage(words: str, command: TyperCommand) -> str:
    taken = [
        _name_of(each) if each.required else f"[{_name_of(each)}]"
        for each in arguments(command)
    ]
    must = [f"{each.opts[0]} {_value_of(each)}" for each in options(command) if each.required]
    return " ".join([PROGRAM, words, *taken, *must, "[OPTIONS]"])


def _name_of(argument: TyperArgument) -> str:
    return (argument.metavar or argument.name or "").upper()


def _argument_row(argument: TyperArgument) -> str:
    default = "" if argument.required else _default_of(argument.default)
    return _row(f"`{_name_of(argument)}`", _choices_of(argument), default, argument.help)


def _option_row(option: TyperOption) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = "required" if option.required else _default_of(option.default)
    taken = "" if option.is_flag else f"`{_value_of(option)}`"
    return _row(names, taken, default, option.help)


def _value_of(option: TyperOption) -> str:
    if option.metavar:
        return option.metavar
    choices: list[str] | None = getattr(option.type, "choices", None)
    return "|".join(choices) if choices else _VALUES[option.type.name]


def _choices_of(argument: TyperArgument) -> str:
    choices = getattr(argument.type, "choices", None)
    return ", ".join(f"`{each}`" for each in choices) if choices else ""


def _default_of(value: object) -> str:
    if value is None or value is False or value == ():
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _row(*cells: str | None) -> str:
    return f"| {' | '.join(_cell(each or '') for each in cells)} |"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _first_line(command: TyperCommand) -> str:
    return (command.help or "").strip().splitlines()[0]


if __name__ == "__main__":
    sys.stdout.write(page())
