"""One file, taken apart: fields, tables and flaws, as far as its bytes can be read."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, get_args

from headrace.doctor.look import segments
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import HeadraceError
from headrace.journal import journal_file, snapshot, superblock
from headrace.journal.entry import HEADER_SIZE, SEAL, Entry, Flaw, Header, decode, decode_header
from headrace.journal.frame import ALIGNMENT, aligned
from headrace.journal.superblock import NAMES, Superblock
from headrace.journal.superblock import decode as decode_superblock
from headrace.metadata import commands
from headrace.partition.files import carry_table
from headrace.partition.machine import operations
from headrace.storage.seam import Storage

Cell = str | int | None

_MAGIC_END: Final = 32  # each kind has its magic behind a checksum, or at the very start
_MAGICS: Final = {
    "journal": journal_file.MAGIC,
    "snapshot": snapshot.MAGIC,
    "superblock": superblock.MAGIC,
    "carry": carry_table.MAGIC,
    "segment": segments.MAGIC,
}

_NAMES: Final[dict[int, str]] = {
    SEAL: "Seal",
    operations.APPEND: "Append",
    operations.STAGE: "Stage",
    **{
        one.operation: one.__name__
        for one in (*get_args(operations.Command), *get_args(commands.Command))
    },
}


@dataclass(frozen=True, slots=True)
class Spot:
    """Something in a file that is not as it should be."""

    position: int | None
    what: str


@dataclass(slots=True)
class Table:
    """Rows of one kind; `left_out` were not kept, because enough were."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    left_out: int = 0

    def add(self, limit: int, *cells: Cell) -> None:
        """Keep a row unless there are `limit` already; 0 is no limit."""
        assert len(cells) == len(self.heads)
        if limit and len(self.rows) >= limit:
            self.left_out += 1
        else:
            self.rows.append(cells)


@dataclass(slots=True)
class Anatomy:
    """What one file shows of itself."""

    kind: str
    size: int
    fields: dict[str, Cell] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    flaws: list[Spot] = field(default_factory=list)
    verdict: str = "Every checksum in it is right."  # if it has no flaw

    def flaw(self, position: int | None, flaw: Flaw | str) -> None:
        """Note something that is wrong."""
        self.flaws.append(Spot(position, flaw if isinstance(flaw, str) else flawed(flaw)))


def flawed(flaw: Flaw) -> str:
    """Say a flaw in one line."""
    if flaw.expected is None and flaw.found is None:
        return flaw.what
    return f"{flaw.what}: expected {flaw.expected}, found {flaw.found}"


def time_text(timestamp_us: int) -> str:
    """Write microseconds as a time in UTC."""
    try:
        moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_us)
    moment = moment.replace(microsecond=timestamp_us % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def operation_name(header: Header) -> str:
    """Name what an entry asks for."""
    return _NAMES.get(header.operation, str(header.operation))


ENTRY_HEADS: Final = ("operation", "namespace", "created", "rows", "bytes", "time", "checksum")


def entry_cells(header: Header | None) -> tuple[Cell, ...]:
    """Return the cells of `ENTRY_HEADS` for an entry, empty ones for none."""
    if header is None:
        return ("", "", None, None, None, "", "")
    return (
        operation_name(header),
        f"{header.namespace:016x}" if header.namespace or header.created else "",
        header.created,
        header.row_count,
        header.body_size,
        time_text(header.timestamp),
        header.checksum.hex(),
    )


def opened(path: str) -> Storage:
    """Open one file, wherever it is, for reading alone."""
    directory, _, name = path.rpartition("/")
    return ReadonlyDirectory(directory or ".").open(name)


def kind_of(path: str) -> str | None:
    """Return which kind of file its first bytes say that it is; None if they say nothing."""
    with closing(opened(path)) as found:
        start = found.read(0, _MAGIC_END)
    return next((kind for kind, magic in _MAGICS.items() if magic in start), None)


def whole_entries(file: Storage, start: int) -> Iterator[tuple[int, Header]]:
    """Find whole entries of any log from `start` on, one after the other."""
    position = start - start % ALIGNMENT
    while data := file.read(position, HEADER_SIZE):
        header = decode_header(data)
        size = 0
        if isinstance(header, Header):
            found = decode(file.read(position, HEADER_SIZE + header.body_size))
            if isinstance(found, Entry):
                yield position, header
                size = aligned(HEADER_SIZE + header.body_size)
        position += size or ALIGNMENT


def bits_near(path: str, levels: int = 2) -> tuple[int, int, int] | None:
    """Take the widths of ids from a superblock in one of the directories above a file."""
    room = path
    for _ in range(levels):
        room = room.rpartition("/")[0] or "."
        for name in NAMES:
            found = _superblock(room, name)
            if isinstance(found, Superblock):
                return found.identity.namespace_bits
    return None


def _superblock(room: str, name: str) -> Superblock | Flaw:
    try:
        file = ReadonlyDirectory(room).open(name)
    except OSError as error:
        return Flaw(str(error))
    try:
        return decode_superblock(file.read(0, file.size()), name)
    except (OSError, HeadraceError) as error:
        return Flaw(str(error))
    finally:
        file.close()


def shown(cells: Sequence[Cell]) -> list[str]:
    """Write cells as text."""
    return ["" if one is None else f"{one:,}" if isinstance(one, int) else one for one in cells]
