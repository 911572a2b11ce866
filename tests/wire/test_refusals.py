"""An error crosses the wire as itself; a hostile answer makes nothing but an error of ours."""

import inspect
from enum import IntEnum, StrEnum
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.values import texts, values_of

from headrace import errors
from headrace.errors import (
    BadConfig,
    BadFrame,
    BadName,
    Busy,
    Corrupt,
    CorruptFile,
    CorruptSegment,
    Expired,
    HeadraceError,
    NotNext,
    NotYet,
    Refused,
    Rejected,
    StorageFailed,
    TimedOut,
    Unavailable,
    Unknown,
    WriterUnknown,
)
from headrace.wire.codec import decode, encode
from headrace.wire.error_codes import (
    FIELD_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    RETRY_AFTER_MS_MAX,
    to_error,
    to_failed,
)
from headrace.wire.greeting import ErrorReply

CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, HeadraceError)
]


def an_error(kind: type[HeadraceError]) -> HeadraceError:
    """Make an error with every argument that its class takes."""
    samples = {int: 41, str: "some text", OSError: OSError(5, "input/output error")}
    hints = get_type_hints(kind.__init__)
    names = inspect.signature(kind).parameters
    return kind(**{name: samples.get(hints[name], 42) for name in names})


def carried(error: HeadraceError) -> HeadraceError:
    return to_error(decode(ErrorReply.kind, encode(to_failed(error))))


def a_failed(code: str = "Expired", **changes) -> ErrorReply:
    plain = {"message": "text", "hint": "", "fields": (), "retry_after_ms": None}
    return ErrorReply(code, **plain | changes)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_it_was(kind):
    error = an_error(kind)
    found = carried(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert found.hint == error.hint
    assert found.args == error.args
    expected = {
        name: str(value) if isinstance(value, OSError) else value
        for name, value in vars(error).items()
    }
    assert {name: getattr(found, name) for name in expected} == expected


def test_there_are_errors_to_try():
    assert len(CLASSES) > 45
    # Those of a command's own, such as NotFound, never go over the wire.
    branches = {
        each for each in HeadraceError.__subclasses__() if ".cli." not in each.__module__
    }
    assert branches < set(CLASSES)


def test_busy_keeps_when_to_come_again():
    failed = to_failed(Busy("too many requests", 250))
    assert failed.retry_after_ms == 250
    assert "retry_after_ms" not in dict(failed.fields)
    found = to_error(failed)
    assert isinstance(found, Busy)
    assert found.retry_after_ms == 250


class Code(StrEnum):
    GAP = "gap"


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (Code.GAP, "gap"),
        (Number.ONE, 1),
        (b"\x01", "b'\\x01'"),
        (None, None),
        (2**64, "a number of 65 bits"),
        (1.5, "1.5"),
        ("x" * 5000, "x" * 997 + "..."),
        ("\udcff" * 5000, ("\\udcff" * 1000)[:997] + "..."),
    ],
    ids=["code", "number", "bytes", "none", "wide", "float", "long", "half a letter"],
)
def test_an_attribute_travels_as_a_scalar(value, sent):
    error = NotNext("parent", 1, 2)
    error.expected = value
    found = carried(error)
    assert found.expected == sent
    assert type(found.expected) is type(sent)


def test_a_name_that_is_not_unicode_can_be_complained_about():
    found = carried(BadName("topic", "\ud800" + "x" * 5000))
    assert isinstance(found, BadName)
    assert found.name.startswith("\\ud800xxx")
    assert len(found.name) == FIELD_SIZE_MAX


def test_a_long_message_is_shortened():
    failed = to_failed(Rejected("x" * 50_000, hint="y" * 5000))
    assert len(failed.message) == MESSAGE_SIZE_MAX
    assert len(failed.hint) == FIELD_SIZE_MAX


class _Private(NotYet):
    """Not in errors.py."""


def test_a_class_of_another_module_goes_as_its_parent():
    found = carried(_Private("schema-unknown", "no schema 4 yet"))
    assert type(found) is NotYet
    assert found.code == "schema-unknown"
    assert to_error(a_failed("_Private")).__class__ is HeadraceError


@pytest.mark.parametrize("branch", [Rejected, Unavailable, Unknown, HeadraceError])
def test_a_code_of_a_newer_node_becomes_the_branch_it_tells(branch):
    fields = (("_branch", branch.__name__), ("speed", 5))
    found = to_error(a_failed("TooQuick", fields=fields, hint="Slow down"))
    assert type(found) is branch
    assert str(found) == "text. Slow down"
    assert found.speed == 5


