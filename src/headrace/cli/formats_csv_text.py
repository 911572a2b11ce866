"""Records of a CSV as fields of text: quotes, delimiters, the names in a head line."""

import csv
import io
import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.cli.formats_lines import BOM, LINE_SIZE_MAX, Unfit, ends_in_cr, shown
from headrace.cli.formats_ndjson import text_of
from headrace.errors import BadRequest

COMMA: Final = ","
QUOTE: Final = b'"'
_SEPARATORS: Final = {";": "';'", "\t": "tab", "|": "'|'"}  # what else files have, as typed
# Fields, each up to a delimiter or the end of a line: all in quotes, or beginning without one.
_WELL_QUOTED: Final = r'(?s)\A(?:(?:"(?:[^"]|"")*"|[^"D\n][^D\n]*|)[D\n])*\z'
_ONE_QUOTED: Final = re.compile(rb'\s*"(?:[^"]|"")*"\s*')
_QUOTED: Final = re.compile(rb'"[^"]*"')


def delimiter_of(text: str) -> str:
    """Return the delimiter that was typed: one character, or `tab`."""
    found = "\t" if text in ("tab", r"\t") else text
    is_plain = len(found) == 1 and found.isascii() and (found == "\t" or found.isprintable())
    if not is_plain or found == '"':
        hint = "Give one, as in --delimiter ';', or --delimiter tab"
        raise BadRequest(f"--delimiter: {shown(text)} is no ASCII character", hint=hint)
    return found


def names_in_head(record: bytes, delimiter: str | None) -> list[str]:
    """Return the names of columns. Without a delimiter that was said, it is a comma."""
    if b"\r" in _QUOTED.sub(b"", record):
        raise ends_in_cr()
    if delimiter is None:
        _check_separator(record)
    try:
        found = _read(record + b"\n", delimiter or COMMA, None).column_names
        return [str(each).strip() for each in found]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise Unfit(f"it is no line of names: {shown(text_of(record))}") from None


def text_columns(
    columns: list[str], records: list[bytes], delimiter: str
) -> dict[str, pa.Array]:
    """Return the fields of records, as text or null."""
    names = [str(place) for place in range(len(columns))]
    try:
        table = _read(b"\n".join([*records, b""]), delimiter, names)
    except pa.ArrowInvalid:
        raise _no_record(columns, records[0], delimiter) from None
    if table.num_rows != len(records):
        raise _no_record(columns, records[0], delimiter)
    found = [each.combine_chunks() for each in table.columns]
    return dict(zip(columns, found, strict=True))


def _read(data: bytes, delimiter: str, names: list[str] | None) -> pa.Table:
    """Return fields as text. Without `names`, the first line has them."""
    _check_quotes(data, delimiter)
    return pyarrow.csv.read_csv(
        io.BytesIO(BOM + data),  # it takes one away
        pyarrow.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=LINE_SIZE_MAX * 2
        ),
        pyarrow.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=names is None
        ),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names or (), pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )


def _check_quotes(data: bytes, delimiter: str) -> None:
    """Refuse letters behind a closing quote, which Arrow would add to what is in quotes."""
    if QUOTE not in data:
        return
    pattern = _WELL_QUOTED.replace("D", f"\\x{ord(delimiter):02x}")
    whole = pa.array([data], pa.binary())
    if not pc.match_substring_regex(whole, pattern=pattern)[0].as_py():
        flaw = f"letters follow a closing quote: {shown(text_of(data.rstrip()))}"
        raise Unfit(flaw, hint='A quote within a field is ""')


def _check_separator(record: bytes) -> None:
    """Refuse one name that looks like several."""
    text = text_of(record)
    if COMMA in text or _ONE_QUOTED.fullmatch(record):
        return
    for separator, typed in _SEPARATORS.items():
        if separator in text:
            hint = f"Add --delimiter {typed}; or --delimiter , if it is one column"
            raise Unfit(f"it has {typed} between names and no comma: {shown(text)}", hint=hint)


def _no_record(columns: list[str], record: bytes, delimiter: str) -> Unfit:
    text = text_of(record)
    try:
        whole = record.decode()
    except UnicodeDecodeError:
        return Unfit(f"it is not UTF-8: {shown(text)}")
    if b"\r" in _QUOTED.sub(b"", record):
        return Unfit(f"it has a CR within: {shown(text)}", hint="Put that field into quotes")
    found = len(next(csv.reader(io.StringIO(whole, newline=""), delimiter=delimiter), []))
    if found == len(columns):
        return Unfit("its quotes are not those of one row", hint='A quote within is ""')
    return Unfit(f"expected {len(columns)} fields, found {found}: {shown(text)}")
