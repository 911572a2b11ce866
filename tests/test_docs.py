"""The documents as checks: commands are known ones that exist, and links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.bench.registry import BENCHES
from headrace.cli.main import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# Every command README may show. Each is run, or its target or name looked up, by a test.
KNOWN_COMMANDS = frozenset(
    {
        "make check",
        "make demo",
        "make env",
        "make test",
        ".venv/bin/headrace serve --data ./data",
        ".venv/bin/headrace bench",
        ".venv/bin/headrace bench disk",
        ".venv/bin/headrace bench journal",
        ".venv/bin/headrace bench recovery",
        ".venv/bin/headrace bench ingest",
        ".venv/bin/headrace bench partitions",
        ".venv/bin/headrace bench replay",
        ".venv/bin/headrace bench ingest --address local",
        ".venv/bin/headrace bench fetch",
        ".venv/bin/headrace bench open",
        ".venv/bin/headrace bench disk --json",
    }
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def fences(text: str, language: str) -> Iterator[str]:
    """Give the body of each fenced block in `language`."""
    yield from (body for found, body in _FENCE.findall(text) if found == language)


def commands(text: str) -> list[str]:
    return [line for body in fences(text, "sh") for line in body.splitlines() if line.strip()]


def broken_links(document: Path) -> list[str]:
    """Links to files or headings that are not there. Addresses on the web are not followed."""
    text = _FENCE.sub("", document.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if not _leads_somewhere(document, link)]


def _leads_somewhere(document: Path, link: str) -> bool:
    if link.startswith(("https://", "http://")):
        return True
    name, _, anchor = link.partition("#")
    target = document.parent / name if name else document
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_shows_only_known_commands_and_all_of_them():
    assert set(commands((ROOT / "README.md").read_text())) == KNOWN_COMMANDS


@pytest.mark.parametrize("command", sorted(KNOWN_COMMANDS))
def test_a_known_command_exists(command):
    program, *arguments = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments[0] in targets
        return
    assert program == ".venv/bin/headrace"
    command_name, *rest = arguments
    assert CliRunner().invoke(app, [command_name, "--help"]).exit_code == 0
    if command_name == "bench" and rest:
        assert rest[0] in BENCHES


def test_the_example_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = fences((ROOT / "README.md").read_text(), "python")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert "ann" in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document):
    assert broken_links(document) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# One, two\n")
    document = tmp_path / "page.md"
    document.write_text(
        "[a](other.md) [b](other.md#one-two) [c](https://example.org/x) [d](#here)\n"
        "[e](gone.md) [f](other.md#three) [g](#there)\n"
        "# Here\n"
        "```sh\n# There\n[h](not-a-link.md)\n```\n"
    )
    assert broken_links(document) == ["gone.md", "other.md#three", "#there"]


def test_commands_are_read_from_sh_fences_alone():
    text = "```sh\nmake a\n\nmake b\n```\n```text\nmake c\n```\n"
    assert commands(text) == ["make a", "make b"]