def test_a_code_without_a_branch_is_just_an_error():
    assert type(to_error(a_failed("TooQuick"))) is HeadraceError
    assert type(to_error(a_failed("", fields=(("_branch", 5),)))) is HeadraceError


def test_the_branch_is_told_of_every_error():
    told = {each.__name__: dict(to_failed(an_error(each)).fields) for each in CLASSES}
    assert told["Expired"]["_branch"] == "Rejected"
    assert told["CorruptSegment"]["_branch"] == "Corrupt"
    assert told["WriterUnknown"]["_branch"] == "Unknown"
    assert "_branch" not in told["Rejected"]
    assert "_branch" not in told["HeadraceError"]


@pytest.mark.parametrize(
    ("code", "fields", "becomes"),
    [
        ("Expired", (), Rejected),
        ("Expired", (("partition", "p"), ("offset", 5), ("first", "6")), Rejected),
        ("Expired", (("partition", "p"), ("offset", 5), ("first", None)), Rejected),
        ("Expired", (("partition", "p"), ("offset", 5), ("first", 6)), Expired),
        ("Busy", (), Unavailable),
        ("Busy", (("retry_after_ms", -5),), Unavailable),
        ("CorruptSegment", (("path", "p"),), CorruptSegment),
        ("CorruptSegment", (("path", "p"), ("row_group", "x")), Corrupt),
        ("CorruptSegment", (), HeadraceError),
    ],
)
def test_an_error_without_its_attributes_becomes_its_parent(code, fields, becomes):
    assert type(to_error(a_failed(code, fields=fields))) is becomes


def test_an_attribute_that_may_be_absent_is_there_as_none():
    found = to_error(a_failed("CorruptFile", fields=(("path", "p"),)))
    assert isinstance(found, CorruptFile)
    assert (found.position, found.expected, found.found) == (None, None, None)


@pytest.mark.parametrize("told", [-1, 2**63, RETRY_AFTER_MS_MAX + 1])
def test_nobody_is_sent_away_for_ever(told):
    found = to_error(a_failed("Busy", retry_after_ms=told))
    assert isinstance(found, Busy)
    assert 0 <= found.retry_after_ms <= RETRY_AFTER_MS_MAX


@pytest.mark.parametrize(
    "name",
    [
        *("args", "hint", "with_traceback", "add_note", "__class__", "__dict__", "__str__"),
        *("__cause__", "__traceback__", "__notes__", "_branch", "_private", "", "a b", "1a"),
    ],
)
def test_a_field_cannot_replace_what_an_error_is_made_of(name):
    found = to_error(a_failed("Rejected", hint="Fix it", fields=((name, "evil"),)))
    assert type(found) is Rejected
    assert str(found) == "text. Fix it"
    assert found.args == ("text",)
    assert "evil" not in vars(found).values()
    with pytest.raises(Rejected):
        raise found.with_traceback(None)


def test_no_hint_replaces_the_one_of_the_class():
    assert BadFrame.hint
    assert str(to_error(a_failed("BadFrame", hint=""))) == "text"


def test_a_text_cannot_steer_a_terminal():
    found = to_error(a_failed("Rejected", message="a\x1b[2J\x9b\nb\tü", hint="\x07"))
    assert str(found) == "a\\x1b[2J\\x9b\nb\tü. \\x07"


names = st.sampled_from(["path", "offset", "first", "args", "hint", "_branch", "__class__"])
fields = st.lists(st.tuples(names | texts, values_of(int | str | None)), max_size=50).map(tuple)
codes = st.sampled_from([each.__name__ for each in CLASSES]) | texts
faileds = st.builds(
    ErrorReply, codes, texts, texts, fields, st.none() | st.integers(-(2**63), 2**64 - 1)
)


@given(faileds)
def test_any_answer_makes_an_error_that_can_be_used_and_sent_on(failed):
    error = to_error(failed)
    assert type(error) in CLASSES
    assert isinstance(str(error), str)
    again = carried(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_errors_of_a_client_itself_are_the_same_classes():
    for error in (TimedOut("late"), WriterUnknown("forgotten"), BadConfig("a.b", "no")):
        assert type(carried(error)) is type(error)
    cause = OSError(28, "no space")
    assert carried(StorageFailed("p", "sync", cause)).cause == "[Errno 28] no space"
    assert carried(Refused("fenced", "an older life")).code == "fenced"
