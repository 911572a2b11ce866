"""Finds every readable copy of a group's entries: in the journal, carry files and ruins.

In the journal an entry also counts if only the prefix of its frame is bad: it proves itself.

A carry file with a bad header or index is searched for intact entries: each begins at a
multiple of 64 and proves itself by its checksums.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import HeadraceError
from headrace.journal.entry import (
    CLUSTER_AT,
    HEADER_SIZE,
    Entry,
    Flaw,
    Header,
    decode,
    decode_header,
)
from headrace.journal.frame import ALIGNMENT, PREFIX_SIZE, aligned
from headrace.journal.recovery.scan_findings import Faulty, Found, Scan
from headrace.model.ids import Identity, Op
from headrace.partition.files.carry import CarryFile, kept_id, load_carry, op_of
from headrace.partition.files.carry_table import kept_name
from headrace.storage.seam import Storage


@dataclass(slots=True)
class UnreadableFile:
    """A carry file without a readable index: the places of its intact entries."""

    name: str
    flaw: Flaw
    file: Storage | None
    places: dict[Op, tuple[int, int]] = field(default_factory=dict)  # position, size


@dataclass(slots=True)
class Entries:
    """Every copy of every entry of one group."""

    scan: Scan
    journal: dict[Op, Found] = field(default_factory=dict)
    carries: dict[str, CarryFile] = field(default_factory=dict)  # by name, newest first
    ruins: dict[str, UnreadableFile] = field(default_factory=dict)
    strays: dict[Op, tuple[Storage, int, int]] = field(default_factory=dict)  # position, size
    misfits: dict[str, HeadraceError] = field(default_factory=dict)  # carry files of other logs
    kept: set[int] = field(default_factory=set)  # ids of the journal files beside the carries

    @classmethod
    def of(cls, scan: Scan, carry: ReadonlyDirectory | None, identity: Identity) -> "Entries":
        """Index the scanned journal and every file in `carry`."""
        found = cls(scan)
        for one in scan.entries:
            found.journal.setdefault(one.op, one)
        found._find_strays(identity)
        if carry is None:
            return found
        named = [(op_of(name), name) for name in carry.names()]
        found.kept = {one for one in map(kept_id, carry.names()) if one is not None}
        for op, name in sorted(((op, name) for op, name in named if op), reverse=True):
            found._add_carry(carry, name, op, identity)
        found._search_kept(carry, identity)
        return found

    def needed(self) -> set[int]:
        """Return the kept files that a carry file with an intact index needs."""
        return {source.file_id for one in self.carries.values() for source in one.sources}

    def is_there(self, carry: CarryFile, op: Op) -> bool:
        """Whether the file with an entry of `carry` exists."""
        source = carry.source_of(carry.row(op))
        return source is None or source.file_id in self.kept

    def ops(self, above: Op) -> list[Op]:
        """Return the ops above `above` that have a copy, intact as far as known."""
        known = {op for op in self.journal if op > above}
        for carry in self.carries.values():
            known.update(op for op in carry.ops if op > above)
        known.update(op for op in self.strays if op > above)
        for ruin in self.ruins.values():
            known.update(op for op in ruin.places if op > above)
        return sorted(known)

    def holds(self, op: Op) -> bool:
        """Whether some file claims to have this entry."""
        return (
            op in self.journal
            or op in self.strays
            or any(op in carry for carry in self.carries.values())
            or any(op in ruin.places for ruin in self.ruins.values())
        )

    def is_journaled(self, op: Op) -> bool:
        """Whether the journal has this entry, as far as known."""
        return op in self.journal or op in self.strays

    def header(self, op: Op) -> Header | None:
        """Return the header of an entry, checked by its own checksum."""
        found = self.journal.get(op)
        if found is not None:
            header = decode_header(found.sealed)
            return header if isinstance(header, Header) else None
        entry = self.read(op)
        return None if entry is None else entry.header

    def read(self, op: Op) -> Entry | None:
        """Return an entry, every byte checked, from the first intact copy."""
        return next((found for found in self.copies(op) if isinstance(found, Entry)), None)

    def copies(self, op: Op) -> Iterator[Entry | Flaw]:
        """Yield what each copy of an entry decodes to now."""
        found = self.journal.get(op)
        if found is not None:
            storage = self.scan.files[found.file].candidate.storage
            yield _read(storage, found.position + PREFIX_SIZE, found.size - PREFIX_SIZE)
        if op in self.strays:
            yield _read(*self.strays[op])
        for carry in self.carries.values():
            if op in carry:
                yield carry.read(op)
        for ruin in self.ruins.values():
            if op in ruin.places and ruin.file is not None:
                yield _read(ruin.file, *ruin.places[op])

    def lost_header(self, faulty: Faulty) -> Header | None:
        """Return the header of a bad frame, if only the bytes after it are bad."""
        if faulty.position is None:
            return None
        return _header_at(self._file_of(faulty), faulty.position, faulty)

    def _file_of(self, faulty: Faulty) -> Storage:
        files = (one.candidate.storage for one in self.scan.files)
        return next(file for file in files if file.path == faulty.path)

    def _find_strays(self, identity: Identity) -> None:
        """Find intact entries after a bad prefix, one after the other."""
        after: int | None = None  # where the frame after the last stray begins
        for faulty in self.scan.faulty:
            file = self._file_of(faulty)
            position = after if faulty.position is None else faulty.position
            after = None
            header = None if position is None else _header_at(file, position, faulty)
            if header is None or header.group != identity.group:
                continue
            assert position is not None
            place = (file, position + PREFIX_SIZE, HEADER_SIZE + header.body_size)
            if header.cluster == identity.cluster and isinstance(_read(*place), Entry):
                self.strays[faulty.op] = place
                after = position + aligned(PREFIX_SIZE + place[2])

    def close(self) -> None:
        for carry in self.carries.values():
            carry.close()
        for ruin in self.ruins.values():
            if ruin.file is not None:
                ruin.file.close()

    def _search_kept(self, room: ReadonlyDirectory, identity: Identity) -> None:
        """Find entries of kept files that no carry file with an intact index needs."""
        for file_id in sorted(self.kept - self.needed()):
            name = kept_name(file_id)
            with suppress(OSError):
                file = room.open(name)
                flaw = Flaw("no carry file records what is live in it")
                self.ruins[name] = UnreadableFile(name, flaw, file, _search(file, identity))

    def _add_carry(
        self, room: ReadonlyDirectory, name: str, op: Op, identity: Identity
    ) -> None:
        try:
            file = room.open(name)
        except OSError as error:
            flaw = Flaw("file cannot be opened", name, error.strerror or str(error))
            self.ruins[name] = UnreadableFile(name, flaw, None)
            return
        try:
            found = load_carry(file, identity, op, room)
        except OSError as error:
            found = Flaw("carry file is unreadable", "bytes", error.strerror or str(error))
        except HeadraceError as error:
            file.close()
            self.misfits[name] = error
            return
        if isinstance(found, CarryFile):
            self.carries[name] = found
        else:
            self.ruins[name] = UnreadableFile(name, found, file, _search(file, identity))


def _header_at(file: Storage, position: int, faulty: Faulty) -> Header | None:
    """Return the header in the frame at `position`, if it is that of the bad op."""
    with suppress(OSError):
        header = decode_header(file.read(position + PREFIX_SIZE, HEADER_SIZE))
        if isinstance(header, Header) and header.op == faulty.op:
            return header if faulty.checksum in (None, header.checksum) else None
    return None


def _read(storage: Storage, position: int, size: int) -> Entry | Flaw:
    try:
        return decode(storage.read(position, size))
    except OSError as error:
        return Flaw("unreadable", "bytes", error.strerror or str(error))


def _search(file: Storage, identity: Identity) -> dict[Op, tuple[int, int]]:
    """Find intact entries of this group. The bytes inside one of them are skipped."""
    found: dict[Op, tuple[int, int]] = {}
    position = 0
    with suppress(OSError):
        while data := file.read(position, HEADER_SIZE):
            size = _entry_size(file, position, data, identity)
            if size:
                header = decode_header(data)
                assert isinstance(header, Header)
                found.setdefault(header.op, (position, size))
            position += aligned(size) if size else ALIGNMENT
    return found


def _entry_size(file: Storage, position: int, data: bytes, identity: Identity) -> int:
    """Return the size of the intact entry at `position`, 0 if there is none."""
    if data[CLUSTER_AT : CLUSTER_AT + len(identity.cluster)] != identity.cluster:
        return 0
    header = decode_header(data)
    if not isinstance(header, Header) or header.group != identity.group:
        return 0
    size = HEADER_SIZE + header.body_size
    return size if isinstance(_read(file, position, size), Entry) else 0
