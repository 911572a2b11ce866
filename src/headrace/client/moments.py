"""Times, durations and sizes as users say them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.errors import BadConfig, BadRequest
from headrace.model.units import Duration, parse_duration, parse_size

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_AGO: Final = re.compile(r"-\s*(\S+)")


def microseconds(moment: datetime | str) -> int:
    """Return a time as microseconds since 1970: a datetime, `-15m`, `now`, or ISO 8601."""
    if isinstance(moment, datetime):
        return (_aware(moment) - _EPOCH) // _MICROSECOND
    if moment == "now":
        return microseconds(datetime.now(UTC))
    if (ago := _AGO.fullmatch(moment)) is not None:
        return microseconds(datetime.now(UTC)) - duration(ago[1], "a time").us
    try:
        return microseconds(datetime.fromisoformat(moment))
    except ValueError:
        raise BadRequest(
            f"{moment[:100]!r} is no time",
            hint="Give a datetime, 2026-11-15T10:00Z, -15m, now, earliest or latest",
        ) from None


def duration(value: str | float | timedelta, what: str) -> Duration:
    """Return a duration: `30s`, seconds as a number, or a timedelta."""
    if isinstance(value, timedelta):
        return _not_negative(value // _MICROSECOND, what)
    if isinstance(value, int | float):
        return _not_negative(round(value * 1_000_000), what)
    try:
        return parse_duration(value)
    except BadConfig as error:
        raise BadRequest(f"{what}: {Exception.__str__(error)}", hint=error.hint) from None


def size(value: str | int, what: str) -> int:
    """Return a size in bytes: `64MiB`, or a number."""
    if isinstance(value, int):
        if value < 0:
            raise BadRequest(f"{what}: {value} is no size")
        return value
    try:
        return parse_size(value)
    except BadConfig as error:
        raise BadRequest(f"{what}: {Exception.__str__(error)}", hint=error.hint) from None


def _not_negative(us: int, what: str) -> Duration:
    if us < 0:
        raise BadRequest(f"{what}: a duration is not negative")
    return Duration(us)


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise BadRequest(
            f"{moment.isoformat()} has no time zone",
            hint="Say which: datetime.now(UTC), or moment.astimezone() for local time",
        )
    return moment
