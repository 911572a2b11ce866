"""The ledger of a shard's writer: what it tried and what was acknowledged, stored elsewhere.

    trying SOURCE VERSION      rows of this version may show from now on
    rows PLACE NAME DIGEST     acknowledged: they stay permanently, exactly so
    shown PLACE NAME DIGEST    likewise, seen by a verifier; the writer got no answer
    dropped SOURCE VERSION     discarded: none of it may ever show
    trimming PARTITION FIRST   a Trim was tried
    trimmed PARTITION FIRST    and acknowledged
    PLACE := PARTITION START END
    NAME  := SOURCE VERSION ENTRY

Lines of text. Announcements are written before the append; acknowledgements afterwards, and
synced. A last line without its end counts as never written.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from headrace_lab.shard.kills.workload import Batch


class LedgerRows(NamedTuple):
    """One acknowledged batch at its place."""

    partition: int
    start: int
    end: int
    batch: Batch
    digest: str

    def line(self, word: str = "rows") -> str:
        place = f"{self.partition} {self.start} {self.end}"
        return f"{word} {place} {' '.join(map(str, tuple(self.batch)))} {self.digest}"


@dataclass(slots=True)
class ShardAccount:
    """What a ledger says."""

    rows: dict[Batch, LedgerRows] = field(default_factory=dict)  # acknowledged or shown
    tried: dict[int, int] = field(default_factory=dict)  # the highest version of a source
    answered: dict[int, int] = field(default_factory=dict)  # its writer heard, or discarded it
    dropped: set[tuple[int, int]] = field(default_factory=set)  # source, version
    trimming: dict[int, int] = field(default_factory=dict)  # the highest tried, by partition
    trimmed: dict[int, int] = field(default_factory=dict)  # the highest acknowledged
    ends: dict[int, int] = field(default_factory=dict)  # the highest end, by partition
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> Self:
        """Take in a ledger; one that is not there is empty."""
        account = cls()
        try:
            with open(path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return account
        for line in text[: text.rfind(b"\n") + 1].decode().splitlines():
            account.hear(line)
        return account

    def hear(self, line: str) -> None:
        """Take in one line."""
        word, *rest = line.split(" ")
        match word:
            case "rows" | "shown":
                *numbers, digest = rest
                partition, start, end, *name = map(int, numbers)
                self._keep(LedgerRows(partition, start, end, Batch(*name), digest))
                if word == "rows":
                    _raise(self.answered, *name[:2])
            case "trying":
                _raise(self.tried, *map(int, rest))
            case "dropped":
                source, version = map(int, rest)
                self.dropped.add((source, version))
                _raise(self.answered, source, version)
            case "trimming":
                _raise(self.trimming, *map(int, rest))
            case "trimmed":
                _raise(self.trimmed, *map(int, rest))
            case _:
                raise ValueError(f"a ledger has no line {line!r}")

    def _keep(self, rows: LedgerRows) -> None:
        known = self.rows.get(rows.batch)
        if known is None:
            self.rows[rows.batch] = rows
            _raise(self.ends, rows.partition, rows.end)
        elif known != rows:
            self.problems.append(
                f"{rows.batch} was answered with other offsets: partition {known.partition} at "
                f"{known.start}, then partition {rows.partition} at {rows.start}"
            )


def _raise(numbers: dict[int, int], key: int, number: int) -> None:
    numbers[key] = max(numbers.get(key, 0), number)


def size_of(path: str) -> int:
    """Return how many bytes of whole lines a ledger has: a last one may be half there."""
    try:
        with open(path, "rb") as file:
            return file.read().rfind(b"\n") + 1
    except FileNotFoundError:
        return 0


def void_since(path: str, size: int) -> None:
    """Take back what was acknowledged behind the first `size` bytes; what was tried stays."""
    try:
        with open(path, "r+b") as file:
            file.seek(size)
            late = file.read().splitlines(keepends=True)
            kept = [line for line in late if line.startswith((b"trying ", b"trimming "))]
            file.seek(size)
            file.truncate()
            file.writelines(kept)
    except FileNotFoundError:
        return


class Ledger:
    """A ledger open for its writer, with the account of it so far."""

    def __init__(self, path: str) -> None:
        self.account = ShardAccount.read(path)
        self.has_failed_sync = False  # of the journal: after it nothing may be acknowledged
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._drop_torn_line()

    def say(self, lines: Iterable[str]) -> None:
        """Write lines ahead of what they announce. They survive the death of this process."""
        said = list(lines)
        if not said:
            return
        text = "".join(f"{line}\n" for line in said).encode()
        written = os.write(self._descriptor, text)
        assert written == len(text)
        for line in said:
            self.account.hear(line)

    def acknowledge(self, lines: Iterable[str]) -> None:
        """Write lines that must hold forever, and sync them."""
        said = list(lines)
        if said and self.has_failed_sync:
            self.account.problems.append(f"after a failed sync of the journal: {said[0]}")
        self.say(said)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _drop_torn_line(self) -> None:
        text = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        os.ftruncate(self._descriptor, text.rfind(b"\n") + 1)
