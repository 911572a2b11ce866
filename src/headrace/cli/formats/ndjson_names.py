"""JSON objects in which a name is there twice: the first value would be lost without a word.

The decoder keeps the last value and says nothing. So names are counted in the text, too: where
the objects have as many, none was lost, and only otherwise is a text looked at by itself.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

_SPACES: Final = (b" ", b"\t", b"\r", b"\n")
_SPACED: Final = re.compile(rb'"[ \t\r\n]+:')


def name_twice(texts: Sequence[bytes], values: Sequence[object]) -> str | None:
    """Return a name that one object has twice, or None. `values` is what `texts` say."""
    whole = b"\n".join(texts)
    kept = sum(len(each) for each in values if isinstance(each, dict))
    if kept == whole.count(b":") or kept == _seen(whole):  # there are no more in the text
        return None
    if _seen(_without_escapes(whole)) == sum(map(_kept, values)):
        return None
    for text, value in zip(texts, values, strict=True):
        is_odd = _seen(_without_escapes(text)) != _kept(value)
        if is_odd and (name := _twice_in(text)) is not None:
            return name
    return None


def _seen(text: bytes) -> int:
    """Count quotes before a colon: every name's, and perhaps some that are within text."""
    count = text.count(b'":')
    if any(each in text and each + b":" in text for each in _SPACES):
        count += len(_SPACED.findall(text))
    return count


def _without_escapes(text: bytes) -> bytes:
    """Leave only quotes that begin or end something."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _kept(value: object) -> int:
    """Count the names of objects, and of those within them."""
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
