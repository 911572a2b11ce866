"""Where the rows of a read go: standard output, or a file that is whole or not there."""

import errno
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import pyarrow as pa
from rich.console import Console

from headrace.cli.formats.formats import SUFFIXES, Format, format_named
from headrace.cli.formats.row_table import TableWriter
from headrace.cli.formats.write_rows import writing
from headrace.cli.terminal.exits import NotFound, PipeClosed
from headrace.cli.terminal.output import console
from headrace.errors import BadRequest, StorageFailed

UNFINISHED: Final = ".part"  # what a file is called until it is whole
_BINARY: Final = frozenset({"arrow", "parquet"})


class Shown(StrEnum):
    """How rows are written."""

    TABLE = "table"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Sink(Protocol):
    """Takes rows."""

    def write(self, batch: pa.RecordBatch) -> None: ...


def shown_as(given: Shown | None, output: Path | None, *, as_json: bool) -> Shown:
    """Return how rows are written: as said, by the file's name, or by who reads them."""
    if as_json:
        if given not in (None, Shown.NDJSON):
            hint = "--json is --format ndjson: give one of them"
            raise BadRequest(f"--json and --format {given} cannot be combined", hint=hint)
        given = Shown.NDJSON
    if output is not None:
        _check_file(output)
        return Shown(format_named(output)) if given is None else _fitting(given, output)
    is_terminal = sys.stdout.isatty()
    if given is None:
        return Shown.TABLE if is_terminal else Shown.NDJSON
    if given in _BINARY and is_terminal:
        hint = f"Add --output FILE.{given}, or send it through a pipe"
        raise BadRequest(f"{given} is not for a terminal", hint=hint)
    return given


def _check_file(output: Path) -> None:
    """Refuse a file that cannot be, before anything is read."""
    if output.is_dir():
        raise BadRequest(f"{output} is a directory", hint="Name a file within it")
    if not output.parent.is_dir():
        hint = f"Make it first: mkdir -p {shlex.quote(str(output.parent))}"
        raise NotFound(f"there is no directory {output.parent}", hint=hint)


def _fitting(given: Shown, output: Path) -> Shown:
    named = SUFFIXES.get(output.suffix.lower(), given)
    if named != given:
        hint = "Leave out --format, or give the file another name"
        raise BadRequest(
            f"{output} is a name for {named}, and --format says {given}", hint=hint
        )
    return given


@contextmanager
def output_to(path: Path | None, kind: Shown, schema: pa.Schema) -> Iterator[Sink]:
    """Give what takes the rows. PipeClosed ends it, if nobody reads any more."""
    name = "standard output" if path is None else str(path)
    try:
        with _file(path) as file, _sink(file, kind, schema, is_stdout=path is None) as sink:
            yield sink
    except OSError as error:
        if path is None and error.errno == errno.EPIPE:
            raise PipeClosed from None
        hint = "Look at the disk, or name another file"
        raise StorageFailed(name, "writing", error, hint=hint) from error


@contextmanager
def _sink(file: BinaryIO, kind: Shown, schema: pa.Schema, *, is_stdout: bool) -> Iterator[Sink]:
    if kind is not Shown.TABLE:
        with writing(file, Format(kind), schema) as writer:
            yield writer
        return
    if is_stdout:
        screen, fits = console(), sys.stdout.isatty()
    else:
        text = open(file.fileno(), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        screen, fits = Console(file=text, color_system=None), False
    table = TableWriter(screen, fits=fits)
    table.head(schema)
    yield table
    table.finish()
    screen.file.flush()


@contextmanager
def _file(path: Path | None) -> Iterator[BinaryIO]:
    """Open what is written to. A file gets its name only once it is whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a pipe or a device has no place to rename to
        with open(path, "wb") as file:
            yield file
        return
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
