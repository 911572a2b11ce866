"""Events: one per change of state, named `room.noun.verb`, with fields, as text or JSON lines.

    2026-01-02T03:04:05.678Z  node.shard.ready              shard=1 ops=12
    {"time": "2026-01-02T03:04:05.678Z", "level": "info", "event": "node.shard.ready", "ops": 1}

Names and values may come from anyone. Whatever they hold, an event is one line, and a field
cannot be taken for another: text that is not plain is quoted, with escapes.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

VALUE_SIZE_MAX: Final = 1000  # characters of one value; what is cut off ends in an ellipsis
_NAME_WIDTH: Final = 28  # the columns that most names fit in
_ROOT: Final = "headrace"
_RESERVED: Final = ("time", "level", "event", "error_trace")

# What needs no quotes: no blank, no quote, no `=`, no backslash, nothing but visible ASCII.
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+", re.ASCII)
_KEY = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)

_logger = logging.getLogger(_ROOT)
_logger.addHandler(logging.NullHandler())  # a library says nothing until it is told where
_logger.setLevel(logging.INFO)


def event(name: str, /, *, level: int = logging.INFO, **fields: object) -> None:
    """Say that something changed. Costs one comparison where its level is not written."""
    if not _logger.isEnabledFor(level):
        return
    assert _NAME.fullmatch(name)
    for key in fields:
        assert _KEY.fullmatch(key)
        assert key not in _RESERVED
    _logger.log(level, name, extra={"fields": fields})


def configure(format: str, level: str, stream: TextIO | None = None) -> None:  # noqa: A002
    """Write events of `level` and above to `stream`, standard error unless it is given.

    A second call replaces the first. Other libraries' logs are left as they are.
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
    """Writes whole lines. A stream that is gone never stops the node."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        return


class _Text(logging.Formatter):
    """Aligned lines; what is above info says so."""

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
    """Return the event's name; a record that came by another way keeps to one word."""
    return record.msg if _NAME.fullmatch(str(record.msg)) else f"{_ROOT}.log.said"


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    if not _NAME.fullmatch(str(record.msg)):
        fields["text"] = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        trace = logging.Formatter().formatException(record.exc_info)
        fields["error_trace"] = trace[-VALUE_SIZE_MAX:]  # its end says what was raised
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
    if isinstance(value, float):  # JSON has no word for what is not finite
        return float(value) if value - value == 0 else str(value)
    return _cut(_text(value))


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_SIZE_MAX else text[:VALUE_SIZE_MAX] + "..."
