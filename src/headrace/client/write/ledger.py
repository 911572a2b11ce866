"""A file with one line for each acknowledged append, on disk before the append is reported.

    line := a JSON object  newline

A line without its newline was never reported. The file can be compared with the content of the
log or of a table.
"""

import asyncio
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.client.values.answers import Range
from headrace.errors import BadRequest, StorageFailed
from headrace.wire.write_messages import AppendRequest


@dataclass(frozen=True, slots=True)
class Line:
    """One acknowledged append."""

    topic: str
    partition: int
    created: int
    start: int
    end: int
    rows: int
    writer: str
    version: int
    checksum: str  # xxh3-128 of the body

    @classmethod
    def of(cls, topic: str, landed: Range, request: AppendRequest) -> "Line":
        return cls(
            topic=topic,
            partition=landed.partition,
            created=request.created,
            start=landed.start,
            end=landed.end,
            rows=request.row_count,
            writer=request.writer.hex(),
            version=request.version,
            checksum=request.checksum.hex(),
        )

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


class Ledger:
    """An open ledger. Lines that arrive during a sync share the next one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._lock = asyncio.Lock()
        self._failure: OSError | None = None
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise BadRequest(
                f"the ledger {path} cannot be opened: {error.strerror}",
                hint="Use a file in an existing, writable directory",
            ) from error
        try:
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # after an unfinished line, which stays as it is
            _sync_directory(path)
        except OSError as error:
            os.close(self._file)
            raise StorageFailed(path, "opening the ledger", error) from error

    async def record(self, line: Line) -> None:
        """Return when the line is on disk."""
        data = line.encode()
        self._pending.append(data)
        async with self._lock:
            if self._failure is not None:
                raise StorageFailed(self.path, "writing the ledger", self._failure)
            if not any(each is data for each in self._pending):
                return  # written together with another line
            pending, self._pending = self._pending, []
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, self._write, b"".join(pending))
            try:
                await asyncio.shield(writing)
            except OSError as error:
                raise StorageFailed(self.path, "writing the ledger", error) from error
            except asyncio.CancelledError:
                await asyncio.wait({writing})  # others wait for this sync, by the lock
                writing.exception()  # `_failure` keeps it for later calls
                raise

    def close(self) -> None:
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
        except OSError as error:
            self._failure = error
            raise


def _sync_directory(path: str) -> None:
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
