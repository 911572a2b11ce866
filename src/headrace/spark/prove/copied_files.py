"""Data files that are segments of the log, byte for byte: their rows need no decoding.

The footer of a segment says whose rows it has. The log says which digest the file with these
rows has, and only a file with that digest, which is computed here, is believed. A segment that
was sealed again, healed or trimmed away since has another digest or none: it is read like any
file of rows. A segment of another log, topic or life is foreign, whatever its rows say.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import headrace
from headrace.errors import Busy
from headrace.model.schema import SEGMENT_FORMAT_KEY
from headrace.spark.prove.table_parts import READERS, PlacedFile, TableParts
from headrace.spark.worker.sums import file_digest, has_file_digest

if TYPE_CHECKING:
    from headrace.client.read.lease import LeasedFile
    from headrace.client.sync_lease import Lease

_LASTING: Final = "120s"  # how long the lease outlives a dead process
_CHUNK: Final = 4 * 1024 * 1024
_NUMBERS: Final = ("namespace", "created", "first", "end")


@dataclass(frozen=True, slots=True)
class FooterIdentity:
    """Whose rows a segment has, by its footer."""

    cluster: str
    row_digest: str
    namespace: int
    created: int
    first: int
    end: int

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes]) -> "FooterIdentity | None":
        """Return the identity in a footer; None: of no segment."""
        found = {name: _text(metadata, name) for name in ("cluster", "row_digest", *_NUMBERS)}
        if SEGMENT_FORMAT_KEY.encode() not in metadata or not all(found.values()):
            return None
        if not all(found[name].isdecimal() for name in _NUMBERS):
            return None
        numbers = [int(found[name]) for name in _NUMBERS]
        return cls(found["cluster"], found["row_digest"], *numbers)


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A data file whose bytes are those of a segment: rows `start` up to `end`."""

    file: PlacedFile
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The data files of a table that are not files of rows."""

    copied: tuple[CopiedFile, ...] = ()
    foreign: tuple[PlacedFile, ...] = ()  # segments of other logs, topics or lives


def segment_files(topic: "headrace.Topic", table: TableParts) -> SegmentFiles:
    """Find the files of a table that are segments, and compare their digests with the log's."""
    said = [(file, FooterIdentity.of(file.metadata)) for file in table.files]
    named = [(file, identity) for file, identity in said if identity is not None]
    if not named:
        return SegmentFiles()
    try:
        lease = topic.lease_files(_LASTING)
    except Busy:  # other readers hold all leases there can be: all files go by rows
        return SegmentFiles()
    with lease:
        return _judged(lease, topic.cluster, named)


def _judged(
    lease: "Lease", cluster: str, named: list[tuple[PlacedFile, FooterIdentity]]
) -> SegmentFiles:
    lives = {(one.namespace, one.created) for one in lease.partitions}
    sealed = {
        (one.namespace, one.created, file.start, file.end): (one.partition, file)
        for one in lease.partitions
        for file in one.files
    }
    foreign, asked = [], []
    for file, said in named:
        life = (said.namespace, said.created)
        if said.cluster != cluster or life not in lives:
            foreign.append(file)
        elif found := sealed.get((*life, said.first, said.end)):
            number, leased = found
            one = CopiedFile(file, number, leased.start, leased.end)
            is_same = said.row_digest == leased.row_digest.hex() and _has_places(one)
            if is_same and leased.digest is not None and has_file_digest():
                asked.append((one, leased))
    with ThreadPoolExecutor(READERS) as pool:
        answers = pool.map(lambda each: _is_copy(*each), asked)
        copied = [one for (one, _), is_copy in zip(asked, answers, strict=True) if is_copy]
    return SegmentFiles(tuple(copied), tuple(foreign))


def _has_places(one: CopiedFile) -> bool:
    """Whether a reader of the table finds the positions of these rows in the file.

    It does not in a segment of format 1, which has other names for them.
    """
    parts, place = one.file.parts, one.start
    for part in parts:
        end = place + part.row_count
        if part.has_nulls or part.places != {one.partition: (place, end - 1)}:
            return False
        place = end
    return place == one.end


def _is_copy(one: CopiedFile, leased: "LeasedFile") -> bool:
    """Whether a file has the digest that the log has for these rows."""
    whole, where = file_digest(), one.file.file.filesystem
    try:
        with where.open_input_file(one.file.path) as file:
            if file.size() != leased.size:
                return False
            while chunk := file.read(_CHUNK):
                whole.update(chunk)
    except (OSError, pa.ArrowException):  # its rows are asked for next, and then its name
        return False
    return whole.digest() == leased.digest


def _text(metadata: Mapping[bytes, bytes], name: str) -> str:
    return metadata.get(f"headrace.{name}".encode(), b"").decode("utf-8", "replace")
