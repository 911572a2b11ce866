"""Where this node keeps the files of a state: the local part of a shard's snapshot.

    local    := [format, [carry, …], [placed, …], [unplaced, …]]
    carry    := [op, checksum, size]
    placed   := [namespace, created, first, end, row_digest, file_digest, size]
    unplaced := [namespace, created, first, end,
                 [[first, row_count, op, timestamp, size], …], flaw]

One msgpack array, each list in order. Two replicas in one state may differ here.
"""

from typing import Final

import msgspec

from headrace.errors import CorruptFile, UnsupportedFormat
from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.partition.files.carry import carry_name
from headrace.partition.machine.operations import PartitionValue
from headrace.partition.machine.state import Piece
from headrace.partition.segments.segment import segment_name

FORMAT: Final = 1
_PLACE = "local part of a snapshot"


class Carried(PartitionValue, frozen=True):
    """A carry file with some live row."""

    op: Op
    checksum: bytes
    size: int


class PlacedHere(PartitionValue, frozen=True):
    """A segment with a file."""

    namespace: Namespace
    created: Revision
    first: Offset
    end: Offset
    rows: bytes
    file: bytes
    size: int


class UnplacedHere(PartitionValue, frozen=True):
    """A segment that could not be written: its rows are still in carry files."""

    namespace: Namespace
    created: Revision
    first: Offset
    end: Offset
    pieces: tuple[Piece, ...]
    flaw: str


class Local(PartitionValue, frozen=True):
    """Everything that a snapshot names."""

    format: int
    carried: tuple[Carried, ...]
    placed: tuple[PlacedHere, ...]
    unplaced: tuple[UnplacedHere, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of all files, segments and carry files alike."""
        segments = (
            segment_name(one.namespace, one.created, one.first, one.end) for one in self.placed
        )
        return frozenset((*segments, *(carry_name(one.op) for one in self.carried)))


class _LocalOpening(msgspec.Struct, array_like=True):
    format: int


NOTHING: Final = Local(FORMAT, (), (), ())
_OPENING_DECODER = msgspec.msgpack.Decoder(_LocalOpening)
_DECODER = msgspec.msgpack.Decoder(Local)


def encode(local: Local) -> bytes:
    return msgspec.msgpack.encode(local)


def decode(data: bytes) -> Local:
    """Read a local part; raise Corrupt on invalid bytes."""
    try:
        found = _OPENING_DECODER.decode(data).format
        if found != FORMAT:
            raise UnsupportedFormat("format", path=_PLACE, expected=FORMAT, found=found)
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"cannot be read: {error}", path=_PLACE) from error
