"""Reads the log of a Delta table itself, entry by entry, wherever the table is.

Deltalake shows the state of a table, not what each commit did, and its errors do not name the
entry at fault.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptFile, ReadFailed, StorageFailed, Unavailable, first_line
from headrace.spark.stores.seam import FileStore, NotInStore, joined

LOG: Final = "_delta_log"
_DIGITS: Final = 20  # of an entry's version, in its name
_TRIES_MAX: Final = 20
_WHOLE: Final = 2**62  # more bytes than a file has
_ENTRY_END: Final = 4096  # bytes
_RESTORE: Final = "Restore it from a backup"
_NEWEST: Final = (
    ". It is the newest entry: if its commit was interrupted, move it away, and the pipeline "
    "writes its rows again"
)

Action = dict[str, Any]


def entry_name(version: int) -> str:
    """Return the name of an entry below the table. It may have been cleaned up."""
    return f"{LOG}/{version:0{_DIGITS}}.json"


def has_log(store: FileStore) -> bool:
    """Whether there is a table.

    Deltalake's own function for that holds the interpreter's lock while it waits for a store:
    the driver's other threads, which renew leases and report, would stand still.
    """
    return any(_is_entry(name) or _is_checkpoint(name) for name in _names(store))


def read_entry(store: FileStore, version: int) -> list[Action] | None:
    """Return the actions of an entry. None: it does not exist, or was cleaned up."""
    try:
        data = store.tail(entry_name(version), _WHOLE)
    except NotInStore:
        return None
    except StorageFailed as error:
        raise ReadFailed(error.path, error.cause) from error
    try:
        return _actions(data)
    except ValueError as error:
        raise log_damage(store, ValueError(f"version {version} has {error}")) from error


def entry_end(store: FileStore, version: int) -> bytes | None:
    """Return the end of an entry, to know it again; None if it is not there.

    Entries have random ids and names of files, so those of two tables differ.
    """
    try:
        return store.tail(entry_name(version), _ENTRY_END)
    except NotInStore:
        return None


def each_of(actions: Sequence[Action], kind: str) -> list[Any]:
    """Return what the actions of one kind say."""
    return [action[kind] for action in actions if action.get(kind) is not None]


def is_told(store: FileStore, version: int) -> bool:
    """Whether the log has all entries of a version, from the first or a checkpoint on."""
    versions = set(_versions(store))
    checkpoints = {
        int(name.partition(".")[0]) for name in _names(store) if _is_checkpoint(name)
    }
    for number in range(version, -1, -1):
        if number in checkpoints:
            return True
        if number not in versions:
            return False
    return True


def newest_protocol(store: FileStore) -> Action | None:
    """Return the protocol of a table that deltalake does not load; None if none is found.

    ValueError, ArrowException: the entry or checkpoint that may have it is damaged.
    """
    names = sorted(_names(store), reverse=True)
    entries = [name for name in names if _is_entry(name)]
    for name in [*entries, *filter(_is_checkpoint, names)]:
        data = store.tail(f"{LOG}/{name}", _WHOLE)
        if name in entries:
            found = each_of(
                [json.loads(line) for line in data.splitlines() if line], "protocol"
            )
        else:
            column = pq.read_table(pa.BufferReader(data), columns=["protocol"]).column(0)
            found = [told for told in column.to_pylist() if told is not None]
        if found:
            return dict(found[-1])
    return None


def named_files(store: FileStore) -> set[str]:
    """Return the paths that entries and checkpoints name, also those of removed files."""
    for _ in range(_TRIES_MAX):
        found: set[str] = set()
        try:
            for name in list(_names(store)):
                found.update(_named_in(store, name))
        except NotInStore:
            continue  # the log was cleaned up meanwhile: a checkpoint has what was in it
        return found
    raise Unavailable(
        f"{joined(store.url, LOG)}: files go while they are read", hint="Retry later"
    )


def _named_in(store: FileStore, name: str) -> Iterator[str]:
    """Yield the paths that a file of the log names."""
    is_checkpoint = _is_checkpoint(name) or name.startswith("_sidecars/")
    if not is_checkpoint and not _is_entry(name):
        return
    data = store.tail(f"{LOG}/{name}", _WHOLE)
    try:
        if name.endswith(".parquet"):
            yield from list(_named_by(data))
            return
        actions = _actions(data)
    except (ValueError, pa.ArrowException) as error:
        raise log_damage(store, ValueError(f"{name}: {error}")) from error
    for kind in ("add", "remove"):
        yield from (unquote(one["path"]) for one in each_of(actions, kind))


def log_damage(store: FileStore, error: Exception) -> CorruptFile:
    """Return an error that names the unreadable entry of a table's log."""
    text = f"the table's log cannot be read: {first_line(error)}"
    whole = CorruptFile(text, path=joined(store.url, LOG), hint=_RESTORE)
    return flawed_entry(store) or whole


def flawed_entry(store: FileStore) -> CorruptFile | None:
    """Return the error of the first entry that is not JSON, or is missing between others."""
    versions = _versions(store)
    for one, other in pairwise(versions):
        if other != one + 1:
            text = "an entry of the table's log is missing, but later ones exist"
            path = joined(store.url, entry_name(one + 1))
            return CorruptFile(text, path=path, hint=_RESTORE)
    for version in versions:
        name = entry_name(version)
        try:
            for line in filter(bytes.strip, store.tail(name, _WHOLE).splitlines()):
                json.loads(line)
        except ValueError as error:
            return CorruptFile(
                f"an entry of the table's log is torn: {error}",
                path=joined(store.url, name),
                hint=f"{_RESTORE}{_NEWEST if version == versions[-1] else ''}",
            )
    return None


def _actions(data: bytes) -> list[Action]:
    """Parse an entry. Raises ValueError if it is not an entry of a Delta log."""
    actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line that is not an action")
    for kind in ("add", "remove"):
        if not all(map(_has_path, each_of(actions, kind))):
            raise ValueError(f"a file without a name in {kind}")
    return actions


def _has_path(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("path"), str)


def _named_by(checkpoint: bytes) -> Iterator[str]:
    rows = pq.ParquetFile(pa.BufferReader(checkpoint))
    kinds = [kind for kind in ("add", "remove") if kind in rows.schema_arrow.names]
    for group in range(rows.num_row_groups):
        found = rows.read_row_group(group, columns=[f"{kind}.path" for kind in kinds])
        for kind in kinds:
            told = found.column(kind).combine_chunks()
            paths = told.field("path").to_pylist()
            # Where an action is of another kind, its field is null or empty.
            yield from (unquote(path) for path in paths if path)


def _names(store: FileStore) -> Iterator[str]:
    """Yield the names below the log, without its own."""
    return (found.name.removeprefix(f"{LOG}/") for found in store.list(LOG))


def _versions(store: FileStore) -> list[int]:
    return sorted(int(name.partition(".")[0]) for name in _names(store) if _is_entry(name))


def _is_entry(name: str) -> bool:
    version, _, kind = name.partition(".")
    return kind == "json" and len(version) == _DIGITS and version.isdecimal()


def _is_checkpoint(name: str) -> bool:
    version, _, kind = name.partition(".")
    return kind.startswith("checkpoint") and version.isdecimal()
