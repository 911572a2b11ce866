"""On which line of a TOML file a setting stands: for people who have to find it.

The parser gives values without their places, so the text is looked through a second time, for
section headers and keys: bare, quoted and dotted. A file with text that goes over several lines
gets no numbers, rather than wrong ones.
"""

import re
from collections.abc import Mapping
from typing import Final

_WORD: Final = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_NAME: Final = rf"{_WORD}(?:\s*\.\s*{_WORD})*"
_SECTION = re.compile(rf"\s*\[\[?\s*({_NAME})\s*\]\]?")
_KEY = re.compile(rf"\s*({_NAME})\s*=")
_PART = re.compile(_WORD)
_OVER_LINES: Final = ('"""', "'''")


def lines_of(text: str) -> Mapping[str, int]:
    """Return the line, from 1, of each section and each dotted key, as far as it is sure."""
    found: dict[str, int] = {}
    if any(mark in text for mark in _OVER_LINES):
        return found
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _SECTION.match(line), _KEY.match(line)
        if header is not None:
            section = _dotted(header.group(1))
            found.setdefault(section, number)
        elif key is not None:
            name = _dotted(key.group(1))
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _dotted(name: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(name))
