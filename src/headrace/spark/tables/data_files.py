"""The data files of a table: which it lists, and their rows, wherever the table is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
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

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that a table lists."""

    path: str  # as it is listed: quoted as in a URL
    size: int
    row_count: int | None  # None: it was written without

    @property
    def name(self) -> str:
        """Its name below the table, or its absolute path or URL."""
        return unquote(self.path)


def live_files(table: DeltaTable) -> list[LiveFile]:
    """Return the files that a table lists."""
    rows = pa.table(table.get_add_actions(flatten=True))
    names = [
        name for name in ("path", "size_bytes", "num_records") if name in rows.column_names
    ]
    return [
        LiveFile(row["path"], row["size_bytes"], row.get("num_records"))
        for row in rows.select(names).to_pylist()
    ]


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
    import pyarrow.dataset as ds  # imports pandas: a third of a second, for readers only

    schema = pa.schema(table.schema().to_arrow())
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    how = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    where = _file_system(location)
    paths = [full_path(location, name) if location.is_path else name for name in names]
    return ds.dataset(paths, schema=schema, format=how, filesystem=where)


def damaged_file(location: Location, names: Sequence[str]) -> CorruptFile | None:
    """Return the error of the first damaged file, if any."""
    where = _file_system(location)
    for name in names:
        path = full_path(location, name) if location.is_path else name
        try:
            pq.read_table(path, filesystem=where, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            flaw = str(error).splitlines()[0]
            return CorruptFile(
                f"a data file of the table cannot be read: {flaw}",
                path=full_path(location, name),
            )
    return None


def _file_system(location: Location) -> FileSystem:
    if location.is_path:
        return LocalFileSystem()
    return PyFileSystem(DeltaStorageHandler(location.url, storage_options(location)))
