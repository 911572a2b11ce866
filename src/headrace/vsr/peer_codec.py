"""Messages between replicas, as bytes.

    packet := checksum:16s  kind:u8  envelope

`checksum` is xxh3-128 of everything after it; `envelope` is a msgpack array of sender, boot,
life, sequence, wall, past and the message's fields. Entries are embedded as their sealed bytes.
Decoding returns a value or the reason why the bytes are invalid; it never raises.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

import msgspec
from xxhash import xxh3_128_digest

from headrace.model.ids import ReplicaId
from headrace.vsr.peer_messages import E, Envelope, Exact, Message, Offer, Prepares, Start

_CHECKSUM_SIZE: Final = 16
PACKET_SIZE_MAX: Final = 80 * 1024 * 1024  # one commit group of 64 MiB, and its headers

# A message's index in the union is its kind on the wire: add new ones at the end.
KINDS: Final[tuple[Any, ...]] = tuple(
    getattr(kind, "__origin__", kind) for kind in get_args(Message)
)
_WITH_ENTRIES: Final = (Prepares, Exact, Offer)


def _decoder(kind: Any) -> Any:  # noqa: ANN401 - the types of a union, one by one
    fields = kind[bytes] if kind in _WITH_ENTRIES else kind
    return msgspec.msgpack.Decoder(
        tuple.__class_getitem__((*[int] * 5, tuple[Start, ...], fields))
    )


_DECODERS: Final = tuple(map(_decoder, KINDS))
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def encode(envelope: Envelope[E], bytes_of: Callable[[E], bytes]) -> bytes:
    """Return the bytes of one message."""
    message: Any = envelope.message
    number = _NUMBERS[type(message)]
    if isinstance(message, Prepares | Exact):
        message = replace(message, entries=tuple(map(bytes_of, message.entries)))
    elif isinstance(message, Offer):
        message = replace(message, entry=bytes_of(message.entry))
    life = (envelope.sender, envelope.boot, envelope.life, envelope.sequence, envelope.wall)
    rest = bytes([number]) + msgspec.msgpack.encode((*life, envelope.past, message))
    assert len(rest) <= PACKET_SIZE_MAX - _CHECKSUM_SIZE, "peers would reject it"
    return xxh3_128_digest(rest) + rest


def decode(data: bytes, entry_of: Callable[[bytes], E | None]) -> Envelope[E] | str:
    """Decode one message, or return why the bytes are invalid."""
    if not _CHECKSUM_SIZE + 1 < len(data) <= PACKET_SIZE_MAX:
        return "packet size"
    rest = memoryview(data)[_CHECKSUM_SIZE:]
    if xxh3_128_digest(rest) != data[:_CHECKSUM_SIZE]:
        return "packet checksum"
    if rest[0] >= len(KINDS):
        return "packet kind"
    try:
        *who, message = _DECODERS[rest[0]].decode(rest[1:])
    except (msgspec.DecodeError, ValueError) as error:
        return f"packet fields: {error}"
    message = _with_entries(message, entry_of)
    if message is None:
        return "packet entry"
    sender, boot, life, sequence, wall, past = who
    return Envelope(ReplicaId(sender), boot, life, sequence, wall, message, past)


def _with_entries(message: Any, entry_of: Callable[[bytes], E | None]) -> Any:  # noqa: ANN401
    """Decode the embedded entries of a message; None if one is invalid."""
    if isinstance(message, Prepares | Exact):
        entries = tuple(map(entry_of, message.entries))
        return None if None in entries else replace(message, entries=entries)
    if isinstance(message, Offer):
        entry = entry_of(message.entry)
        return None if entry is None else replace(message, entry=entry)
    return message
