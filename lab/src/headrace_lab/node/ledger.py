"""What the producers of a node know: ledgers kept by the client, and their own notes.

    ledgers/SOURCE.ledger      the client's: one line for each acknowledged append, synced
    ledgers/NAME.notes         lines of text, by one task each:

    tried SEQUENCE ROWS                      rows of this batch may show from now on
    settled ROWS                             nothing is in flight; this many were acknowledged
    published SEQUENCE PARTITION:START:END…  a transaction, acknowledged
    dropped SEQUENCE                         discarded or abandoned: none of it may ever show
    creating TOPIC                           it may exist from now on
    created TOPIC REVISION                   it exists permanently
    seen TOPIC PARTITION START END DIGEST    a consumer read these rows: they stay exactly so
    committing TOPIC GROUP PARTITION NEXT    the cursor may be there from now on
    committed TOPIC GROUP PARTITION NEXT     and is there, or further

Announcements are written before the attempt; acknowledgements afterwards, and synced.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from headrace.client.values.answers import Range
from headrace.client.write.ledger import Line

LEDGER = ".ledger"
NOTES = ".notes"
_LINE = msgspec.json.Decoder(Line)


class Seen(NamedTuple):
    """Rows that a consumer was given."""

    topic: str
    partition: int
    start: int
    end: int
    digest: str


class Place(NamedTuple):
    """A consumer group in one partition."""

    topic: str
    group: str
    partition: int


class Notes:
    """Notes open for their writer."""

    def __init__(self, directory: str, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(Path(directory, f"{name}{NOTES}"), flags, 0o600)

    def say(self, *words: object) -> None:
        """Announce something."""
        line = f"{' '.join(map(str, words))}\n".encode()
        written = os.write(self._file, line)
        assert written == len(line)

    def acknowledge(self, *words: object) -> None:
        """Write what must hold forever."""
        self.say(*words)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class NodeSource:
    """What one source tried, and what it was told."""

    tried: int = 0  # the highest batch
    tried_rows: int = 0
    lines: list[Line] = field(default_factory=list)  # of the client's ledger
    lives: list[int] = field(default_factory=list)  # which life of the node told each of them
    acknowledged_rows: int = 0
    told_rows: int = 0  # by flush
    unsettled_rows: int = 0  # tried since nothing was in flight
    published: dict[int, tuple[Range, ...]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

    @property
    def open_rows(self) -> int:
        """Rows that were sent and have no answer."""
        return max(0, self.unsettled_rows - (self.acknowledged_rows - self.told_rows))

    def hear_line(self, line: Line, life: int) -> None:
        self.lines.append(line)
        self.lives.append(life)
        self.acknowledged_rows += line.rows

    def hear(self, word: str, rest: list[str]) -> None:
        """Take in one note about batches."""
        number = int(rest[0])
        match word:
            case "tried":
                self.tried = number
                self.tried_rows += int(rest[1])
                self.unsettled_rows += int(rest[1])
            case "settled":
                self.told_rows, self.unsettled_rows = number, 0
            case "published":
                self.published[number] = tuple(_range(text) for text in rest[1:])
            case "dropped":
                self.dropped.add(number)
            case _:
                raise ValueError(f"notes have no word {word!r}")


@dataclass(slots=True)
class NodeAccount:
    """What all ledgers and notes say so far. Each is read once, from where it was left."""

    directory: str
    sources: dict[int, NodeSource] = field(default_factory=dict)
    creating: set[str] = field(default_factory=set)
    created: dict[str, set[int]] = field(default_factory=dict)  # one revision, or it is a lie
    seen: list[Seen] = field(default_factory=list)
    committing: dict[Place, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)
    commit_count: int = 0
    lives: list[int] = field(default_factory=list)  # when each life of the node began, in us
    _read: dict[str, int] = field(default_factory=dict)  # bytes, by name of the file

    def begin_life(self) -> None:
        """Note that the node is started once more."""
        self.look()
        self.lives.append(time.time_ns() // 1_000)

    def look(self) -> Self:
        """Take in what is new."""
        for path in sorted(Path(self.directory).iterdir()):
            if path.suffix == LEDGER:
                for line in self._lines(path):
                    self.source(int(path.stem)).hear_line(
                        _LINE.decode(line), len(self.lives) - 1
                    )
            elif path.suffix == NOTES:
                for line in self._lines(path):
                    self._hear(path.stem, line.decode())
        return self

    def source(self, number: int) -> NodeSource:
        return self.sources.setdefault(number, NodeSource())

    @property
    def acknowledged_rows(self) -> int:
        return sum(one.acknowledged_rows for one in self.sources.values())

    @property
    def published_count(self) -> int:
        return sum(len(one.published) for one in self.sources.values())

    @property
    def open_rows(self) -> int:
        """Rows that are in flight just now."""
        return sum(one.open_rows for one in self.sources.values())

    def _lines(self, path: Path) -> Iterator[bytes]:
        """Give new lines; a last one without its end is not written yet."""
        done = self._read.get(path.name, 0)
        with open(path, "rb") as file:
            file.seek(done)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path.name] = done + len(whole)
        yield from whole.splitlines()

    def _hear(self, name: str, line: str) -> None:
        word, *rest = line.split(" ")
        match word:
            case "creating":
                self.creating.add(rest[0])
            case "created":
                self.created.setdefault(rest[0], set()).add(int(rest[1]))
            case "seen":
                topic, partition, start, end, digest = rest
                self.seen.append(Seen(topic, int(partition), int(start), int(end), digest))
            case "committing" | "committed":
                topic, group, partition, following = rest
                places = self.committed if word == "committed" else self.committing
                places[Place(topic, group, int(partition))] = int(following)
                self.commit_count += word == "committed"
            case _:
                self.source(int(name)).hear(word, rest)


def place(one: Range) -> str:
    """Write a range as notes have it."""
    return f"{one.partition}:{one.start}:{one.end}"


def _range(text: str) -> Range:
    partition, start, end = map(int, text.split(":"))
    return Range(partition, start, end)
