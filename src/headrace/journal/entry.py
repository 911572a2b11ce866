"""One entry of a group's log, as bytes. Little-endian; full story in docs/formats/journal.md.

    entry  := header:256  body
    header := checksum:16s  parent:16s  body_checksum:16s  cluster:16s  writer:16s
              op:u64  view:u64  timestamp:u64  version:u64  namespace:u64  created:u64
              group:u32  schema_id:u32  row_count:u32  body_size:u32
              operation:u16  format:u16  zeros:108

`checksum` is xxh3-128 of the 240 bytes after it and so, through `body_checksum`, of the whole
entry; `parent` is the `checksum` of the entry before it. An entry is sealed once, by the
primary, and from then on stored and forwarded byte for byte.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from headrace.errors import BodyTooLarge
from headrace.model.ids import GroupId, Identity, Op, View
from headrace.model.proposal import NO_WRITER, EntryProposal
from headrace.storage.seam import Buffer

HEADER_SIZE: Final = 256
CHECKSUM_SIZE: Final = 16
FORMAT: Final = 1
# One limit for writers and readers: whatever was written can be read back, and a corrupt size
# field cannot make a reader allocate more than this.
BODY_SIZE_MAX: Final = 64 * 1024 * 1024

# Operations below 16 belong to the group itself and mean the same to every machine.
SEAL: Final = 1  # captures the state: the only way to a checkpoint
REGISTER: Final = 2  # opens a session, in group 0
OPERATION_FIRST: Final = 16  # the first number a machine may use

_FIELDS = struct.Struct("<16s16s16s16s16sQQQQQQIIIIHH108s")
_REST = struct.Struct("<16s16s16s16sQQQQQQIIIIHH108s")
_ZEROS = bytes(108)
_OP = struct.Struct("<Q")
_OP_AT = 80
_BODY_SIZE = struct.Struct("<I")
_BODY_SIZE_AT = 140
CLUSTER_AT: Final = 48  # a header's cluster: how a scan finds headers among rubble
assert _FIELDS.size == HEADER_SIZE
assert _REST.size == HEADER_SIZE - CHECKSUM_SIZE


class Header(NamedTuple):
    """The header of an entry, in the order of its bytes.

    A tuple: one is created for each entry written or scanned, and a frozen dataclass with this
    many fields takes far longer to create.
    """

    checksum: bytes
    parent: bytes  # checksum of op - 1; `root` of the group for op 1
    body_checksum: bytes
    cluster: bytes
    writer: bytes  # a producer's writer, or a session in group 0
    op: Op
    view: View  # the view in which it was prepared
    timestamp: int  # microseconds, given by the primary, strictly rising in one log
    version: int  # the writer's count, or a session's request number
    namespace: int
    created: int
    group: GroupId
    schema_id: int
    row_count: int
    body_size: int
    operation: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A header, its sealed bytes, and a body."""

    header: Header
    sealed: bytes
    body: Buffer

    @property
    def op(self) -> Op:
        return self.header.op

    @property
    def checksum(self) -> bytes:
        return self.header.checksum

    @property
    def parent(self) -> bytes:
        return self.header.parent

    @property
    def view(self) -> View:
        return self.header.view

    @property
    def timestamp(self) -> int:
        return self.header.timestamp


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why some bytes are not as expected."""

    what: str
    expected: object = None
    found: object = None


def root(identity: Identity) -> bytes:
    """Return the parent of op 1: different for each group, so that no log continues another."""
    return xxh3_128_digest(
        b"headrace root" + identity.cluster + struct.pack("<I", identity.group)
    )


def seal(
    identity: Identity,
    proposal: EntryProposal,
    *,
    op: Op,
    parent: bytes,
    view: View,
    timestamp: int,
) -> Entry:
    """Turn a proposal into an entry. Only the primary of `view` calls this, once for each op.

    A caller that has just hashed the body passes its `body_checksum`.
    """
    operation, body, body_checksum, writer, version, *about = proposal
    namespace, created, schema_id, row_count = about
    assert op >= 1
    assert len(parent) == CHECKSUM_SIZE
    assert len(writer) == len(NO_WRITER)
    if len(body) > BODY_SIZE_MAX:
        raise BodyTooLarge(len(body), BODY_SIZE_MAX)
    rest = _REST.pack(
        parent,
        body_checksum or xxh3_128_digest(body),
        identity.cluster,
        writer,
        op,
        view,
        timestamp,
        version,
        namespace,
        created,
        identity.group,
        schema_id,
        row_count,
        len(body),
        operation,
        FORMAT,
        _ZEROS,
    )
    sealed = xxh3_128_digest(rest) + rest
    return Entry(Header._make(_FIELDS.unpack(sealed)[:16]), sealed, body)


def decode_header(data: Buffer) -> Header | Flaw:
    """Read the header at the start of `data`; check its own checksum, not its place."""
    if len(data) < HEADER_SIZE:
        return Flaw("entry header is cut short", HEADER_SIZE, len(data))
    fields = _FIELDS.unpack_from(data)
    checksum = xxh3_128_digest(data[CHECKSUM_SIZE:HEADER_SIZE])
    if checksum != fields[0]:
        return Flaw("entry header checksum", checksum.hex(), fields[0].hex())
    if fields[16] != FORMAT or fields[17] != _ZEROS:
        return Flaw("entry format", FORMAT, fields[16])
    if fields[14] > BODY_SIZE_MAX:
        return Flaw("body size at most", BODY_SIZE_MAX, fields[14])
    return Header._make(fields[:16])


def decode(data: Buffer) -> Entry | Flaw:
    """Read an entry that fills `data`; check header and body."""
    header = decode_header(data)
    if isinstance(header, Flaw):
        return header
    if HEADER_SIZE + header.body_size != len(data):
        return Flaw("entry size", HEADER_SIZE + header.body_size, len(data))
    body = memoryview(data)[HEADER_SIZE:]
    checksum = xxh3_128_digest(body)
    if checksum != header.body_checksum:
        return Flaw("body checksum", header.body_checksum.hex(), checksum.hex())
    return Entry(header, bytes(data[:HEADER_SIZE]), body)


def peek_op(data: Buffer, position: int) -> int:
    """Return the op that a header at `position` would have, checked or not."""
    return int(_OP.unpack_from(data, position + _OP_AT)[0])


def size_of(sealed: bytes) -> int:
    """Return the size of an entry, header and body, by a header that was checked before."""
    return HEADER_SIZE + int(_BODY_SIZE.unpack_from(sealed, _BODY_SIZE_AT)[0])
