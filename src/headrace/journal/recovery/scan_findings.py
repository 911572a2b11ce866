"""The possible findings of a scan, as values: each has one meaning and one response."""

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.journal.entry import Flaw
from headrace.journal.journal_file import FIRST_POSITION, FileHeader
from headrace.model.ids import Op
from headrace.storage.seam import Storage


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file under a live name whose header could be read from at least one block."""

    storage: Storage
    header: FileHeader
    bad_blocks: tuple[int, ...] = ()


class Found(NamedTuple):
    """An intact entry frame."""

    op: Op
    file: int  # index among the scanned files
    position: int
    size: int
    checksum: bytes
    parent: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Faulty:
    """A durable op that cannot be read; `checksum` if a neighbour names it."""

    op: Op
    checksum: bytes | None
    path: str
    position: int | None
    flaw: Flaw


@dataclass(frozen=True, slots=True)
class Break:
    """An intact frame that does not follow the previous one."""

    op: Op
    path: str
    position: int
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Ops that are missing with their file, or with its end; `last` is None if unknown."""

    first: Op
    last: Op | None
    path: str  # the file before or after the gap
    is_file: bool  # a whole file is missing; otherwise the end of one


@dataclass(frozen=True, slots=True)
class Rubble:
    """Bad bytes that cost nothing: a mark, an end frame, or the empty part of a file."""

    path: str
    position: int
    flaw: Flaw
    is_end: bool = False  # an end frame, which recovery rewrites


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """Nothing that this file's life wrote lies beyond the head."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """Something unfinished at `first`, without evidence that it was ever durable."""

    first: Op
    last: Op  # the highest op with a readable header, at least `first`
    file: int
    position: int


@dataclass(frozen=True, slots=True)
class ShortFile:
    """A file shorter than its header says. A crash never does that; the loss is unknown."""

    file: int
    path: str
    expected: int
    found: int


@dataclass(slots=True)
class ScannedFile:
    """One file as found. `end` is where the contiguous frames stop."""

    candidate: Candidate
    end: int = FIRST_POSITION
    has_end: bool = False
    last_op: Op = Op(0)  # of the newest entry that should be in it, intact or not
    is_short: bool = False


@dataclass(slots=True)
class Scan:
    """The result of a scan. `entries` are the intact ones below any torn tail, in op order."""

    files: list[ScannedFile]
    entries: list[Found] = field(default_factory=list)
    faulty: list[Faulty] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    shorts: list[ShortFile] = field(default_factory=list)
    rubble: list[Rubble] = field(default_factory=list)
    ending: CleanEnd | TornTail = field(default_factory=CleanEnd)
    head: Op = Op(0)  # newest intact entry, or the op before the first file's first
    tip: bytes | None = None  # its checksum; None if unknown
    proven: Op = Op(0)  # evidence: every op at or below was durable once
    commit: Op = Op(0)  # evidence: every op at or below was committed
    highest: Op = Op(0)  # of any readable header, in place or not
    reach: Op = Op(0)  # that the bytes after the last intact frame may have held
    marked: Op = Op(0)  # proven by the journal itself


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rest of the directory records about the journal."""

    durable: Op = Op(0)  # from the superblock (commit, clean head), the snapshots and `heads`
    clean_head: Op | None = None  # the last stop was clean and this was the head
    cut_from: Op | None = None  # an unfinished cut: frames at or above it do not count
