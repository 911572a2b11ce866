"""Durations and sizes as people write them: `30s`, `7d`, `64MiB`, `1GB`.

    duration := number unit      unit := us | ms | s | m | h | d
    size     := number [unit]    unit := B | KiB | MiB | GiB | TiB | KB | MB | GB | TB

A number is whole, in ASCII digits; a size without a unit is in bytes. Formatting is exact
and parses back to the same value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadConfig

NUMBER_MAX: Final = 2**63 - 1  # bytes or microseconds: the range of an int64
SHOWN_MAX: Final = 100  # characters of an invalid text that a message shows

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

_BINARY_UNITS: Final = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB}
_DECIMAL_UNITS: Final = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}
SIZE_UNITS: Final[Mapping[str, int]] = _BINARY_UNITS | _DECIMAL_UNITS | {"B": 1}
DURATION_UNITS: Final[Mapping[str, int]] = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}

# Nineteen digits exceed NUMBER_MAX: longer numbers are not parsed.
_QUANTITY = re.compile(r"([0-9]{1,19})([A-Za-z]*)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time. Written `30 * SECOND` in code and `30s` by people."""

    us: int

    @property
    def ms(self) -> int:
        """Whole milliseconds, never less than the duration."""
        return -(-self.us // 1_000)

    @property
    def seconds(self) -> float:
        return self.us / 1_000_000

    def __rmul__(self, count: int) -> "Duration":
        return Duration(count * self.us)

    def __str__(self) -> str:
        return format_duration(self)


MILLISECOND: Final = Duration(DURATION_UNITS["ms"])
SECOND: Final = Duration(DURATION_UNITS["s"])
MINUTE: Final = Duration(DURATION_UNITS["m"])
HOUR: Final = Duration(DURATION_UNITS["h"])
DAY: Final = Duration(DURATION_UNITS["d"])


def parse_duration(text: str) -> Duration:
    """Parse `30s`. Raises BadConfig without a key, as the caller knows the setting."""
    return Duration(_parse(text, "duration", DURATION_UNITS, "30s, 5m or 7d"))


def parse_size(text: str) -> int:
    """Parse `64MiB` as bytes. Raises BadConfig without a key, as `parse_duration` does."""
    return _parse(text, "size", SIZE_UNITS, "64MiB or 1GB", bare=1)


def format_duration(duration: Duration) -> str:
    """Format a duration in the largest unit that is exact."""
    assert duration.us >= 0
    if not duration.us:
        return "0s"
    name, unit = next(each for each in DURATION_UNITS.items() if duration.us % each[1] == 0)
    return f"{duration.us // unit}{name}"


def format_size(size: int) -> str:
    """Format a size exactly, in the fewest digits; prefers binary units."""
    assert size >= 0
    if not size:
        return "0B"
    exact = [(size // unit, name) for name, unit in SIZE_UNITS.items() if size % unit == 0]
    number, name = min(exact, key=lambda each: len(str(each[0])))
    return f"{number}{name}"


def _parse(
    text: str, what: str, units: Mapping[str, int], example: str, *, bare: int = 0
) -> int:
    shown = repr(text[:SHOWN_MAX])
    match = _QUANTITY.fullmatch(text)
    if match is None:
        hint = _meant(text, units) or f"Write a whole number and a unit, such as {example}"
        raise BadConfig("", f"{shown} is not a valid {what}", hint=hint)
    number, name = int(match.group(1)), match.group(2)
    unit = units.get(name, 0) if name else bare
    if not name and not bare:
        raise BadConfig("", f"{shown} has no unit", hint=f"Write {number}s for seconds")
    if not unit:
        hint = _meant(text, units) or f"The units are {', '.join(reversed(list(units)))}"
        raise BadConfig("", f"{shown} does not have a {what} unit", hint=hint)
    if number * unit > NUMBER_MAX:
        raise BadConfig("", f"{shown} is too large for a {what}")
    return number * unit


def _meant(text: str, units: Mapping[str, int]) -> str:
    """Suggest the same text in another case or without spaces."""
    match = _QUANTITY.fullmatch("".join(text[:SHOWN_MAX].split()))
    if match is None:
        return ""
    found = [name for name in units if name.casefold() == match.group(2).casefold()]
    return f"Did you mean {match.group(1)}{found[0]}?" if found else ""
