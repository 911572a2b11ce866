"""Reads data files of a table in tasks, for stores that Spark's own scan cannot read."""

import io
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptFile
from headrace.spark.stores.location import Location
from headrace.spark.stores.seam import FileStore, NotInStore, joined
from headrace.spark.stores.store import store_of
from headrace.spark.worker.plain import plain_rows


class _StoredFile(io.RawIOBase):
    """A file of a store, as Arrow reads files."""

    def __init__(self, store: FileStore, name: str) -> None:
        found = store.head(name)
        if found is None:
            raise NotInStore(store.url, name)
        self._store, self._name, self._size = store, name, found.size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._place)
        length = left if size is None or size < 0 else min(size, left)
        found = self._store.read(self._name, self._place, length) if length else b""
        self._place += length
        return found


def rows_of_file(store: FileStore, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file in pieces, conformed to `schema`; missing columns are null."""
    try:
        rows = pq.ParquetFile(
            pa.PythonFile(_StoredFile(store, name), "r"), page_checksum_verification=True
        )
        for number in range(rows.num_row_groups):
            yield _fitted(rows.read_row_group(number), schema)
    except (OSError, pa.ArrowException) as error:
        flaw = str(error).splitlines()[0]
        raise CorruptFile(
            f"a data file of the table cannot be read: {flaw}", path=joined(store.url, name)
        ) from error


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def scanner(
    location: Location, names: Sequence[str], schema: bytes
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` over numbers of files, which yields their rows."""

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exact, store = pa.ipc.read_schema(pa.py_buffer(schema)), store_of(location)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in plain_rows(rows_of_file(store, names[number], exact)):
                    yield from rows.to_batches()

    return scan
