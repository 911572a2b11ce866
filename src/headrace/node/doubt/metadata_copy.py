"""The copy of metadata, outside the log of group 0: what it is, its bytes, and reading it.

    copy   := header  history  image  zeros to 64 bytes  entry*  zeros
    header := checksum:16s  magic:8s  format:u16  reader_min:u16  history_count:u32  cluster:16s
              op:u64  tip:16s  image_size:u64  image_checksum:16s  history_checksum:16s
    history := (op:u64 tip:16s) * history_count
    entry  := a sealed entry of group 0, as in its journal, and zeros to 64 bytes

`checksum` is xxh3-128 of the header after it; the image is that of a snapshot at `op`, `tip`
the checksum of the entry there. The first entry is that one, unless its bytes were not known;
those that follow chain to it. The history names entries before the image: what is found of a
group 0 that was put back from earlier is looked up there. Full story in
docs/formats/metadata-copy.md; `copy_file.py` writes it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_128_digest

from headrace.errors import ForeignFile, refuse_newer
from headrace.journal.entry import HEADER_SIZE, Entry, Flaw, Header, decode_header, root
from headrace.journal.entry import decode as decode_entry
from headrace.journal.frame import aligned, padding
from headrace.journal.heads import Head
from headrace.model.ids import OP_MAX, Identity, Op
from headrace.storage.seam import Buffer, Directory

NAME: Final = "metadata.copy"
MAGIC: Final = b"HRmcopy\0"
FORMAT: Final = 1
SIZE_MAX: Final = 1024 * 1024 * 1024  # it is read at once, and one of any log is far smaller
HISTORY_MAX: Final = 1_024  # entries before the image: 24 KiB, months of changes of metadata

_FIELDS = struct.Struct("<16s8sHHI16sQ16sQ16s16s")
_PAST = struct.Struct("<Q16s")
_CHECKSUM_SIZE = 16


@dataclass(frozen=True, slots=True)
class Base:
    """The state that a copy begins with: an image, and the entry that it stands at."""

    op: Op
    tip: bytes  # checksum of that entry; the root of group 0 at op 0
    image: bytes
    entry: Entry | None  # None at op 0, and where its bytes could not be read any more


@dataclass(frozen=True, slots=True)
class Copy:
    """What a copy says, up to the first of its bytes that is not as written."""

    cluster: bytes
    base: Base
    past: Mapping[Op, bytes]  # checksums of entries before the base
    entries: tuple[Entry, ...]  # after the base, each chained to the one before
    flaw: Flaw | None = None  # why it ends where it does; None: it ends as it was written

    @property
    def newest(self) -> Head:
        """The entry that it goes up to."""
        if self.entries:
            return Head(self.entries[-1].op, self.entries[-1].checksum)
        return Head(self.base.op, self.base.tip)

    @property
    def history(self) -> dict[Op, bytes]:
        """The checksum of every entry that it knows, in op order; the root's is no entry's."""
        known = dict(self.past)
        if self.base.op > 0:
            known[self.base.op] = self.base.tip
        return known | {entry.op: entry.checksum for entry in self.entries}


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """What a directory's file says. Nothing was changed to find it out."""

    copy: Copy | None = None
    flaw: str = ""  # what is wrong with the file, in words
    is_missing: bool = False


def encode(copy: Copy) -> list[Buffer]:
    """Return the bytes of a copy, without the room behind its entries."""
    base = copy.base
    history = b"".join(_PAST.pack(op, tip) for op, tip in sorted(copy.past.items()))
    fields = _FIELDS.pack(
        bytes(_CHECKSUM_SIZE),
        MAGIC,
        FORMAT,
        FORMAT,
        len(copy.past),
        copy.cluster,
        base.op,
        base.tip,
        len(base.image),
        xxh3_128_digest(base.image),
        xxh3_128_digest(history),
    )
    checksum = xxh3_128_digest(fields[_CHECKSUM_SIZE:])
    size = _FIELDS.size + len(history) + len(base.image)
    first = () if base.entry is None else (base.entry,)
    return [
        checksum + fields[_CHECKSUM_SIZE:],
        history,
        base.image,
        padding(size),
        *encode_entries((*first, *copy.entries)),
    ]


def encode_entries(entries: Sequence[Entry]) -> list[Buffer]:
    """Return the bytes of entries, each filled up to where the next may begin."""
    pieces: list[Buffer] = []
    for entry in entries:
        pieces += (entry.sealed, entry.body, padding(HEADER_SIZE + len(entry.body)))
    return pieces


