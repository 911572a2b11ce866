"""The contents of a segment: footer, columns, and row group by row group.

A damaged footer is parsed in a child process: if the parser crashes, only the child dies.
"""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.doctor.anatomy.file_anatomy import Anatomy, Table, opened
from headrace.doctor.look.segments import MAGIC, extent
from headrace.errors import BadBatch, BadRequest, BadSchema, Corrupt, first_line
from headrace.model.row_digest import RowDigest
from headrace.model.schema import stored_name
from headrace.partition.segments.segment import (
    OFFSET,
    ROW_DIGEST_KEY,
    format_of,
    is_dense,
    retyped,
    rows_schema_of,
)
from headrace.partition.segments.segment_reader import open_parquet
from headrace.storage.seam import Storage
from headrace.storage.stream import whole_digest

_HEADS = ("row group", "first row", "rows", "position", "bytes", "state")


def segment_anatomy(path: str, limit: int) -> Anatomy:
    """Show a segment as far as it goes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(take_apart, path, limit).result()
        except BrokenProcessPool:
            file = opened(path)
            found = Anatomy("segment", file.size())
            file.close()
            found.flaw(None, "the process that parsed it crashed")
            return found


def take_apart(path: str, limit: int) -> Anatomy:
    """Do the work, in the child."""
    file = opened(path)
    try:
        found = Anatomy("segment", file.size())
        found.fields["file digest"] = whole_digest(file).hex()
        if file.read(0, 4) != MAGIC:
            found.flaw(0, "it does not begin like a Parquet file")
        if file.read(max(0, file.size() - 4), 4) != MAGIC:
            found.flaw(max(0, file.size() - 4), "it does not end like a Parquet file")
            return found
        _parquet(file, found, limit)
        return found
    finally:
        file.close()


def _parquet(file: Storage, found: Anatomy, limit: int) -> None:
    try:
        parquet = open_parquet(file)
        metadata = parquet.metadata
        said = metadata.metadata or {}
        _require_segment(file, said)
        form = format_of(said, file.path)
        schema = rows_schema_of(said, form)
    except (pa.ArrowException, OSError, ValueError, KeyError, Corrupt) as error:
        why = first_line(error)
        found.flaw(None, f"its footer cannot be read: {why}")
        return
    found.fields |= {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in sorted(said.items())
        if key.startswith(b"headrace.")
    }
    found.fields |= {"rows": metadata.num_rows, "written by": metadata.created_by}
    columns = Table("columns", ("column", "type", "nullable"))
    for each in schema:
        name = stored_name(each.name, form)
        columns.add(limit, name, str(each.type), "yes" if each.nullable else "no")
    found.tables.append(columns)
    _groups(parquet, schema, form, found, limit)


def _require_segment(file: Storage, said: dict[bytes, bytes]) -> None:
    if not any(key.startswith(b"headrace.") for key in said):
        raise BadRequest(
            f"{file.path} is a Parquet file, but not a Headrace segment",
            hint="Segments are in the `segments` directory of a group",
        )


def _groups(
    parquet: pq.ParquetFile, schema: pa.Schema, form: int, found: Anatomy, limit: int
) -> None:
    table = Table("row groups", _HEADS)
    found.tables.append(table)
    try:
        digest: RowDigest | None = RowDigest(schema)
    except BadSchema:
        digest = None
    first = int(str(found.fields.get("headrace.first", "0")) or 0)
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        position = extent(group.column(0))[0]
        size = sum(
            group.column(each).total_compressed_size for each in range(group.num_columns)
        )
        state = "ok"
        try:
            rows = parquet.read_row_group(number, use_threads=False)
            for each in rows.to_batches():
                batch = retyped(each, schema, form)
                if digest is not None:
                    digest.update(batch)
            if not is_dense(rows.column(stored_name(OFFSET, form)).combine_chunks(), first):
                state = f"its offsets are not consecutive from {first:,}"
        except (pa.ArrowException, OSError, KeyError, BadBatch) as error:
            state = first_line(error)
        if state != "ok":
            found.flaw(position, f"row group {number}: {state}")
            digest = None
        table.add(limit, str(number), first, group.num_rows, position, size, state)
        first += group.num_rows
    if digest is not None:
        _compare(digest, found)


def _compare(digest: RowDigest, found: Anatomy) -> None:
    said, rows = str(found.fields.get(ROW_DIGEST_KEY, "")), digest.digest().hex()
    if said != rows:
        found.flaw(
            None, f"row digest: the footer has {said or 'nothing'}, the rows have {rows}"
        )
