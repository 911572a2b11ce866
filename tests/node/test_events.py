"""An event is one line, as text or JSON, whatever its fields hold."""

import io
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.node.events import VALUE_SIZE_MAX, configure, event, line_of

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def _as_it_was():
    logger = logging.getLogger("headrace")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])  # also forgets what was decided about levels


def written(format_name: str, *, level: str = "info", **fields: object) -> str:
    stream = io.StringIO()
    configure(format_name, level, stream)
    event("node.shard.ready", **fields)
    return stream.getvalue()


def test_a_line_of_text_is_aligned_and_readable():
    line = line_of(1767323045.678, "node.shard.ready", {"shard": 1, "ops": 12})
    assert line == "2026-01-02T03:04:05.678Z  node.shard.ready              shard=1 ops=12"
    longer = line_of(1767323045.678, "node.partition.opened", {"shard": 1})
    assert longer.index("shard=") == line.index("shard=")


def test_an_event_without_fields_has_no_trailing_blanks():
    assert re.fullmatch(rf"{STAMP}  node\.shard\.ready\n", written("text"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (12, "12"),
        (-1, "-1"),
        (True, "true"),
        (False, "false"),
        (None, "-"),
        ("-", '"-"'),
        ("", '""'),
        (0.25, "0.25"),
        (b"\x00\xff", "00ff"),
        ("shop/orders", "shop/orders"),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("a\\b", r'"a\\b"'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[2J", r'"\u001b[2J"'),
        ("\u2028", r'"\u2028"'),
        ("\u202e", r'"\u202e"'),
        ("\udcff", r'"\udcff"'),
        ("é", r'"\u00e9"'),
    ],
)
def test_a_value_is_plain_or_quoted(value, said):
    assert line_of(0.0, "a.b", {"x": value}).endswith(f" x={said}")


def test_a_hostile_name_cannot_forge_a_line_or_a_field():
    name = "orders\n2026-01-02T03:04:05.678Z  node.shard.ready  shard=9 error=none"
    text = written("text", topic=name, shard=1)
    assert text.count("\n") == 1
    assert re.findall(r'(?:^| )(\w+)=(?:"(?:[^"\\]|\\.)*"|[^" ]+)', text.strip()[26:]) == [
        "topic",
        "shard",
    ]
    line = json.loads(written("json", topic=name, shard=1))
    assert (line["topic"], line["shard"]) == (name, 1)


@given(st.text(max_size=60))
def test_whatever_a_value_is_the_line_is_one_line_of_ascii(text):
    line = line_of(0.0, "a.b", {"x": text, "y": 1})
    assert line.isascii()
    assert line.isprintable()
    assert line.endswith(" y=1")
    whole = written("json", x=text)
    assert whole.isascii()
    assert len(whole.splitlines()) == 1
    assert json.loads(whole)["x"] == text


def test_json_has_time_level_event_and_the_fields_as_they_are():
    line = json.loads(written("json", shard=1, ok=True, none=None, share=0.5, id=b"\x01"))
    assert re.fullmatch(STAMP, line.pop("time"))
    assert line == {
        "level": "info",
        "event": "node.shard.ready",
        "shard": 1,
        "ok": True,
        "none": None,
        "share": 0.5,
        "id": "01",
    }


def test_numbers_that_json_does_not_have_are_words():
    def refuse(word):
        raise AssertionError(word)

    text = written("json", a=float("nan"), b=float("inf"))
    assert json.loads(text, parse_constant=refuse)["b"] == "inf"


@pytest.mark.parametrize("format_name", ["text", "json"])
def test_a_long_value_is_cut(format_name):
    assert len(written(format_name, x="y" * 1_000_000)) < VALUE_SIZE_MAX + 200


def test_what_is_below_the_level_is_not_written():
    stream = io.StringIO()
    configure("text", "warning", stream)
    event("node.shard.ready")
    event("node.shard.halted", level=logging.ERROR, level_of="disk")
    assert "ready" not in stream.getvalue()
    assert re.search(r"node\.shard\.halted +level=error level_of=disk$", stream.getvalue())


def test_a_second_configure_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    configure("text", "info", first)
    configure("json", "info", second)
    event("node.shard.ready")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_events_go_to_standard_error_unless_told(capsys):
    configure("text", "info")
    event("node.shard.ready")
    out, err = capsys.readouterr()
    assert out == ""
    assert "node.shard.ready" in err


def test_a_stream_that_is_gone_stops_nobody(capsys):
    stream = io.StringIO()
    configure("text", "info", stream)
    stream.close()
    event("node.shard.ready")
    assert capsys.readouterr() == ("", "")


def test_a_field_may_be_called_name():
    assert "name=orders" in written("text", name="orders")


def test_what_another_module_logs_is_one_event_with_its_trace():
    stream = io.StringIO()
    configure("json", "info", stream)
    try:
        raise KeyError("x\ny")
    except KeyError:
        logging.getLogger("headrace.elsewhere").exception("it failed: %s", "why\n")
    line = json.loads(stream.getvalue())
    assert line["event"] == "headrace.log.said"
    assert line["text"] == "it failed: why\n"
    assert "KeyError" in line["error_trace"]
