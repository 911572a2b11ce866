"""What a page shows in fences, and whether a command that it shows exists."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import typer
from typer.core import TyperCommand

from headrace_lab.bench.registry import BENCHES
from headrace_lab.commands.reference import arguments, commands

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^(<!-- looked up -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PIECE = re.compile(r"""(?:[^|"']|"[^"]*"|'[^']*')+""")

# Programs of the machine that pages name. What they do is not ours to test.
OF_THE_MACHINE = frozenset(
    {
        "cd",
        "cp",
        "export",
        "jq",
        "pip",
        "podman",
        "python3",
        "systemctl",
        "tail",
        "~/headrace/bin/pip",
    }
)


@dataclass(frozen=True)
class Fence:
    """One fenced block. `section` counts the headings before it."""

    language: str
    body: str
    is_looked_up: bool
    section: int

    @property
    def commands(self) -> list[str]:
        """Its commands, a line each; a backslash at the end joins lines."""
        lines = self.body.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]

    @property
    def typed(self) -> list[str]:
        """What is typed in a recording: what stands behind the prompt."""
        return [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]


def fences(text: str) -> Iterator[Fence]:
    for found in FENCE.finditer(text):
        section = len(re.findall(r"^## ", FENCE.sub("", text[: found.start()]), re.MULTILINE))
        yield Fence(found[2], found[3], bool(found[1]), section)


def pieces(line: str) -> list[str]:
    """Return the parts of a pipe; a bar within quotes divides nothing."""
    return [piece.strip() for part in line.split("&&") for piece in _PIECE.findall(part)]


def look_up(line: str) -> None:
    """Check that each program of `line` is known, and ours with its command and options."""
    for piece in pieces(line):
        program, *words = shlex.split(piece, comments=True)
        if program == "make":
            targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert words[0] in targets, f"{line}: no target {words[0]}"
        elif words[:1] == ["-m"]:
            assert find_spec(words[1]), f"{line}: there is no module {words[1]}"
        elif program == "headrace":
            _look_up_ours(line, words)
        else:
            assert program in OF_THE_MACHINE, f"{line}: {program} is run by nobody"


def _look_up_ours(line: str, words: list[str]) -> None:
    if ">" in words:
        words = words[: words.index(">")]
    known = dict(commands())
    command = next((known[name] for name in _names(words) if name in known), None)
    assert command is not None, f"{line}: there is no such command"
    count = next(len(name.split()) for name in _names(words) if name in known)
    _parse(line, command, words[count:])
    if words[0] == "bench" and len(words) > 1 and not words[1].startswith("-"):
        assert words[1] in BENCHES, f"{line}: there is no such bench"


def _names(words: list[str]) -> list[str]:
    return [" ".join(words[:2]), words[0]]


def _parse(line: str, command: TyperCommand, words: list[str]) -> None:
    """Have the command's own parser read the words. Nothing is run, no file is looked for."""
    context = typer.Context(command)
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest, f"{line}: {rest} is too much"
    for each in arguments(command):
        assert given.get(each.name) is not None or not each.required, f"{line}: no {each.name}"
