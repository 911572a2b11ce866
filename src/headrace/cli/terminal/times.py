"""Human-readable times: positions in a topic, moments, ages.

    place := offset | earliest | latest | now | -DURATION | ISO 8601 with a time zone

An offset is a number; `-10m` is ten minutes ago; `2026-11-15T10:00Z` is a moment.
"""

import re
from datetime import UTC, datetime
from typing import Final

from headrace.client.read.spans import EARLIEST, LATEST
from headrace.client.values.parse import TIMES, moment_of
from headrace.errors import BadRequest
from headrace.model.column_types import said

Place = int | str | datetime  # accepted by the API as `start` and `end`

PLACES: Final = "an offset, 2026-11-15T10:00Z, -10m, now, earliest or latest"
_OFFSET: Final = re.compile(r"[0-9]+", re.ASCII)
_OFFSET_DIGITS_MAX: Final = 19
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


def place_of(text: str, option: str) -> Place:
    """Parse a position. An error names the option that it was given to."""
    if text in (EARLIEST, LATEST):
        return text
    if _OFFSET.fullmatch(text):
        if len(text) > _OFFSET_DIGITS_MAX:
            hint = f"An offset has at most {_OFFSET_DIGITS_MAX} digits"
            raise BadRequest(f"{option}: {said(text)} is not a valid offset", hint=hint)
        return int(text)
    try:
        return moment_of(text)
    except BadRequest as error:
        hint = error.hint if error.hint != TIMES else f"Give {PLACES}"
        raise BadRequest(f"{option}: {Exception.__str__(error)}", hint=hint) from None


def iso(moment: datetime) -> str:
    """Format a moment as ISO 8601 in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def shown_seconds(seconds: float) -> str:
    """Format a duration for people: `0.3 s`, `12 s`, `3m 20s`, `2d 4h`."""
    if seconds < 10:
        return "0 s" if not seconds else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for place, (unit, name) in enumerate(_UNITS):
        if whole >= unit:
            less, less_name = _UNITS[place + 1] if place + 1 < len(_UNITS) else (1, "s")
            return f"{whole // unit}{name} {whole % unit // less}{less_name}"
    raise AssertionError(whole)
