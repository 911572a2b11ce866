"""The formats of rows, and how one is detected from a name or from content."""

import io
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

from headrace.cli.terminal.exits import NotFound
from headrace.errors import BadRequest, StorageFailed

PEEK_SIZE: Final = 4096  # bytes examined to detect a format
_COPY_SIZE: Final = 1024 * 1024
STDIN: Final = "-"
STDIN_NAME: Final = "standard input"


class Format(StrEnum):
    """Formats of rows."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"  # Arrow IPC: a stream is written; a stream or a file is read


SUFFIXES: Final = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".json": Format.NDJSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}
ARROW_FILE: Final = b"ARROW1"
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_PARQUET: Final = b"PAR1"
# Formats that must be unwrapped first, and the command for it.
_WRAPPED: Final = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"BZh": ("bzip2", "bzcat"),
    b"\xfd7zXZ\0": ("xz", "xzcat"),
    b"PK\x03\x04": ("zip", "funzip"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
}
ARRAY_HINT: Final = "A JSON array is not NDJSON: use jq -c '.[]' to get one object per line"


@dataclass(frozen=True, slots=True)
class InputFile:
    """Bytes to read rows from: a file or a pipe."""

    name: str  # as shown in messages
    file: io.BufferedReader
    size: int | None  # bytes; None if unknown

    def peek(self) -> bytes:
        """Return the first bytes without consuming them."""
        return self.file.peek(PEEK_SIZE)[:PEEK_SIZE]


@contextmanager
def reading(path: str) -> Iterator[InputFile]:
    """Open a file to read rows from; `-` is standard input."""
    if path == STDIN:
        if sys.stdin is None:
            raise BadRequest("standard input is closed", hint="Give a file")
        file = sys.stdin.buffer
        assert isinstance(file, io.BufferedReader)
        yield InputFile(STDIN_NAME, file, _size(file))
        return
    with _opened(path) as opened:
        yield InputFile(path, opened, _size(opened))


def format_of(source: InputFile, given: Format | None) -> Format:
    """Return the given format, or detect it from the first bytes, then from the name."""
    head = source.peek()
    for magic, (what, tool) in _WRAPPED.items():
        if head.startswith(magic):
            hint = f"Unwrap it first: {_through(tool, source)}"
            raise BadRequest(f"{source.name} is {what}", hint=hint)
    if given is not None:
        return given
    if head.startswith((ARROW_FILE, _ARROW_STREAM)):
        return Format.ARROW
    if head.startswith(_PARQUET):
        return Format.PARQUET
    named = SUFFIXES.get(Path(source.name).suffix.lower())
    if named is not None:
        return named
    return _text_format(source.name, head)


def format_named(path: Path) -> Format:
    """Return the format of an output file by its name."""
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        hint = f"Add --format, or use one of the suffixes {', '.join(SUFFIXES)}"
        raise BadRequest(f"the name {path.name!r} does not imply a format", hint=hint)
    return found


@contextmanager
def seekable(source: InputFile) -> Iterator[io.BufferedReader]:
    """Yield a seekable file; the content of a pipe is copied to disk first."""
    if source.file.seekable():
        yield source.file
        return
    try:
        with tempfile.TemporaryFile() as kept:
            while data := source.file.read(_COPY_SIZE):
                kept.write(data)
            kept.seek(0)
            yield kept  # type: ignore[misc]  # it can also write
    except OSError as error:
        raise StorageFailed(tempfile.gettempdir(), "buffering standard input", error) from error


def _opened(path: str) -> io.BufferedReader:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        hint = "Give an existing file, or - for standard input"
        raise NotFound(f"file {path} does not exist", hint=hint) from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error


def _through(tool: str, source: InputFile) -> str:
    """Return the command that unwraps a source."""
    if source.name == STDIN_NAME:
        return f"… | {tool} | headrace …"
    return f"{tool} < {shlex.quote(source.name)} | headrace … - --format …"


def _text_format(name: str, head: bytes) -> Format:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{") or not text:
        return Format.NDJSON
    first = text.splitlines()[0]
    if b"\0" not in first and not text.startswith(b"["):
        return Format.CSV
    hint = f"Add --format {', '.join(Format)}"
    if text.startswith(b"["):
        hint = ARRAY_HINT
    raise BadRequest(f"cannot detect the format of {name}", hint=hint)


def _size(file: BinaryIO | io.BufferedReader) -> int | None:
    try:
        found = os.fstat(file.fileno())
    except (OSError, io.UnsupportedOperation):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