def decode(data: bytes, identity: Identity, path: str) -> Copy | Flaw:
    """Read a copy as far as it is whole. Only another cluster's or a newer release's raises."""
    if len(data) < _FIELDS.size:
        return Flaw("it is cut short", f"at least {_FIELDS.size} bytes", len(data))
    found, magic, _, reader_min, count, cluster, op, tip, size, image_sum, history_sum = (
        _FIELDS.unpack_from(data)
    )
    checksum = xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE : _FIELDS.size])
    if (found, magic) != (checksum, MAGIC):
        return Flaw("header checksum", checksum.hex(), found.hex())
    refuse_newer(path, FORMAT, reader_min)
    if cluster != identity.cluster:
        raise ForeignFile(path, "cluster", identity.cluster.hex(), cluster.hex())
    image_at = _FIELDS.size + count * _PAST.size
    history, image = data[_FIELDS.size : image_at], data[image_at : image_at + size]
    if xxh3_128_digest(history) != history_sum:
        return Flaw("checksum of the history", history_sum.hex(), "another")
    if xxh3_128_digest(image) != image_sum:
        return Flaw("checksum of the image", image_sum.hex(), "another")
    past = {Op(one): each for one, each in _PAST.iter_unpack(history)}
    flaw = _flaw_of_ops(op, tip, past, identity)
    if flaw is not None:
        return flaw
    entry, entries, flaw = _entries(data, aligned(image_at + size), Op(op), tip, identity)
    return Copy(cluster, Base(Op(op), tip, image, entry), past, tuple(entries), flaw)


def read_copy(directory: Directory, identity: Identity) -> FoundCopy:
    """Read the file. Raises only on one of another cluster, and on a newer format."""
    try:
        file = directory.open(NAME)
    except FileNotFoundError:
        return FoundCopy(is_missing=True)
    except OSError as error:
        return FoundCopy(flaw=f"cannot be opened: {error.strerror or error}")
    try:
        size = file.size()
        found = (
            decode(file.read(0, size), identity, file.path)
            if size <= SIZE_MAX
            else Flaw("size", f"at most {SIZE_MAX:,} bytes", f"{size:,} bytes")
        )
    except OSError as error:
        return FoundCopy(flaw=f"cannot be read: {error.strerror or error}")
    finally:
        file.close()
    if isinstance(found, Flaw):
        return FoundCopy(flaw=_in_words(found))
    if found.flaw is not None:
        return FoundCopy(found, f"behind op {found.newest.op}: {_in_words(found.flaw)}")
    return FoundCopy(found)


def _flaw_of_ops(
    op: int, tip: bytes, past: Mapping[Op, bytes], identity: Identity
) -> Flaw | None:
    """Judge the numbers: what is acted on must make sense, whoever wrote it."""
    if not 0 <= op <= OP_MAX or any(not 0 < one < op for one in past):
        return Flaw("ops of the header", f"below {op}", max(past, default=0))
    if op == 0 and tip != root(identity):
        return Flaw("checksum at op 0", root(identity).hex(), tip.hex())
    return None


def _entries(
    data: bytes, position: int, op: Op, tip: bytes, identity: Identity
) -> tuple[Entry | None, list[Entry], Flaw | None]:
    """Read the entry of the base, if it is there, and those behind it, while they chain."""
    base: Entry | None = None
    entries: list[Entry] = []
    view = memoryview(data)
    while position < len(data):
        found = _entry(view[position:], identity)
        if isinstance(found, Flaw):
            is_end = not any(data[position:])
            return base, entries, None if is_end else found
        if not entries and base is None and (found.op, found.checksum) == (op, tip):
            base = found
        elif found.op == op + 1 and found.parent == tip:
            op, tip = found.op, found.checksum
            entries.append(found)
        else:
            return base, entries, Flaw("entry", f"op {op + 1}, chained", f"op {found.op}")
        position += aligned(HEADER_SIZE + len(found.body))
    return base, entries, None


def _entry(data: memoryview, identity: Identity) -> Entry | Flaw:
    header = decode_header(data)
    if not isinstance(header, Header):
        return header
    if (header.cluster, header.group) != (identity.cluster, identity.group):
        return Flaw("entry of group", identity.group, header.group)
    found = decode_entry(data[: HEADER_SIZE + header.body_size])
    if isinstance(found, Flaw):
        return found
    return Entry(found.header, found.sealed, bytes(found.body))


def _in_words(flaw: Flaw) -> str:
    return f"{flaw.what}, expected {flaw.expected}, found {flaw.found}"
