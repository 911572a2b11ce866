"""Parses numbers, strings, times, durations and sizes from users."""

import math
import operator
import re
from datetime import UTC, datetime, timedelta
from numbers import Real
from os import fsencode, fspath
from typing import Final

from headrace.errors import BadConfig, BadRequest
from headrace.model.column_types import said
from headrace.model.units import NUMBER_MAX, Duration, parse_duration, parse_size

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_MAX: Final = 100  # characters of an invalid value that a message shows
_AGO: Final = re.compile(r"-\s*(\S+)")
_AGO_TYPED: Final = re.compile(r"-([0-9]+[a-z]+)", re.ASCII)
TIMES: Final = "Use 2026-11-15T10:00Z, -10m, or now"


def whole(value: object, what: str) -> int:
    """Return an integer, also one of NumPy. A bool is refused."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except TypeError:  # an array has the method, but is not one number
            pass
    raise BadRequest(f"{what}: {_shown(value)} is not an integer", hint="Pass an int")


def word(value: object, what: str) -> str:
    """Return a string that can be sent."""
    if not isinstance(value, str):
        raise BadRequest(f"{what}: {_shown(value)} is not a string", hint="Pass a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        flaw = f"{what}: {_shown(value)} cannot be encoded as UTF-8"
        raise BadRequest(flaw, hint="Remove the lone surrogate") from None
    return value


def path_of(value: object, what: str) -> str:
    """Return a path as a string."""
    try:
        found = fspath(value)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise BadRequest(f"{what}: {_shown(value)} is not a path", hint="Pass a str or a Path")
    if not found:
        raise BadRequest(f"{what}: must not be empty", hint='Use "." for the current directory')
    try:
        is_path = b"\0" not in fsencode(found)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise BadRequest(
            f"{what}: {_shown(value)} is not a valid path",
            hint="Remove the NUL byte or the lone surrogate",
        )
    return found


def microseconds(moment: datetime | str) -> int:
    """Return a time as microseconds since 1970: a datetime, `-15m`, `now`, or ISO 8601."""
    if isinstance(moment, datetime):
        return (_aware(moment) - _EPOCH) // _MICROSECOND
    if not isinstance(moment, str):
        raise _no_time(moment)
    if moment == "now":
        return microseconds(datetime.now(UTC))
    if (ago := _AGO.fullmatch(moment)) is not None:
        return microseconds(datetime.now(UTC)) - duration(ago[1], "a time").us
    try:
        return microseconds(datetime.fromisoformat(moment))
    except ValueError:
        raise _no_time(moment) from None


def moment_of(text: str) -> datetime:
    """Return the time that `text` names: `now`, `-10m`, or ISO 8601 with a time zone."""
    if text == "now":
        return datetime.now(UTC)
    if (ago := _AGO_TYPED.fullmatch(text)) is not None:
        return _before_now(ago[1])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{said(text)!r} is not a valid time", hint=TIMES) from None
    if found.tzinfo is None:
        zoned = f"{found.isoformat(timespec='minutes')}Z"
        flaw = f"{said(text)!r} has no time zone"
        raise BadRequest(flaw, hint=f"Write {zoned} for UTC")
    return found.astimezone(UTC)


def duration(value: str | float | timedelta, what: str) -> Duration:
    """Return a duration: `30s`, seconds as a number, or a timedelta."""
    given: object = value  # or a NumPy number
    if isinstance(value, timedelta):
        return _not_negative(value // _MICROSECOND, what)
    if type(given) is not bool and isinstance(given, Real):
        try:
            seconds = float(given)
        except OverflowError:
            seconds = math.inf
        if not math.isfinite(seconds) or seconds * 1_000_000 > NUMBER_MAX:
            raise BadRequest(
                f"{what}: {_shown(value)} s is too long", hint="Use a shorter duration"
            )
        return _not_negative(round(seconds * 1_000_000), what)
    if not isinstance(value, str):
        hint = "Use 30s, a number of seconds, or a timedelta"
        raise BadRequest(f"{what}: {_shown(value)} is not a valid duration", hint=hint)
    try:
        return parse_duration(value)
    except BadConfig as error:
        raise BadRequest(f"{what}: {Exception.__str__(error)}", hint=error.hint) from None


def size(value: str | int, what: str) -> int:
    """Return a size in bytes: `64MiB`, or a number."""
    if not isinstance(value, str):
        found = whole(value, what)
        if not 0 <= found <= NUMBER_MAX:
            raise BadRequest(
                f"{what}: {_shown(found)} is not a valid size",
                hint="Use 64MiB or a number of bytes",
            )
        return found
    try:
        return parse_size(value)
    except BadConfig as error:
        raise BadRequest(f"{what}: {Exception.__str__(error)}", hint=error.hint) from None


def _not_negative(us: int, what: str) -> Duration:
    if us < 0:
        raise BadRequest(f"{what}: a duration cannot be negative")
    return Duration(us)


def _no_time(moment: object) -> BadRequest:
    return BadRequest(
        f"{_shown(moment)} is not a valid time",
        hint="Use a datetime, 2026-11-15T10:00Z, -15m, now, earliest or latest",
    )


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**_SHOWN_MAX:
        return "a number with too many digits to show"  # which Python refuses to format
    return repr(value)[:_SHOWN_MAX]


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise BadRequest(
            f"{moment.isoformat()} has no time zone",
            hint="Add one: datetime.now(UTC), or moment.astimezone() for local time",
        )
    return moment


def _before_now(length: str) -> datetime:
    now = datetime.now(UTC)
    try:
        return now - timedelta(microseconds=duration(length, "a time").us)
    except OverflowError:
        raise BadRequest(
            f"-{length} is too far in the past", hint="Use a shorter duration"
        ) from None
