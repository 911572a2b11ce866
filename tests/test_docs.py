"""The documents as checks: what a page shows is run or looked up, and links lead somewhere.

A page's commands and examples run in order, in a directory of their own. A fence behind
`<!-- looked up -->` takes too long for that: its commands are looked up in the program, and its
examples compiled; so is all that a page of results shows. A node that a page starts lives until
the next section.
"""

import ast
import importlib
import re
import shlex
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.commands import command, headrace_here
from tests.docs_commands import FENCE, ROOT, Fence, fences, look_up, pieces

import headrace

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MADE = ROOT / "docs" / "cli.md"  # its examples are those of the commands' help: looked up
GENERATED = frozenset({MADE, ROOT / "docs" / "cli-json.md"})
WIDTH = 100
LISTEN = "127.0.0.1:7654"

# Of pages whose commands run: what another machine would have to answer.
ELSEWHERE = frozenset({"headrace status --address db1:7654 --watch"})
PROGRAMS_ELSEWHERE = frozenset({"cp", "podman", "systemctl"})

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def has_work(path: Path) -> bool:
    return any(each.language in ("sh", "python") for each in fences(path.read_text()))


PAGES = [page for page in DOCUMENTS if page != MADE and has_work(page)]


def is_elsewhere(line: str) -> bool:
    return line in ELSEWHERE or shlex.split(line)[0] in PROGRAMS_ELSEWHERE


class Reader:
    """Does what a page says, as somebody who reads it from top to bottom."""

    def __init__(self, page: str, stack: ExitStack, environment: pytest.MonkeyPatch) -> None:
        self.page = page
        self.stack = stack
        self.environment = environment
        self.names: dict[str, object] = {"__name__": "page"}
        self.section = 0
        self.is_record = page.startswith("docs/results/")  # of runs that took minutes or hours
        self.node: subprocess.Popen[str] | None = None

    def read(self, fence: Fence) -> None:
        if fence.section != self.section:
            self.section = fence.section
            self.stop_node()
        if fence.language == "python":
            self.python(fence)
            return
        for line in fence.commands:
            if fence.is_looked_up or self.is_record or is_elsewhere(line):
                look_up(line)
            else:
                self.run(line)

    def python(self, fence: Fence) -> None:
        code = compile(fence.body, self.page, "exec")
        if fence.is_looked_up:
            look_up_imports(fence.body)
        else:
            exec(code, self.names)

    def run(self, line: str) -> None:
        data = b""
        for piece in pieces(line):
            program, *words = shlex.split(piece)
            if program == "export":
                name, _, value = words[0].partition("=")
                self.environment.setenv(name, value)
            elif words[:1] == ["serve"]:
                self.start_node(words)
            elif program == "headrace":
                ended = headrace_here(*words, given=data)
                assert ended.code == 0, f"{line}\n{ended.err}"
                data = ended.raw
            else:
                done = subprocess.run(
                    ["sh", "-ec", piece],
                    input=data,
                    stdout=subprocess.PIPE,
                    check=True,
                    timeout=60,
                )
                data = done.stdout

    def start_node(self, words: list[str]) -> None:
        self.node = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
        self.stack.callback(self.stop_node)
        assert self.node.stderr is not None
        for line in self.node.stderr:
            if "node.listening" in line:
                return
        pytest.fail(f"{self.page}: the node did not start")

    def stop_node(self) -> None:
        if self.node is not None:
            self.node.terminate()
            self.node.communicate(timeout=60)
            assert self.node.returncode == 0
            self.node = None


def look_up_imports(body: str) -> None:
    """Check that what an example takes from Headrace is there."""
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
            module = importlib.import_module(node.module or "")
            for each in node.names:
                assert hasattr(module, each.name), f"{node.module} has no {each.name}"


