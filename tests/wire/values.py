"""Messages of all kinds: strategies made from their type hints, and a few fixed ones."""

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import NewType, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from headrace.model.results import FetchedPiece
from headrace.wire.messages import AppendRequest, Fetch, FetchReply, Message
from headrace.wire.msgpack import INT_MAX, INT_MIN

MESSAGES: tuple[type[Message], ...] = get_args(Message)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
ints = st.integers(INT_MIN, INT_MAX) | st.integers(-40, 300)
SCALARS = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: ints,
    str: texts,
    bytes: st.binary(max_size=40),
}


def values_of(hint) -> st.SearchStrategy:
    """Give values that a field with this type hint may have."""
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, UnionType):
        return st.one_of([values_of(each) for each in get_args(hint)])
    if get_origin(hint) is tuple:
        item, *rest = get_args(hint)
        if rest == [...]:
            return st.lists(values_of(item), max_size=5).map(tuple)
        return st.tuples(*(values_of(each) for each in (item, *rest)))
    if isinstance(hint, NewType):
        return values_of(hint.__supertype__)
    return st.builds(hint, **{name: values_of(each) for name, each in fields_of(hint).items()})


def fields_of(kind: type) -> dict[str, object]:
    """Give the fields of a message, or of a value within one, and what each may be."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


messages = st.one_of([values_of(each) for each in MESSAGES])


def an_append(**changes) -> AppendRequest:
    plain = {
        "namespace": 0x0001_000002_000003,
        "created": 7,
        "writer": bytes(range(16)),
        "version": 300,
        "schema_id": 1,
        "row_count": 1000,
        "checksum": bytes(range(16, 32)),
    }
    return AppendRequest(**plain | changes)


def a_fetch(**changes) -> Fetch:
    plain = {
        "namespace": 5,
        "created": 7,
        "start": 100,
        "end": None,
        "size_max": 1_048_576,
        "wait_ms": 500,
        "columns": ("id", "größe"),
        "version": 2,
    }
    return Fetch(**plain | changes)


def a_fetched(*pieces: FetchedPiece) -> FetchReply:
    return FetchReply(next=110, first=0, end=110, pieces=pieces)


def a_piece(size: int = 64) -> FetchedPiece:
    return FetchedPiece(
        is_entry=True,
        first=100,
        row_count=10,
        timestamp=1_700_000_000_000_000,
        schema_id=2,
        size=size,
    )
