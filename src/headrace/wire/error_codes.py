"""Errors <-> ErrorReply, the answer to a failed request.

The code is the name of a class in errors.py; no other class is ever instantiated. Public
attributes are sent as fields. A node of a newer release may send an unknown code: it also names
the branch of its error, which determines how to handle it.
"""

import inspect
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from headrace import errors
from headrace.errors import HeadraceError
from headrace.wire.greeting import ErrorReply
from headrace.wire.msgpack import INT_MAX, INT_MIN

Scalar = int | str | None

MESSAGE_SIZE_MAX: Final = 10_000  # characters; a longer text ends in three dots
FIELD_SIZE_MAX: Final = 1_000  # characters of a hint or a field
FIELD_COUNT_MAX: Final = 32  # errors have at most 5
RETRY_AFTER_MS_MAX: Final = 600_000  # the longest back-off that a node requests

_BRANCH: Final = "_branch"  # cannot clash with an attribute, since it is not public
_RETRY: Final = "retry_after_ms"  # has its own field in ErrorReply
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """An error class, and the types allowed for its attributes."""

    error: type[HeadraceError]
    fields: dict[str, tuple[type, ...]]

    def is_whole(self, found: dict[str, Scalar]) -> bool:
        return all(isinstance(found.get(name), types) for name, types in self.fields.items())


def to_failed(error: HeadraceError) -> ErrorReply:
    """Encode an error. A class outside errors.py is sent as its parent."""
    code = next(each.__name__ for each in type(error).__mro__ if each in _CLASSES)
    attributes = {
        name: _scalar(value) for name, value in vars(error).items() if _is_public(name)
    }
    retry_after_ms = attributes.pop(_RETRY, None)
    fields = [(name, value) for name, value in attributes.items() if name != "hint"]
    if (branch := _branch_of(type(error))) != code:
        fields.append((_BRANCH, branch))
    return ErrorReply(
        code=code,
        message=_text(Exception.__str__(error), MESSAGE_SIZE_MAX),
        hint=_text(error.hint, FIELD_SIZE_MAX),
        fields=tuple(fields),
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
    )


def to_error(failed: ErrorReply) -> HeadraceError:
    """Decode an error. Whatever a peer sends, the result is one of our classes.

    An error whose attributes are missing or have a wrong type becomes its parent: an error
    caught by name always has all attributes of its class.
    """
    found = dict(failed.fields[:FIELD_COUNT_MAX])
    found.pop(_RETRY, None)
    branch = found.pop(_BRANCH, None)
    if failed.retry_after_ms is not None:
        found[_RETRY] = min(max(failed.retry_after_ms, 0), RETRY_AFTER_MS_MAX)
    kind = _KINDS.get(failed.code) or _KINDS.get(str(branch)) or _ROOT
    while not kind.is_whole(found):
        kind = _KINDS[kind.error.__mro__[1].__name__]
    # The class would format a message from its arguments; this one already has its message.
    error = kind.error.__new__(kind.error, _shown(failed.message, MESSAGE_SIZE_MAX))
    if (hint := _shown(failed.hint, FIELD_SIZE_MAX)) != error.hint:
        error.hint = hint
    for name in kind.fields:
        setattr(error, name, _scalar(found.get(name)))
    for name in found:
        if _is_public(name) and name.isidentifier() and not hasattr(error, name):
            setattr(error, name, _scalar(found[name]))
    return error


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _scalar(value: object) -> Scalar:
    if value is None:
        return None
    if isinstance(value, int):
        in_range = INT_MIN <= value <= INT_MAX
        return int(value) if in_range else f"a number of {value.bit_length()} bits"
    return _text(str(value), FIELD_SIZE_MAX)


def _text(text: str, size_max: int) -> str:
    """Truncate a text; invalid Unicode, such as a surrogate in a path, is escaped."""
    clean = text[: size_max + 1].encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= size_max else f"{clean[: size_max - 3]}..."


def _shown(text: str, size_max: int) -> str:
    """Escape terminal control characters."""
    return _text(text, size_max).translate(_CONTROLS)


def _branch_of(error: type[HeadraceError]) -> str:
    """Return the branch: the class just below the root, or the root itself."""
    line = [each for each in error.__mro__ if issubclass(each, HeadraceError)]
    return line[-2].__name__ if len(line) > 1 else line[-1].__name__


def _classes(error: type[HeadraceError]) -> list[type[HeadraceError]]:
    own = [error] if error.__module__ == errors.__name__ else []
    return own + [each for child in error.__subclasses__() for each in _classes(child)]


_SAMPLES: Final[dict[object, object]] = {int: 0, str: "", OSError: OSError(0, "")}


def _kind(error: type[HeadraceError]) -> _Kind:
    """Inspect a class: attributes from a sample instance, their types from its hints."""
    hints = get_type_hints(error.__init__)
    names = [
        each.name
        for each in inspect.signature(error).parameters.values()
        if each.default is each.empty
    ]
    samples: dict[str, Any] = {name: _SAMPLES.get(hints[name]) for name in names}
    specimen = error(**samples)
    attributes = [name for name in vars(specimen) if _is_public(name) and name != "hint"]
    return _Kind(error, {name: _types(hints.get(name, object)) for name in attributes})


def _types(hint: object) -> tuple[type, ...]:
    wanted = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    known = tuple(each for each in wanted if each in (int, str, type(None)))
    return known if len(known) == len(wanted) else (int, str, type(None))


_CLASSES: Final = frozenset(_classes(HeadraceError))
_KINDS: Final = {each.__name__: _kind(each) for each in _CLASSES}
_ROOT: Final = _KINDS[HeadraceError.__name__]
