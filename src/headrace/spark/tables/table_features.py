"""Refuses Delta tables whose features place demands on writers that Headrace does not meet.

Deltalake commits ready-made files without checks, neither for rows that violate a constraint
nor for columns with other names in the files. So there is a list of supported features, and a
table with any other is refused before a file is written. A protocol given only by numbers
implies features, too: then properties and columns decide.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.table import ProtocolVersions

from headrace.spark.stores.seam import FileStore
from headrace.spark.tables.table_errors import TableStrange
from headrace.spark.tables.table_log import newest_protocol

# Features without demands on appends, or without any unless a column or property uses them.
KEPT: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",  # if there are none
        "generatedColumns",  # if there are none
        "invariants",  # if there are none
        "timestampNtz",
        "v2Checkpoint",
    }
)
# Features that change how files are read. Tables of pipelines have none of them.
_STRANGE: Final = frozenset({"deletionVectors", "columnMapping"})
_MAPPING: Final = "delta.columnMapping.mode"  # applies in older protocols, too
_READER_MAX: Final = 3  # with a list of features
_WRITER_MAX: Final = 7  # the same
_IDENTITY: Final = 6  # the writer version that implies identity columns
_CONSTRAINT: Final = "delta.constraints."
_APPEND_ONLY: Final = "delta.appendOnly"
_CHANGES: Final = "delta.enableChangeDataFeed"
_COLUMN: Final = "delta."  # prefix of column metadata that makes demands
_DEFAULT: Final = "CURRENT_DEFAULT"
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"  # checked by Spark, not part of Delta


def refuse_unkept(table: DeltaTable, path: str) -> None:
    """Raise TableStrange if the table has features that our commits would violate."""
    _refuse(_unkept(table), path)


def _refuse(unkept: Iterator[str], path: str) -> None:
    if found := sorted(set(unkept)):
        raise TableStrange(
            f"the table at {path} has {', '.join(found)}, which Headrace does not support: it "
            "writes nothing to it",
            hint="Remove that from the table, or write the rows to a new table",
        )


def refuse_removal(table: DeltaTable, path: str, *, is_partial: bool) -> None:
    """Raise TableStrange if the table forbids removal of rows. `is_partial`: parts of files."""
    settings = table.metadata().configuration
    for name, counts in ((_APPEND_ONLY, True), (_CHANGES, is_partial)):
        if counts and settings.get(name, "").lower() == "true":
            raise TableStrange(
                f"the table at {path} has {name}, but rows would be removed from it",
                hint="Set it to false, or write the rows to a new table",
            )


def refuse_unloaded(store: FileStore) -> None:
    """Raise TableStrange if a table fails to load because of its protocol, not of damage."""
    try:
        told = newest_protocol(store)
        versions = None if told is None else _versions(told)
    except (ValueError, TypeError, KeyError, pa.ArrowException):
        return  # it is torn, which has its own error
    if versions is not None:
        _refuse(_features(versions), store.url)


def _versions(protocol: dict[str, Any]) -> ProtocolVersions:
    return ProtocolVersions(
        int(protocol["minReaderVersion"]),
        int(protocol["minWriterVersion"]),
        protocol.get("writerFeatures"),
        protocol.get("readerFeatures"),
    )


def strange_features(table: DeltaTable) -> list[str]:
    """Return the features of a table with which its files alone do not tell its rows."""
    found = _STRANGE & set(table.protocol().reader_features or ())
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        found |= {"columnMapping"}
    return sorted(found)


def _unkept(table: DeltaTable) -> Iterator[str]:
    metadata = table.metadata()
    yield from _features(table.protocol())
    yield from strange_features(table)
    for name, text in metadata.configuration.items():
        if name.startswith(_CONSTRAINT):
            yield f"the constraint {name.removeprefix(_CONSTRAINT)} ({text})"
    for name in metadata.partition_columns:
        yield f"the partition column {name}"
    yield from _columns("", json.loads(table.schema().to_json()))


def _features(protocol: ProtocolVersions) -> Iterator[str]:
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if reader > _READER_MAX or writer > _WRITER_MAX:
        yield f"protocol ({reader}, {writer})"
    elif writer == _IDENTITY:
        yield "identityColumns"
    named = set(protocol.reader_features or ()) | set(protocol.writer_features or ())
    yield from named - KEPT


def _columns(path: str, kind: Any) -> Iterator[str]:  # noqa: ANN401 - a schema of Delta, as JSON
    """Yield the demands of columns at any depth."""
    if isinstance(kind, list):
        for each in kind:
            yield from _columns(path, each)
    if not isinstance(kind, dict):
        return
    own = path
    if "metadata" in kind and "name" in kind:
        own = f"{path}.{kind['name']}" if path else str(kind["name"])
        for name in kind["metadata"]:
            if name.startswith(_COLUMN) or name == _DEFAULT:
                yield f"{name} of column {own}"
            elif name == _LENGTH:
                yield f"{kind['metadata'][name]} of column {own}"
    for name in ("fields", "type", "elementType", "keyType", "valueType"):
        yield from _columns(own, kind.get(name))
