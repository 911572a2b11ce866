"""Events: one per change of state, named `room.noun.verb`, with fields, as text or JSON lines.

    2026-01-02T03:04:05.678Z  node.shard.ready              shard=1 ops=12
    {"time": "2026-01-02T03:04:05.678Z", "level": "info", "event": "node.shard.ready", "ops": 1}

Names and values are untrusted. An event is always one line, and fields cannot be confused:
text that is not plain is quoted and escaped.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

VALUE_SIZE_MAX: Final = 1000  # characters of one value; a longer one is cut and ends in dots
_NAME_WIDTH: Final = 28  # columns; most names fit
_ROOT: Final = "headrace"
_RESERVED: Final = ("time", "level", "event", "error_trace")

# Text that needs no quotes: visible ASCII without quotes, `=` and backslashes.
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+", re.ASCII)
_KEY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)

_logger = logging.getLogger(_ROOT)
_logger.addHandler(logging.NullHandler())  # a library is silent until configured
_logger.setLevel(logging.INFO)


def event(name: str, /, *, level: int = logging.INFO, **fields: object) -> None:
    """Log a change of state. Costs one comparison if its level is disabled."""
    if not _logger.isEnabledFor(level):
        return
    assert _NAME.fullmatch(name)
    for key in fields:
        assert _KEY.fullmatch(key)
        assert key not in _RESERVED
    _logger.log(level, name, extra={"fields": fields})


def configure(format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Write events of `level` and above to `stream`, by default standard error.

    A second call replaces the first. Logs of other libraries are not affected.
    """
    assert format in ("text", "json")
    handler = _Lines(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Json() if format == "json" else _Text())
    for old in list(_logger.handlers):
        _logger.removeHandler(old)
    _logger.addHandler(handler)
    _logger.setLevel(level.upper())
    _logger.propagate = False


def line_of(moment: float, name: str, fields: Mapping[str, object]) -> str:
    """Return an event as one line of text."""
    said = " ".join(f"{key}={_said(value)}" for key, value in fields.items())
    return f"{_stamp(moment)}  {name:<{_NAME_WIDTH}}  {said}".rstrip()


class _Lines(logging.StreamHandler[TextIO]):
    """Writes whole lines. A broken stream never stops the node."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        return


class _Text(logging.Formatter):
    """Aligned lines; levels above info are shown."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields_of(record)
        if record.levelno > logging.INFO:
            fields = {"level": record.levelname.lower()} | fields
        return line_of(record.created, _name_of(record), fields)


class _Json(logging.Formatter):
    """JSON lines, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "event": _name_of(record),
        }
        for key, value in _fields_of(record).items():
            line[key] = _json_value(value)
        return json.dumps(line)


def _name_of(record: logging.LogRecord) -> str:
    """Return the event's name; records from elsewhere share a fixed name."""
    return record.msg if _NAME.fullmatch(str(record.msg)) else f"{_ROOT}.log.said"


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    if not _NAME.fullmatch(str(record.msg)):
        fields["text"] = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        trace = logging.Formatter().formatException(record.exc_info)
        fields["error_trace"] = trace[-VALUE_SIZE_MAX:]  # the end names the exception
    return fields


def _stamp(moment: float) -> str:
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _cut(_text(value))
    return text if _PLAIN.fullmatch(text) and text != "-" else json.dumps(text)


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):  # JSON cannot represent infinity and NaN
        return float(value) if value - value == 0 else str(value)
    return _cut(_text(value))


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_SIZE_MAX else text[:VALUE_SIZE_MAX] + "..."