def a_free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return "{}:{}".format(*found.getsockname())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory as pages suppose it: a log, a config file, no port that others may have."""
    monkeypatch.chdir(tmp_path)
    address = a_free_address()
    monkeypatch.setenv("HEADRACE_LISTEN__ADDRESS", address)
    monkeypatch.setenv("HEADRACE_LISTEN__HTTP", "")
    for name in ("HEADRACE_DATA", "HEADRACE_ADDRESS", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return address


# What some pages suppose to be there before their first line.
def a_log_and_a_config_file() -> None:
    headrace.open("./data").close()
    Path("headrace.toml").write_text('[seal]\nsize = "1GiB"\n')


# Words that some pages print when their examples work.
PRINTED = {"README.md": "ann", "docs/quickstart.md": "to bill:", "docs/python.md": "coffee"}
STAGES = {"docs/operating.md": a_log_and_a_config_file}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_does_what_it_says(page, place, monkeypatch, capsys):
    text = page.read_text(encoding="utf-8").replace(LISTEN, place)
    STAGES.get(name_of(page), lambda: None)()
    with ExitStack() as stack:
        reader = Reader(name_of(page), stack, monkeypatch)
        for fence in fences(text):
            if fence.language in ("sh", "python"):
                reader.read(fence)
    assert PRINTED.get(name_of(page), "") in capsys.readouterr().out


def test_the_programs_of_the_readme_may_be_run_again(place):
    found = fences((ROOT / "README.md").read_text())
    programs = [each.body for each in found if each.language == "python"]
    assert len(programs) == 2
    for body in programs * 2:
        exec(compile(body, "README.md", "exec"), {})


def test_the_first_program_of_the_python_page_may_be_run_again(place):
    first = next(iter(fences((ROOT / "docs" / "python.md").read_text())))
    for _ in range(2):
        exec(compile(first.body, "docs/python.md", "exec"), {})


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_command_in_a_recording_exists(document):
    for fence in fences(document.read_text(encoding="utf-8")):
        for line in fence.typed if fence.language == "console" else ():
            if line.startswith("headrace "):
                look_up(line)


def test_the_pages_a_new_user_meets_are_among_those_that_run():
    names = {"README.md", "docs/quickstart.md", "docs/concepts.md", "docs/python.md"}
    names |= {"docs/operating.md", "docs/spark.md"}
    assert names <= set(map(name_of, PAGES))


class TestTheReader:
    """A page that says something untrue is found."""

    def read(self, text, monkeypatch):
        with ExitStack() as stack:
            reader = Reader("page", stack, monkeypatch)
            for fence in fences(text):
                reader.read(fence)

    def test_a_command_that_fails_is_found(self, place, monkeypatch):
        with pytest.raises(AssertionError, match="does not exist"):
            self.read("```sh\nheadrace read orders --data ./data\n```\n", monkeypatch)

    def test_an_example_that_fails_is_found(self, place, monkeypatch):
        text = '```python\nimport headrace\nheadrace.open("./data").topic("a")\n```\n'
        with pytest.raises(headrace.errors.TopicUnknown):
            self.read(text, monkeypatch)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("headrace bench nothing", "no such bench"),
            ("headrace topics", "no such command"),
            ("headrace read orders --frm 1", "--frm"),
            ("headrace read", "no topic"),
            ("headrace status here", "too much"),
            ("make nothing", "no target"),
            ("frobnicate orders", "run by nobody"),
            ("echo a | headrace produce", "run by nobody"),
        ],
    )
    def test_a_command_that_is_not_there_is_found(self, line, said, place, monkeypatch):
        with pytest.raises(Exception, match=said):
            self.read(f"<!-- looked up -->\n```sh\n{line}\n```\n", monkeypatch)

    def test_an_import_that_is_not_there_is_found(self, place, monkeypatch):
        text = "<!-- looked up -->\n```python\nfrom headrace.spark import nothing\n```\n"
        with pytest.raises(AssertionError, match="has no nothing"):
            self.read(text, monkeypatch)

    def test_a_bar_within_quotes_is_no_pipe(self):
        assert pieces("""echo 'a|b' | headrace read "c|d" """) == [
            "echo 'a|b'",
            'headrace read "c|d"',
        ]


def test_tests_that_a_page_names_exist():
    files = [
        path for place in ("tests", "lab/tests") for path in (ROOT / place).rglob("test_*.py")
    ]
    tests = "\n".join(path.read_text() for path in files)
    there = set(re.findall(r"^ *(?:def|class) (\w+)", tests, re.MULTILINE))
    there |= {path.stem for path in files}
    for page in (ROOT / "ARCHITECTURE.md", ROOT / "docs" / "origins.md"):
        named = set(re.findall(r"`((?:test_|Test)\w+)`", page.read_text(encoding="utf-8")))
        assert named, page
        assert named <= there, (page, named - there)


def broken_links(document: Path) -> list[str]:
    """Links to files or headings that are not there. Addresses on the web are not followed."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
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
    headings = _HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
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


def test_where_to_change_what_is_there():
    """A row names modules from src/headrace, or paths from the top."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = text.partition("## Where to change what")[2].partition("## ")[0]
    named = [word for line in rows.splitlines()[4:] for word in re.findall(r"`([^`]+)`", line)]
    places = [one for one in named if " " not in one and one != "mutants"]
    assert len(places) > 30
    absent = [
        one
        for one in places
        if not any(
            (top / f"{one}{end}").exists()
            for top in (ROOT, ROOT / "src" / "headrace")
            for end in ("", ".py")
        )
    ]
    assert absent == []


def wide_lines(document: Path) -> list[int]:
    """Lines of prose that are too long; tables, fences and single long words may be."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), document.read_text("utf-8"))
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > WIDTH and not line.startswith("|") and len(line.split()) > 1
    ]


@pytest.mark.parametrize(
    "document", [page for page in DOCUMENTS if page not in GENERATED], ids=name_of
)
def test_prose_wraps(document):
    assert wide_lines(document) == []


def test_a_line_that_is_too_long_is_found(tmp_path):
    document = tmp_path / "page.md"
    wide = "word " * 21
    document.write_text(
        f"{wide}\n| {wide} |\n```sh\n{wide}\n```\n- {wide}\n{'x' * 200}\n{wide[:99]}\n"
    )
    assert wide_lines(document) == [1, 6]
