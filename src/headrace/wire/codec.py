"""Messages <-> their meta: one msgpack array of the fields, in order.

The field types are read from the classes once, on import, and compiled into functions; calls
do not inspect type hints. Encoding and decoding check the same: the number of fields, and the
exact type of each. The node validates the values.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Final, NewType, get_args, get_origin, get_type_hints

from headrace.errors import BadFrame
from headrace.wire.messages import Message
from headrace.wire.msgpack import INT_MAX, INT_MIN, NOT_SENT, Buffer, pack, unpack

_Convert = Callable[[object], object]

_WORDS: Final = {
    NoneType: "nil",
    bool: "bool",
    int: "int",
    str: "str",
    bytes: "bytes",
    tuple: "array",
}
_FOUND_SIZE_MAX: Final = 80  # characters of a wrong value shown in an error


@dataclass(frozen=True, slots=True)
class _MessageShape:
    """The type at one position, with functions to check and convert it each way."""

    where: str
    expected: str
    dump: _Convert  # from a field to msgpack values
    load: _Convert  # and back
    scalars: frozenset[type] | None  # exactly these types, unconverted


def encode(message: Message) -> bytes:
    """Encode a message. BadFrame names a field that cannot be sent."""
    shape = _BY_CLASS.get(type(message))
    if shape is None:
        raise BadFrame(f"{type(message).__name__} is not a message", hint=NOT_SENT)
    try:
        return pack(shape.dump(message))
    except BadFrame as fault:
        raise BadFrame(_blame(message, fault), hint=NOT_SENT) from None


def decode(kind: int, data: Buffer) -> Message:
    """Decode a message of this kind, which must fill `data`. BadFrame names the flaw."""
    shape = _BY_KIND.get(kind)
    if shape is None:
        raise BadFrame(f"unknown message kind {kind}")
    try:
        value = unpack(data)
    except BadFrame as fault:
        raise BadFrame(f"{shape.where}: {fault.args[0]}") from None
    return shape.load(value)  # type: ignore[return-value]


def _blame(message: Message, fault: BadFrame) -> str:
    """Name the field that msgpack could not encode, unless the fault already does."""
    text = str(fault.args[0])
    name = type(message).__name__
    if text.startswith(f"{name}."):
        return text
    for field in fields(message):
        shape = _shape(f"{name}.{field.name}", get_type_hints(type(message))[field.name])
        try:
            pack(shape.dump(getattr(message, field.name)))
        except BadFrame:
            return f"{name}.{field.name}: {text}"
    return f"{name}: {text}"


def _fault(where: str, expected: str, value: object) -> BadFrame:
    word = _WORDS.get(type(value), type(value).__name__)
    if isinstance(value, tuple):
        found = f"{word} of {len(value)}"
    elif isinstance(value, str | bytes):
        found = f"{word} {value[:_FOUND_SIZE_MAX]!r}"
    elif isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        found = f"{word} {value}"
    else:
        found = word
    return BadFrame(f"{where}: expected {expected}, found {found}")


def _shape(where: str, hint: object) -> _MessageShape:
    """Create the shape of a type hint. `where` is its position in errors."""
    if isinstance(hint, type) and hint in _WORDS:
        return _scalar(where, (hint,))
    if isinstance(hint, UnionType):
        return _union(where, get_args(hint))
    if get_origin(hint) is tuple:
        item, *rest = get_args(hint)
        if rest == [...]:
            return _sequence(where, item)
        return _fixed(where, (item, *rest))
    if isinstance(hint, NewType):
        return _shape(where, hint.__supertype__)
    assert isinstance(hint, type)
    return _record(where, hint)


def _scalar(where: str, kinds: tuple[type, ...]) -> _MessageShape:
    allowed = frozenset(kinds)
    expected = " or ".join(_WORDS[kind] for kind in kinds)

    def check(value: object) -> object:
        if type(value) in allowed:
            return value
        raise _fault(where, expected, value)

    return _MessageShape(where, expected, check, check, allowed)


def _union(where: str, hints: tuple[object, ...]) -> _MessageShape:
    """Scalars of several types, or one optional shape."""
    kinds = tuple(hint for hint in hints if isinstance(hint, type) and hint in _WORDS)
    if len(kinds) == len(hints):
        return _scalar(where, kinds)
    (hint,) = (hint for hint in hints if hint is not NoneType)
    inner = _shape(where, hint)
    dump_inner, load_inner = inner.dump, inner.load

    def dump(value: object) -> object:
        return None if value is None else dump_inner(value)

    def load(value: object) -> object:
        return None if value is None else load_inner(value)

    return _MessageShape(where, f"{inner.expected} or nil", dump, load, None)


def _sequence(where: str, hint: object) -> _MessageShape:
    item = _shape(f"{where}[]", hint)
    if item.scalars is not None:
        return _scalar_sequence(where, item, item.scalars)
    dump_item, load_item = item.dump, item.load

    def dump(value: object) -> object:
        if type(value) is not tuple:
            raise _fault(where, "array", value)
        return tuple([dump_item(each) for each in value])

    def load(value: object) -> object:
        if type(value) is not tuple:
            raise _fault(where, "array", value)
        return tuple([load_item(each) for each in value])

    return _MessageShape(where, "array", dump, load, None)


def _scalar_sequence(
    where: str, item: _MessageShape, allowed: frozenset[type]
) -> _MessageShape:
    def check(value: object) -> object:
        if type(value) is not tuple:
            raise _fault(where, "array", value)
        if not allowed.issuperset(map(type, value)):
            for each in value:
                item.load(each)  # names the wrong one
        return value

    return _MessageShape(where, "array", check, check, None)


def _fixed(where: str, hints: tuple[object, ...]) -> _MessageShape:
    """A tuple of exactly these types."""
    count = len(hints)
    shapes = [_shape(f"{where}[{place}]", hint) for place, hint in enumerate(hints)]
    expected = f"array of {count}"
    dumps, loads = [each.dump for each in shapes], [each.load for each in shapes]

    def dump(value: object) -> object:
        if type(value) is not tuple or len(value) != count:
            raise _fault(where, expected, value)
        return tuple([dump(each) for dump, each in zip(dumps, value, strict=True)])

    def load(value: object) -> object:
        if type(value) is not tuple or len(value) != count:
            raise _fault(where, expected, value)
        return tuple([load(each) for load, each in zip(loads, value, strict=True)])

    return _MessageShape(where, expected, dump, load, None)


def _record(where: str, kind: type) -> _MessageShape:
    """A message, or a value within one: an array of its fields."""
    hints = get_type_hints(kind)
    names = _names(kind)
    shapes = [_shape(f"{where}.{name}", hints[name]) for name in names]
    expected = f"array of {len(names)}"
    values_of = _values_of(names)
    dumps, loads = [each.dump for each in shapes], [each.load for each in shapes]
    # If each field has only one type, all are compared at once.
    plain = tuple(each for shape in shapes if shape.scalars for each in shape.scalars)
    is_plain = all(shape.scalars and len(shape.scalars) == 1 for shape in shapes)
    count = len(names)

    def dump(value: object) -> object:
        if type(value) is not kind:
            raise _fault(where, kind.__name__, value)
        values = values_of(value)
        if is_plain and tuple(map(type, values)) == plain:
            return values
        return tuple([dump(each) for dump, each in zip(dumps, values, strict=True)])

    def load(value: object) -> object:
        if type(value) is not tuple or len(value) != count:
            raise _fault(where, expected, value)
        if is_plain and tuple(map(type, value)) == plain:
            return kind(*value)
        return kind(*[load(each) for load, each in zip(loads, value, strict=True)])

    return _MessageShape(where, expected, dump, load, None)


def _names(kind: type) -> list[str]:
    """Return the fields of a dataclass or a NamedTuple, in order."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    assert issubclass(kind, tuple)
    return list(kind._fields)  # type: ignore[attr-defined]


def _values_of(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that gets the fields of a value, in order."""
    if not names:
        return lambda _value: ()
    get = attrgetter(*names)
    if len(names) == 1:
        return lambda value: (get(value),)
    return get


MESSAGES: Final[tuple[type[Message], ...]] = get_args(Message)
_BY_CLASS: Final = {kind: _shape(kind.__name__, kind) for kind in MESSAGES}
_BY_KIND: Final = {kind.kind: _BY_CLASS[kind] for kind in MESSAGES}
assert len(_BY_KIND) == len(MESSAGES)
assert all(0 < kind < 2**16 for kind in _BY_KIND)
