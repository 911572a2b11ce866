"""Packets of entries as bytes: the codec of messages with the journal's entries in it."""

from headrace.journal.entry import Entry, decode
from headrace.vsr import codec
from headrace.vsr.messages import Envelope


def encode_packet(envelope: Envelope[Entry]) -> bytes:
    return codec.encode(envelope, bytes_of)


def decode_packet(data: bytes) -> Envelope[Entry] | str:
    """Read a packet, or say why it is none; every entry in it is checked."""
    return codec.decode(data, entry_of)


def bytes_of(entry: Entry) -> bytes:
    return entry.sealed + bytes(entry.body)


def entry_of(data: bytes) -> Entry | None:
    found = decode(data)
    return found if isinstance(found, Entry) else None
