"""Reads a file in any format: its own schema, and batches of a topic's schema."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from headrace.cli.formats.arrow_rows import arrow_batches, arrow_file
from headrace.cli.formats.csv_rows import Csv, csv_batches, delimiter_of, open_csv
from headrace.cli.formats.formats import Format, InputFile
from headrace.cli.formats.lines import CHUNK_SIZE, BadLine, LineChunk, Unfit, line_chunks
from headrace.cli.formats.ndjson_rows import ndjson_batches
from headrace.cli.formats.type_guess import guess_csv, guess_ndjson, names_in
from headrace.client.write.schemas import schema_of
from headrace.errors import BadRequest, HeadraceError
from headrace.model.schema import RESERVED


@dataclass(slots=True)
class Incoming:
    """An opened file of rows, none of which was consumed yet."""

    source: InputFile
    kind: Format
    chunks: Iterator[LineChunk]  # of text
    arrow: tuple[pa.Schema, Iterator[pa.RecordBatch]] | None = None
    csv: Csv | None = None

    def schema(self) -> pa.Schema:
        """Return the file's own or inferred schema, in canonical form."""
        if self.arrow is not None:
            _check_names(self.source, self.arrow[0].names)
            return schema_of(self.arrow[0])
        sample = self._sample()
        try:
            if self.csv is not None:
                _check_names(self.source, self.csv.columns)
                return guess_csv(self.csv, sample.records)
            _check_names(self.source, names_in(sample.records))
            return guess_ndjson(sample.records)
        except Unfit:
            raise _first_flaw(self.source, self.csv, sample) from None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in a topic's schema. An error names the line that does not fit."""
        if self.arrow is not None:
            return arrow_batches(self.source.name, self.arrow[1], schema)
        if self.csv is not None:
            return csv_batches(replace(self.csv, chunks=self.chunks), schema)
        return ndjson_batches(self.source, schema, self.chunks)

    def _sample(self) -> LineChunk:
        """Read about the first megabyte, and put it back in front of the rest."""
        taken: list[LineChunk] = []
        size = 0
        for chunk in self.chunks:
            taken.append(chunk)
            size += sum(map(len, chunk.records))
            if size >= CHUNK_SIZE or (size and not self.source.file.seekable()):
                break  # in a pipe, this may be all for a while
        self.chunks = chain(taken, self.chunks)
        records = [record for chunk in taken for record in chunk.records]
        return LineChunk(records, [line for chunk in taken for line in chunk.lines])


@contextmanager
def incoming(
    source: InputFile, kind: Format, delimiter: str | None = None
) -> Iterator[Incoming]:
    """Open a source of rows. A delimiter is passed as typed, and only for CSV."""
    if delimiter is not None and kind is not Format.CSV:
        flaw = f"--delimiter is only for CSV, but {source.name} was detected as {kind}"
        raise BadRequest(flaw, hint="Add --format csv, or omit --delimiter")
    match kind:
        case Format.NDJSON:
            yield Incoming(source, kind, line_chunks(source))
        case Format.CSV:
            csv = open_csv(source, None if delimiter is None else delimiter_of(delimiter))
            yield Incoming(source, kind, csv.chunks, csv=csv)
        case Format.ARROW | Format.PARQUET:
            with arrow_file(source, kind) as arrow:
                yield Incoming(source, kind, iter(()), arrow=arrow)


def schema_in(source: InputFile, kind: Format, delimiter: str | None = None) -> pa.Schema:
    """Return the schema of a file's rows."""
    with incoming(source, kind, delimiter) as found:
        return found.schema()


def _check_names(source: InputFile, names: Iterable[str]) -> None:
    """Refuse the system columns that `headrace read` adds."""
    for name in names:
        if name.startswith(RESERVED):
            hint = "Remove it, as headrace read --no-system does"
            raise BadRequest(f"{source.name}: column {name!r} is reserved", hint=hint)


def _first_flaw(source: InputFile, csv: Csv | None, sample: LineChunk) -> BadLine:
    """Return the error for the first line that no schema can be inferred from."""
    for record, line in zip(sample.records, sample.lines, strict=True):
        try:
            if csv is None:
                guess_ndjson([record])
            else:
                guess_csv(csv, [record])
        except Unfit as flaw:
            return BadLine(source.name, line, flaw, hint=flaw.hint)
        except HeadraceError:
            continue  # one line alone may be all null
    raise AssertionError("lines that are no rows together are rows alone")
