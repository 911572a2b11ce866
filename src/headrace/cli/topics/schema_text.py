"""Schemas in the command line's notation: `id:int64 not null,tags:list<string>`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.cli.terminal.exits import NotFound
from headrace.client.write.schemas import field_word, schema_of
from headrace.errors import BadRequest, BadSchema
from headrace.model.column_types import said

_OPENING: Final = "<("
_CLOSING: Final = ">)"
_EXAMPLE: Final = "id:int64,customer:string,price:decimal(10, 2)"
_SCHEMA_FILE_SIZE_MAX: Final = 1024 * 1024


def schema_from_words(text: str) -> pa.Schema:
    """Parse `name:type,name:type`. BadSchema names the invalid column."""
    columns: dict[str, object] = {}
    for part in split_columns(text):
        name, colon, kind = part.partition(":")
        name, kind = name.strip(), kind.strip()
        if not colon or not name or not kind:
            hint = f"Write {_EXAMPLE}"
            raise BadSchema("", f"{said(part.strip())!r} is not a name:type pair", hint=hint)
        if name in columns:
            raise BadSchema(name, "it appears twice", hint="Remove one")
        columns[name] = kind
    return schema_of(columns)


def schema_from_file(path: Path) -> pa.Schema:
    """Parse a file with one JSON object of names and types."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SCHEMA_FILE_SIZE_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"file {path} does not exist") from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _SCHEMA_FILE_SIZE_MAX:
        raise BadRequest(f"{path} is larger than a schema may be")
    hint = 'Write {"id": "int64", "customer": "string"}'
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not valid JSON: {said(error)}", hint=hint) from None
    if not isinstance(found, dict) or not found:
        raise BadRequest(f"{path} is not a JSON object of names and types", hint=hint)
    for name, kind in found.items():
        if not isinstance(kind, str):
            raise BadSchema(name, f"{said(kind)} is not a valid type", hint=hint)
    return schema_of(found)


def split_columns(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return parts


def schema_lines(fields: Iterable[pa.Field]) -> list[tuple[str, str]]:
    """Return a schema as lines of name and type."""
    return [(each.name, field_word(each)) for each in fields]
