"""What commands print: data apart from words, and questions only to people."""

import io
import sys

import pytest
from tests.cli.terminal import Terminal

import headrace
from headrace.cli.terminal.exits import Cancelled, Exit
from headrace.cli.terminal.output import (
    JsonShape,
    confirm,
    confirm_name,
    print_json,
    print_table,
    say,
)


class Pair(JsonShape, frozen=True, kw_only=True):
    """A shape of two."""

    first: int
    second: str | None


def test_json_is_one_line_in_a_pipe(capsys):
    print_json(Pair(first=1, second=None))
    assert capsys.readouterr().out == '{"first":1,"second":null}\n'


@pytest.mark.parametrize("text", ["[red]x[/red]", ":smile: :x:", "[/]", "a\\[b]"])
def test_words_and_cells_are_printed_as_they_are(text, capsys):
    say(text)
    print_table(("a", "b"), [(text, "1")])
    printed = capsys.readouterr()
    assert printed.err == f"{text}\n"
    assert printed.out.splitlines()[1].startswith(text)


def test_a_pipe_is_never_asked(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(Cancelled, match="Add --yes"):
        confirm("Sure?", yes=False)
    with pytest.raises(Cancelled, match="Add --yes"):
        confirm_name("topic", "orders", yes=False)
    confirm("Sure?", yes=True)
    confirm_name("topic", "orders", yes=True)


@pytest.mark.parametrize(
    ("typed", "code", "topics"),
    [("orders\n", Exit.OK, []), ("order\n", Exit.FAILURE, ["default/orders"])],
)
def test_a_deletion_wants_the_name_typed(tmp_path, typed, code, topics):
    with headrace.open(tmp_path) as log:
        log.create_topic("orders", {"id": "int64"})
    with Terminal("topic", "delete", "orders", "--data", str(tmp_path)) as terminal:
        terminal.read_until("Type its name to continue:")
        terminal.press(typed)
        assert terminal.wait() == code
    with headrace.open(tmp_path) as log:
        assert log.topics() == topics


@pytest.mark.parametrize(("typed", "code", "place"), [("y\n", 0, 2), ("\n", 1, 0)])
def test_a_change_wants_a_yes(tmp_path, typed, code, place):
    with headrace.open(tmp_path) as log:
        topic = log.create_topic("orders", {"id": "int64"})
        topic.append([{"id": 1}, {"id": 2}])
        topic.store_cursors("billing", {0: 0})
    arguments = ("group", "reset", "billing", "--topic", "orders", "--to", "latest")
    with Terminal(*arguments, "--data", str(tmp_path)) as terminal:
        terminal.read_until("[y/N]")
        terminal.press(typed)
        assert terminal.wait() == code
    with headrace.open(tmp_path) as log:
        assert [each.next for each in log.topic("orders").cursors("billing")] == [place]
