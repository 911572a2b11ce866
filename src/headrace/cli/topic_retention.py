"""How long rows are kept, as `--retention` says it: `7d`, `10GiB`, both, or `forever`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadConfig, BadRequest
from headrace.model.types import said
from headrace.model.units import parse_duration, parse_size

FOREVER: Final = "forever"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was said. None is nothing; an empty text is no limit."""

    age: str | None = None
    size: str | None = None


def kept_of(given: Sequence[str]) -> Kept:
    """Read what was given, each by its unit: a time, or a size of each partition."""
    ages, sizes = [], []
    parts = [part.strip() for each in given for part in each.split(",")]
    for part in parts:
        if part == FOREVER:
            ages.append("")
            sizes.append("")
        elif _is_time(part):
            ages.append(part)
        elif _is_size(part):
            sizes.append(part)
        else:
            hint = f"Give a time (7d), a size of each partition (10GiB), or {FOREVER}"
            raise BadRequest(f"--retention: {said(part)!r} is neither", hint=hint)
    if len(ages) > 1 or len(sizes) > 1:
        raise BadRequest(
            "--retention says two things", hint="Give one time and one size at most"
        )
    return Kept(ages[0] if ages else None, sizes[0] if sizes else None)


def _is_time(text: str) -> bool:
    try:
        parse_duration(text)
    except BadConfig:
        return False
    return True


def _is_size(text: str) -> bool:
    if text.isdigit():
        return False  # bytes, or seconds: nobody can tell
    try:
        parse_size(text)
    except BadConfig:
        return False
    return True
