"""The operations on partitions, as bytes: an operation in the entry's header, and a body.

    append := batch                                        namespace, created, writer, version,
    stage  := stage_id:16s  number:u32  zeros:44  batch    schema_id and row_count in the header
    others := [field, …]

A batch is one Arrow record batch message. The other bodies are one msgpack array with exactly
the command's fields, in the order of this page. Commands for a whole topic (SetSchema, Publish,
Discard) carry the namespace of its partition 0 and the topic's `created`. A command never
changes: a new field makes a new operation. Full story in docs/formats/operations.md.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, get_args

import msgspec

from headrace.model.ids import Offset, Revision
from headrace.model.results import Receipt
from headrace.model.schema import SEGMENT_FORMAT, SEGMENT_FORMAT_FIRST
from headrace.storage.seam import Buffer

# Numbers that no other machine uses, so that an entry alone shows which machine it is for.
APPEND: Final = 40
STAGE: Final = 41

STAGE_ID_SIZE: Final = 16
STAGE_HEADER_SIZE: Final = 64  # keeps the alignment of the batch after it
_STAGE = struct.Struct("<16sI44s")
_ZEROS = bytes(44)
assert _STAGE.size == STAGE_HEADER_SIZE


class PartitionValue(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A value encoded as a msgpack array of exactly its fields."""


class Schema(PartitionValue, frozen=True):
    """One version of a topic's schema."""

    version: int
    schema: bytes  # an Arrow schema message


class OpenPartition(PartitionValue, frozen=True):
    """Open a partition. `revision` is the metadata revision that its proposer had applied."""

    operation: ClassVar[int] = 32
    revision: Revision
    topic_created: Revision
    schemas: tuple[Schema, ...]  # all versions of the topic, ascending


class SetSchema(PartitionValue, frozen=True):
    """Give a topic its next schema: in force from each partition's end on."""

    operation: ClassVar[int] = 33
    version: int
    schema: bytes


class ClosePartition(PartitionValue, frozen=True):
    """End a partition's life. Its files are removed when no kept snapshot names them.

    With a `created` of 0, which no life has, it only records which revision was followed.
    """

    operation: ClassVar[int] = 34
    revision: Revision


class Publish(PartitionValue, frozen=True):
    """Assign offsets to the rows of exactly these stages, in this order, all at once."""

    operation: ClassVar[int] = 35
    stages: tuple[Receipt, ...]


class Discard(PartitionValue, frozen=True):
    """Forget stages by ID, never by version: another task may still be filling its own."""

    operation: ClassVar[int] = 36
    stage_ids: tuple[bytes, ...]


class StoreCursor(PartitionValue, frozen=True):
    """Store the offset that a consumer group reads next. `hold` keeps Trim from passing it.

    With KEEP_NEXT as `next` only the generation rises: offset and hold stay unchanged.
    """

    operation: ClassVar[int] = 37
    group: str
    next: Offset
    generation: int
    hold: bool


class DeleteCursor(PartitionValue, frozen=True):
    """Forget a consumer group's cursor, and its hold."""

    operation: ClassVar[int] = 38
    group: str
    generation: int


class Trim(PartitionValue, frozen=True):
    """Drop the rows below `first`, but not past a held cursor, unless `past_hold`."""

    operation: ClassVar[int] = 39
    first: Offset
    past_hold: bool


class Purge(PartitionValue, frozen=True):
    """Drop all rows. Offsets continue: none is ever assigned twice."""

    operation: ClassVar[int] = 42


class Seal(PartitionValue, frozen=True):
    """The body of the group's Seal; an empty one expires nothing.

    The format is that of the segments that are written at this Seal, so that all replicas and
    every replay write the same. Format 1 is omitted: releases that know no other read the body.
    """

    expire: bool  # drop writers and stages that were idle too long, by this entry's time
    format: Annotated[int, msgspec.Meta(ge=SEGMENT_FORMAT_FIRST, le=SEGMENT_FORMAT)] = (
        SEGMENT_FORMAT_FIRST
    )


TopicCommand = SetSchema | Publish | Discard
PartitionCommand = OpenPartition | ClosePartition | StoreCursor | DeleteCursor | Trim | Purge
Command = TopicCommand | PartitionCommand

_DECODERS: Final = {kind.operation: msgspec.msgpack.Decoder(kind) for kind in get_args(Command)}
assert len(_DECODERS) == len(get_args(Command))
_SEAL_DECODER = msgspec.msgpack.Decoder(Seal)


@dataclass(frozen=True, slots=True)
class StageHeader:
    """The header before the batch in the body of a Stage."""

    stage_id: bytes
    number: int  # from 0 within its stage


def encode(command: Command | Seal) -> bytes:
    """Return the body of the entry whose operation is `command.operation`."""
    if isinstance(command, Seal) and command.format == SEGMENT_FORMAT_FIRST:
        return msgspec.msgpack.encode((command.expire,))
    return msgspec.msgpack.encode(command)


def decode(operation: int, body: Buffer) -> Command | None:
    """Read a command from any bytes; None if they are not a valid one."""
    decoder = _DECODERS.get(operation)
    if decoder is None:
        return None
    try:
        command: Command = decoder.decode(body)
    # msgspec does not wrap the error of a string that is not UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return command


def is_command(operation: int) -> bool:
    """Whether the body of `operation` is msgpack."""
    return operation in _DECODERS


def decode_seal(body: Buffer) -> Seal:
    """Read a Seal's body from any bytes. An unreadable body expires nothing, in format 1."""
    if not len(body):
        return Seal(expire=False)
    try:
        return _SEAL_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Seal(expire=False)


def encode_stage(stage_id: bytes, number: int) -> bytes:
    """Return the header before the batch in the body of a Stage."""
    assert len(stage_id) == STAGE_ID_SIZE
    return _STAGE.pack(stage_id, number, _ZEROS)


def decode_stage(body: Buffer) -> StageHeader | None:
    """Read the start of a Stage's body; None if it is invalid."""
    if len(body) < STAGE_HEADER_SIZE:
        return None
    stage_id, number, zeros = _STAGE.unpack_from(body)
    return StageHeader(stage_id, number) if zeros == _ZEROS else None
