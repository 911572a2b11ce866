"""The local wrapping of entries in a journal file. Full story in docs/formats/journal.md.

    frame  := prefix:64  entry (kind entry only)  padding to 64 bytes
    prefix := checksum:u64  magic:3s  kind:u8  size:u32  file_id:u64
              durable:u64  commit:u64  op:u64  tip:16s

`checksum` is xxh3-64 of the 56 bytes after it, seeded with the frame's position in its file, so
that a frame in the wrong place is invalid; `size` counts prefix and entry without padding.
`durable` and `commit` are the highest ops known to be durable and committed when the frame was
written: evidence for a later scan. `op` and `tip` name the entry in the frame, or for a mark
and an end the newest entry before it.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from headrace.journal.entry import BODY_SIZE_MAX, HEADER_SIZE, Flaw
from headrace.model.ids import Op
from headrace.storage.seam import Buffer

MAGIC: Final = b"HRF"
PREFIX_SIZE: Final = 64
ALIGNMENT: Final = 64
FRAME_SIZE_MAX: Final = PREFIX_SIZE + HEADER_SIZE + BODY_SIZE_MAX
FILE_ID_AT: Final = 16  # the offset of the file's ID in a prefix

_FIELDS = struct.Struct("<Q3sBIQQQQ16s")
_REST = struct.Struct("<3sBIQQQQ16s")
_CHECKSUM = struct.Struct("<Q")
_PADDING = bytes(ALIGNMENT)
assert _FIELDS.size == PREFIX_SIZE


class FrameKind(IntEnum):
    """The content of a frame."""

    ENTRY = 1
    MARK = 2  # empty: everything before it was durable
    END = 3  # empty: the next entry is in the next file, which was durable before this frame


# By code: the kind of a frame, and its smallest and largest size without padding.
_KINDS = {
    int(FrameKind.ENTRY): (FrameKind.ENTRY, PREFIX_SIZE + HEADER_SIZE, FRAME_SIZE_MAX),
    int(FrameKind.MARK): (FrameKind.MARK, PREFIX_SIZE, PREFIX_SIZE),
    int(FrameKind.END): (FrameKind.END, PREFIX_SIZE, PREFIX_SIZE),
}


class Prefix(NamedTuple):
    """The prefix of a frame. A tuple for the same reason as `Header`."""

    kind: FrameKind
    size: int
    file_id: int
    durable: Op
    commit: Op
    op: Op
    tip: bytes


def encode_prefix(prefix: Prefix, position: int) -> bytes:
    """Return the 64 bytes of a prefix at `position`."""
    assert PREFIX_SIZE <= prefix.size <= FRAME_SIZE_MAX
    rest = _REST.pack(
        MAGIC,
        prefix.kind,
        prefix.size,
        prefix.file_id,
        prefix.durable,
        prefix.commit,
        prefix.op,
        prefix.tip,
    )
    return _CHECKSUM.pack(xxh3_64_intdigest(rest, position)) + rest


def decode_prefix(data: Buffer, file_id: int, position: int) -> Prefix | Flaw:
    """Read the prefix at the start of `data`; another file, life or place is a flaw."""
    if len(data) < PREFIX_SIZE:
        return Flaw("frame prefix is cut short", PREFIX_SIZE, len(data))
    checksum, magic, code, size, found_id, durable, commit, op, tip = _FIELDS.unpack_from(data)
    if found_id != file_id:
        return Flaw("file id", f"{file_id:016x}", f"{found_id:016x}")
    expected = xxh3_64_intdigest(data[_CHECKSUM.size : PREFIX_SIZE], position)
    if checksum != expected:
        return Flaw("frame prefix checksum", f"{expected:016x}", f"{checksum:016x}")
    if magic != MAGIC or code not in _KINDS:
        return Flaw("frame kind", MAGIC, magic + bytes([code]))
    kind, smallest, largest = _KINDS[code]
    if not smallest <= size <= largest:
        return Flaw("frame size", f"{smallest}..{largest}", size)
    return Prefix(kind, size, found_id, durable, commit, op, tip)


def aligned(size: int) -> int:
    """Return `size` rounded up to the alignment of frames."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def padding(size: int) -> bytes:
    """Return the zeros that follow a frame of `size` bytes."""
    return _PADDING[: aligned(size) - size]


def entry_frame_size(body_size: int) -> int:
    """Return the frame size of an entry with a body of this size, without padding."""
    return PREFIX_SIZE + HEADER_SIZE + body_size
