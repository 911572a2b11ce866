"""The data files of a table: which it lists, and their rows, wherever the table is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem

from headrace.errors import CorruptFile
from headrace.spark.stores.location import Location
from headrace.spark.stores.options import storage_options
from headrace.spark.stores.seam import joined
from headrace.spark.stores.store import store_of
from headrace.spark.worker.files import COPY_KEY

if TYPE_CHECKING:
    import pyarrow.dataset as ds

# Statistics that tell which rows a file has.
_PLACED: Final = (
    "num_records",
    "min._hr_partition",
    "max._hr_partition",
    "min._hr_offset",
    "max._hr_offset",
)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A range of one partition of which a file has each row, by its statistics."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that a table lists."""

    path: str  # as it is listed: quoted as in a URL
    size: int
    row_count: int | None  # None: it was written without
    place: FilePlace | None = None  # None: its rows are not a whole range, or it is unknown

    @property
    def name(self) -> str:
        """Its name below the table, or its absolute path or URL."""
        return unquote(self.path)


def live_files(table: DeltaTable) -> list[LiveFile]:
    """Return the files that a table lists."""
    rows = pa.table(table.get_add_actions(flatten=True))
    known = set(rows.column_names)
    found = rows.select([name for name in ("path", "size_bytes", *_PLACED) if name in known])
    return [
        LiveFile(row["path"], row["size_bytes"], row.get("num_records"), _place(row))
        for row in found.to_pylist()
    ]


def _place(row: dict[str, Any]) -> FilePlace | None:
    count, low, high, first, last = (row.get(name) for name in _PLACED)
    if count is None or low is None or first is None or last is None:
        return None
    is_range = low == high and last - first + 1 == count
    return FilePlace(low, first, last + 1) if is_range else None


def copied_life(location: Location, file: LiveFile) -> str:
    """Return the life of the topic whose rows a file has as they are; empty: it has not."""
    path, where = _file_path(location, file.name), file_system(location)
    try:
        found = pq.read_metadata(path, filesystem=where).metadata or {}
    except (OSError, pa.ArrowException):
        return ""  # whoever reads its rows finds the flaw
    life: bytes = found.get(COPY_KEY.encode(), b"")
    return life.decode("utf-8", "replace")


def full_path(location: Location, name: str) -> str:
    """Return the path or URL of a file that a table lists."""
    name = name.removeprefix("file://")
    return name if name.startswith("/") or "://" in name else joined(location.url, name)


def data_paths(where: Location, table: DeltaTable) -> list[str]:
    """Return the paths or URLs of the files that a table lists."""
    return [full_path(where, one.name) for one in live_files(table)]


def exists(location: Location, name: str) -> bool:
    """Whether a file that a table lists, or listed, is there."""
    full = full_path(location, name)
    if full.startswith("/"):
        return Path(full).is_file()
    return store_of(location).head(name) is not None


def refuse_missing(location: Location, files: Sequence[LiveFile]) -> None:
    """Raise CorruptFile for a file that a table lists and that is missing."""
    for one in files:
        if not exists(location, one.name):
            raise CorruptFile(
                "a data file that the table lists is missing",
                path=full_path(location, one.name),
            )


def rows_of(location: Location, table: DeltaTable, names: Sequence[str]) -> "ds.Dataset":
    """Return the rows of files as those of the table. Page checksums are verified."""
    schema = pa.schema(table.schema().to_arrow())
    return as_dataset(schema, fragments_of(location, names))


def fragments_of(location: Location, names: Sequence[str]) -> "list[ds.ParquetFileFragment]":
    """Return files that are to be read with their page checksums. None is opened yet."""
    where, how = file_system(location), _format()
    return [how.make_fragment(_file_path(location, name), where) for name in names]


def as_dataset(schema: pa.Schema, files: "Sequence[ds.ParquetFileFragment]") -> "ds.Dataset":
    """Return the rows of files, or of parts of them, with the columns of a table."""
    import pyarrow.dataset as ds  # imports pandas: a third of a second, for readers only

    return ds.FileSystemDataset(files, schema, _format())


def _format() -> "ds.ParquetFileFormat":
    import pyarrow.dataset as ds  # likewise

    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.ParquetFileFormat(default_fragment_scan_options=checked)


def _file_path(location: Location, name: str) -> str:
    """Return the path of a file that a table lists, for the table's file system."""
    return full_path(location, name) if location.is_path else name


def damaged_file(location: Location, names: Sequence[str]) -> CorruptFile | None:
    """Return the error of the first damaged file, if any."""
    where = file_system(location)
    for name in names:
        path = _file_path(location, name)
        try:
            pq.read_table(path, filesystem=where, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            flaw = str(error).splitlines()[0]
            return CorruptFile(
                f"a data file of the table cannot be read: {flaw}",
                path=full_path(location, name),
            )
    return None


def file_system(location: Location) -> FileSystem:
    """Return how Arrow reads the files of a table."""
    if location.is_path:
        return LocalFileSystem()
    return PyFileSystem(DeltaStorageHandler(location.url, storage_options(location)))
