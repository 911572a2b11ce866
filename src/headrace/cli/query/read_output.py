"""Where the rows of a read go: standard output, or a file that appears once complete."""

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

UNFINISHED: Final = ".part"  # suffix of a file until it is complete
_BINARY: Final = frozenset({"arrow", "parquet"})


class Shown(StrEnum):
    """Output formats."""

    TABLE = "table"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Sink(Protocol):
    """Takes rows."""

    def write(self, batch: pa.RecordBatch) -> None: ...


def shown_as(given: Shown | None, output: Path | None, *, as_json: bool) -> Shown:
    """Return the output format: as given, by the file's name, or by the kind of stdout."""
    if as_json:
        if given not in (None, Shown.NDJSON):
            hint = "--json means --format ndjson: give one of them"
            raise BadRequest(f"--json and --format {given} cannot be combined", hint=hint)
        given = Shown.NDJSON
    if output is not None:
        _check_file(output)
        return Shown(format_named(output)) if given is None else _fitting(given, output)
    is_terminal = sys.stdout.isatty()
    if given is None:
        return Shown.TABLE if is_terminal else Shown.NDJSON
    if given in _BINARY and is_terminal:
        hint = f"Add --output FILE.{given}, or use a pipe"
        raise BadRequest(f"{given} cannot be printed on a terminal", hint=hint)
    return given


def _check_file(output: Path) -> None:
    """Refuse an impossible file before anything is read."""
    if output.is_dir():
        raise BadRequest(f"{output} is a directory", hint="Give a file in it")
    if not output.parent.is_dir():
        hint = f"Create it first: mkdir -p {shlex.quote(str(output.parent))}"
        raise NotFound(f"directory {output.parent} does not exist", hint=hint)


def _fitting(given: Shown, output: Path) -> Shown:
    named = SUFFIXES.get(output.suffix.lower(), given)
    if named != given:
        hint = "Omit --format, or rename the file"
        raise BadRequest(
            f"the name of {output} means {named}, but --format is {given}", hint=hint
        )
    return given


@contextmanager
def output_to(path: Path | None, kind: Shown, schema: pa.Schema) -> Iterator[Sink]:
    """Yield the sink for the rows. Raises PipeClosed if the reader is gone."""
    name = "standard output" if path is None else str(path)
    try:
        with _file(path) as file, _sink(file, kind, schema, is_stdout=path is None) as sink:
            yield sink
    except OSError as error:
        if path is None and error.errno == errno.EPIPE:
            raise PipeClosed from None
        hint = "Check the disk, or give another file"
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
    """Open the target. A file gets its name only once it is complete."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
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
