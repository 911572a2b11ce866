"""docs/cli.md and docs/cli-json.md are what the program makes, and what it makes is true."""

import msgspec
import pytest
from tests.cli.commands import headrace_here
from tests.docs_commands import ROOT, look_up

from headrace_lab.commands import reference, reference_json
from headrace_lab.commands.reference import commands, examples, options
from headrace_lab.commands.reference_json import OTHERS, SHAPES

COMMANDS = dict(commands())


@pytest.mark.parametrize(
    ("name", "maker"), [("cli.md", reference), ("cli-json.md", reference_json)]
)
def test_a_page_is_what_the_program_makes(name, maker):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    hint = f"run: python -m {maker.__name__} > docs/{name}"
    assert page == maker.page(), hint


def test_every_command_is_on_the_page_with_every_option():
    page = reference.page()
    for words, command in COMMANDS.items():
        _, found, section = page.partition(f"\n## headrace {words}\n")
        assert found, words
        section, _, _ = section.partition("\n## ")
        for option in options(command):
            assert f"`{option.opts[0]}`" in section, (words, option.opts[0])


@pytest.mark.parametrize("words", COMMANDS)
def test_the_examples_of_a_command_exist(words):
    for line in examples(COMMANDS[words]):
        look_up(line)


def test_every_command_with_json_has_a_shape():
    with_json = {
        words
        for words, command in COMMANDS.items()
        if any("--json" in option.opts for option in options(command))
    }
    assert with_json == {words.partition(" --")[0] for words in SHAPES} | set(OTHERS)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log with topics, rows, consumer groups and a config file beside it."""
    place = tmp_path_factory.mktemp("shapes")
    rows = '{"id": 1, "name": "ann"}\n{"id": 2, "name": "bob"}\n'
    data = ("--data", place / "data")
    made = headrace_here("produce", "orders", "--create", *data, given=rows)
    assert made.code == 0, made.err
    assert headrace_here("topic", "create", "old", "--schema", "id:int64", *data).code == 0
    for group in ("billing", "gone"):
        reset = ("group", "reset", group, "--topic", "orders", "--to", "0", "--yes")
        assert headrace_here(*reset, *data).code == 0
    (place / "headrace.toml").write_text('[seal]\nsize = "1GiB"\n')
    return place


def in_the_log(*words):
    return lambda log: (*words, "--data", log / "data")


RUNS = {
    "config show": lambda log: ("config", "show"),
    "config validate": lambda log: ("config", "validate", log / "headrace.toml"),
    "doctor": lambda log: ("doctor", log / "data"),
    "doctor --salvage": lambda log: ("doctor", log / "data", "--salvage", log / "new"),
    "group describe": in_the_log("group", "describe", "billing"),
    "group list": in_the_log("group", "list"),
    "group reset": in_the_log(
        "group", "reset", "billing", "--topic", "orders", "--to", "1", "--dry-run"
    ),
    "group delete": in_the_log("group", "delete", "gone", "--yes"),
    "inspect journal": lambda log: (
        "inspect",
        "journal",
        next((log / "data").rglob("*.wal")),
    ),
    "inspect superblock": lambda log: (
        "inspect",
        "superblock",
        next((log / "data").rglob("superblock.a")),
    ),
    "status": in_the_log("status"),
    "topic alter": in_the_log("topic", "alter", "orders", "--retention", "7d"),
    "topic create": in_the_log("topic", "create", "visits", "--schema", "id:int64"),
    "topic describe": in_the_log("topic", "describe", "orders"),
    "topic list": in_the_log("topic", "list"),
    "topic delete": in_the_log("topic", "delete", "old", "--yes"),
}


@pytest.mark.parametrize("words", RUNS)
def test_a_command_prints_its_shape_and_nothing_else(words, log):
    ended = headrace_here(*RUNS[words](log), "--json")
    assert ended.code == 0, ended.err
    assert as_the_shape_has_it(words, ended) == ended.json


def test_produce_prints_its_shape(log):
    words = ("produce", "orders", "--data", log / "data", "--json")
    ended = headrace_here(*words, given='{"id": 3, "name": "cyd"}\n')
    assert as_the_shape_has_it("produce", ended) == ended.json


def as_the_shape_has_it(words, ended):
    """What was printed, without fields that the shape does not know."""
    known = msgspec.json.decode(ended.raw, type=SHAPES[words])
    return msgspec.json.decode(msgspec.json.encode(known))
