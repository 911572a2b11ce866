"""docs/protocol.md says what the code does: messages, values, errors, limits and layout."""

import re
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin

import pytest
from tests.wire.test_refusals import CLASSES
from tests.wire.values import MESSAGES, fields_of

from headrace.errors import HeadraceError
from headrace.server.connections.limits import PeerLimits
from headrace.wire import error_codes, frames, msgpack, token_proof
from headrace.wire.messages import Reply, Request

PAGE = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Give the cells of the first table under a heading, without its head."""
    section = PAGE.partition(f"\n{heading}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].splitlines()[2:]
    ]


def shown(hint) -> str:
    """Write a type hint as the page does."""
    if get_origin(hint) is tuple:
        item, *rest = get_args(hint)
        if rest == [...]:
            return f"[{shown(item)}]"
        return f"({', '.join(map(shown, (item, *rest)))})"
    if isinstance(hint, UnionType):
        parts = [each for each in get_args(hint) if each is not NoneType]
        optional = "?" if NoneType in get_args(hint) else ""
        return "/".join(map(shown, parts)) + optional
    return getattr(hint, "__supertype__", hint).__name__


def shown_fields(kind: type) -> str:
    return ", ".join(f"`{name}:{shown(hint)}`" for name, hint in fields_of(kind).items())


def values_in(hint) -> set[type]:
    """Find the values that messages are made of, however deep."""
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        inner = set().union(*(values_in(each) for each in fields_of(hint).values()))
        return inner | {hint}
    return set().union(*(values_in(each) for each in get_args(hint)))


VALUES = set().union(*(values_in(each) for each in MESSAGES)) - set(MESSAGES)
TABLE = rows("### Messages")


def test_the_page_lists_every_message_by_kind():
    assert [(int(row[0]), row[1]) for row in TABLE] == sorted(
        (message.kind, message.__name__) for message in MESSAGES
    )


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_the_page_has_the_fields_of_a_message(message):
    (row,) = (row for row in TABLE if row[1] == message.__name__)
    assert row[3] == shown_fields(message)


def test_the_page_says_who_sends_what():
    by_node = {each.__name__ for each in get_args(Reply)} | {"Welcome", "Accepted"}
    by_client = {each.__name__ for each in get_args(Request)}
    by_client |= {"Hello", "TokenProof", "TicketProof"}
    assert len(by_node) + len(by_client) == len(MESSAGES)
    assert {row[1] for row in TABLE if row[2] == "node"} == by_node
    assert {row[1] for row in TABLE if row[2] == "client"} == by_client


def test_the_page_says_what_answers_each_message_as_its_docstring_does():
    said = {
        message.__name__: found[1]
        for message in MESSAGES
        if (found := re.search(r"Answered by\s+(\w+)", message.__doc__ or ""))
    }
    assert {row[1]: row[5] for row in TABLE if row[5]} == said
    assert said.keys() == {row[1] for row in TABLE if row[2] == "client"}
    assert set(said.values()) <= {row[1] for row in TABLE if row[2] == "node"}


def test_the_page_has_the_fields_of_every_value_in_messages():
    assert {row[0]: row[1] for row in rows("### Values")} == {
        value.__name__: shown_fields(value) for value in VALUES
    }


def test_the_page_lists_every_code_under_its_branch():
    listed = {
        branch.strip("`"): set(re.findall(r"\w+", codes))
        for branch, _, codes in rows("## Errors")
    }
    branches = [each for each in HeadraceError.__subclasses__() if each in CLASSES]
    below = {branch.__name__: set() for branch in branches}
    for each in CLASSES:
        for branch in below.keys() & {parent.__name__ for parent in each.__mro__[1:]}:
            below[branch].add(each.__name__)
    assert listed == below


def test_the_page_has_the_layout_of_the_header():
    found = [(int(row[0]), int(row[1]), row[2]) for row in rows("## Frames")]
    places = [0]
    for _, size, _ in found:
        places.append(places[-1] + size)
    assert [place for place, _, _ in found] == places[:-1]
    assert places[-1] == frames.HEADER_SIZE
    assert [name for _, _, name in found] == re.findall(r"(\w+):(?:\d|u)", frames.__doc__ or "")


def test_the_page_has_the_limits():
    assert {row[0]: int(row[1].replace(",", "")) for row in rows("## Limits")} == {
        "meta of an answer, bytes": frames.META_SIZE_MAX,
        "meta of a request, bytes": PeerLimits().meta_size_max,
        "body, bytes": frames.BODY_SIZE_MAX,
        "arrays within arrays": msgpack.DEPTH_MAX,
        "nonce, bytes": token_proof.NONCE_SIZE,
        "proof, bytes": len(token_proof.client_mac(b"", bytes(16), bytes(16), version=1)),
        "message of an error, letters": error_codes.MESSAGE_SIZE_MAX,
        "hint or field of an error, letters": error_codes.FIELD_SIZE_MAX,
        "fields of an error": error_codes.FIELD_COUNT_MAX,
        "retry_after_ms that is heeded": error_codes.RETRY_AFTER_MS_MAX,
    }
