"""Finds duplicate names in JSON objects, whose first value would be lost silently.

The decoder silently keeps the last value. So names are counted in the text, too: if the objects
have as many, none was lost; only otherwise is each text examined by itself.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

_SPACES: Final = (b" ", b"\t", b"\r", b"\n")
_SPACED: Final = re.compile(rb'"[ \t\r\n]+:')


def name_twice(texts: Sequence[bytes], values: Sequence[object]) -> str | None:
    """Return a name that one object has twice, or None. `values` are the decoded `texts`."""
    whole = b"\n".join(texts)
    kept = sum(len(each) for each in values if isinstance(each, dict))
    if kept == whole.count(b":") or kept == _seen(whole):  # the text has no more
        return None
    if _seen(_without_escapes(whole)) == sum(map(_kept, values)):
        return None
    for text, value in zip(texts, values, strict=True):
        is_odd = _seen(_without_escapes(text)) != _kept(value)
        if is_odd and (name := _twice_in(text)) is not None:
            return name
    return None


def _seen(text: bytes) -> int:
    """Count quotes before a colon: those of every name, and perhaps some within text."""
    count = text.count(b'":')
    if any(each in text and each + b":" in text for each in _SPACES):
        count += len(_SPACED.findall(text))
    return count


def _without_escapes(text: bytes) -> bytes:
    """Remove escapes, so that every quote left begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _kept(value: object) -> int:
    """Count the names of objects, including nested ones."""
    if isinstance(value, dict):
        return len(value) + sum(map(_kept, value.values()))
    return sum(map(_kept, value)) if isinstance(value, list) else 0


def _twice_in(text: bytes) -> str | None:
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        found.extend(name for name in dict.fromkeys(names) if names.count(name) > 1)

    json.loads(text.decode(), object_pairs_hook=look, parse_int=str, parse_float=str)
    return found[0] if found else None
