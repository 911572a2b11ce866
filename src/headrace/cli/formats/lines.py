"""Text formats as records: chunks of whole lines, and the line at which rows cease to fit.

Memory is bounded: a chunk has about a megabyte, or one line, and a line has a limit, too.
What is there is given at once, so that rows of a pipe do not wait for others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.cli.formats.formats import InputFile
from headrace.errors import HeadraceError, Rejected
from headrace.journal.entry import BODY_SIZE_MAX

CHUNK_SIZE: Final = 1024 * 1024
LINE_SIZE_MAX: Final = BODY_SIZE_MAX  # a row must fit one body, and text is about as long
SHOWN_MAX: Final = 80  # characters of a value that a message repeats
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
BOM: Final = b"\xef\xbb\xbf"


class Unfit(HeadraceError):
    """A record that is no row of the schema. Who raises it does not know its line."""

    def __init__(self, flaw: str, *, column: str = "", hint: str = "") -> None:
        super().__init__(f"column {column!r}: {flaw}" if column else flaw, hint=hint)
        self.column = column
        self.flaw = flaw

    @classmethod
    def value(cls, column: str, expected: object, found: object) -> "Unfit":
        return cls(f"expected {expected}, found {shown(found)}", column=column)


class BadLine(Rejected):
    """A line of a file that is no row of the schema; the rows before it were given."""

    def __init__(self, name: str, line: int, flaw: Unfit, *, hint: str = "") -> None:
        super().__init__(f"{name} line {line}: {Exception.__str__(flaw)}", hint=hint)
        self.line = line
        self.column = flaw.column


@dataclass(slots=True)
class LineChunk:
    """Some whole records, and the line at which each begins."""

    records: list[bytes] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


Convert = Callable[[list[bytes]], pa.RecordBatch]


def shown(value: object) -> str:
    """Return a value as a message repeats it, on one line: text in quotes, else as JSON."""
    try:
        text = repr(value) if isinstance(value, str) else _ENCODER.encode(value).decode()
    except RecursionError:
        return "lists within lists, too deep to show"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def ends_in_cr() -> Unfit:
    """Say that what is one line were several, once."""
    return Unfit("its lines end in CR alone", hint=r"tr '\r' '\n' makes them end in LF")


def fitted(
    name: str, chunks: Iterator[LineChunk], convert: Convert
) -> Iterator[pa.RecordBatch]:
    """Give the rows of all chunks; at the first line that does not fit, raise BadLine.

    All rows before that line are given, and none after it.
    """
    for chunk in chunks:
        if not chunk.records:
            continue
        try:
            batch = convert(chunk.records)
        except Unfit:
            good = good_count(chunk.records, convert, Unfit)
            if good:
                yield convert(chunk.records[:good])
            raise _bad_line(name, chunk, good, convert) from None
        yield batch


def line_chunks(source: InputFile) -> Iterator[LineChunk]:
    """Give lines without their ends. Blank ones are counted, and left out."""
    number = 0
    for lines in whole_lines(source):
        chunk = LineChunk()
        for line in lines:
            number += 1
            if line and not line.isspace():
                chunk.records.append(line)
                chunk.lines.append(number)
        yield chunk


def whole_lines(source: InputFile) -> Iterator[list[bytes]]:
    """Give lists of whole lines, as they come. A first mark of UTF-8 is left out."""
    held: list[bytes] = []  # the beginning of a line that has not ended yet
    held_size, count, is_first = 0, 0, True
    while data := source.file.read1(CHUNK_SIZE):
        if is_first:
            data, is_first = data.removeprefix(BOM), False
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*held, lines[0]])
            _check_size(source, len(lines[0]), count + 1)
            held, held_size = [], 0
            yield lines
            count += len(lines)
        held.append(rest)
        held_size += len(rest)
        _check_size(source, held_size, count + 1)
    if held and (last := b"".join(held)):
        yield [last]


def _check_size(source: InputFile, size: int, line: int) -> None:
    if size > LINE_SIZE_MAX:
        flaw = Unfit(f"it is longer than {LINE_SIZE_MAX:,} bytes")
        raise BadLine(source.name, line, flaw, hint="A row is at most so long; split it")


def good_count(
    rows: list[bytes] | pa.RecordBatch,
    convert: Callable[[Any], object],
    flaw: type[HeadraceError],
) -> int:
    """Return how many rows before the first bad one fit, by halving."""
    good, bad = 0, len(rows)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(rows[:middle])
        except flaw:
            bad = middle
        else:
            good = middle
    return good


def _bad_line(name: str, chunk: LineChunk, place: int, convert: Convert) -> BadLine:
    try:
        convert([chunk.records[place]])
    except Unfit as flaw:
        return BadLine(name, chunk.lines[place], flaw, hint=flaw.hint)
    raise AssertionError("a record that did not fit among others fits alone")
