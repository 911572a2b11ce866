"""Frames that are almost the protocol: valid ones of every kind, changed in one or more places.

Those with a wrong CRC must go no further than the frame; those with a recomputed CRC reach the
layers above. `must_fail` is set only where no reading of the bytes is a request.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from random import Random
from typing import Final, TypeVar

from headrace.wire.messages import Message
from headrace.wire.msgpack import pack
from headrace_lab.hostile.server import MIB

HEADER: Final = struct.Struct("<4sHHQIIIII")
CRC: Final = struct.Struct("<I")
HEADER_SIZE: Final = HEADER.size + CRC.size
MAGIC: Final = b"HRW1"
NO_BODY_CRC: Final = 1  # the one flag there is
DEADLINE_MS: Final = 1_000

EXTREMES: Final = (
    *(0, 1, -1, 2, 127, 128, 255, 256, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), -(2**63) + 1),
)
OTHERS: Final = (None, True, 7, -7, "text", b"bytes", (), (1, "two", b"three"), ((),))
# What opens a value of msgpack that no message uses, or that claims more than there is.
FOREIGN: Final = (
    *(b"\xc1", b"\x80", b"\x81\x01\x01", b"\xca\x00\x00\x00\x00", b"\xcb" + bytes(8)),
    *(b"\xd4\x01\x01", b"\xc7\x01\x01\x01", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"),
    *(b"\xdc\xff\xff", b"\xa3\xff\xfe\xfd", b"\xd9\x02\xc3\x28", b"\xcf\x01", b"\xd3"),
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Letter:
    """A valid frame, in parts that can be changed one by one."""

    message: Message
    values: tuple[object, ...]
    body: bytes = b""
    request_id: int = 1
    deadline_ms: int = DEADLINE_MS


@dataclass(frozen=True, slots=True)
class Hostile:
    """Bytes for a connection that has shaken hands, and what may come of them."""

    kind: str
    data: bytes
    must_fail: bool
    # The server must end the connection without another byte: it is not to wait for more.
    must_cut: bool = False


def letter(message: Message, body: bytes = b"") -> Letter:
    """Open a message for changes."""
    return Letter(message, _plain(astuple(message)), body)


def _plain(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return named values as the wire writes them: tuples without names."""
    return tuple(_plain(one) if isinstance(one, tuple) else one for one in values)


def frame_of(
    kind: int,
    meta: bytes,
    body: bytes = b"",
    *,
    request_id: int = 1,
    deadline_ms: int = DEADLINE_MS,
    magic: bytes = MAGIC,
    flags: int = 0,
    zeros: int = 0,
    meta_size: int | None = None,
    body_size: int | None = None,
    body_crc: int | None = None,
) -> bytes:
    """Write a frame with a right head CRC, whatever its words say."""
    head = HEADER.pack(
        magic,
        kind,
        flags,
        request_id,
        deadline_ms,
        len(meta) if meta_size is None else meta_size,
        len(body) if body_size is None else body_size,
        zlib.crc32(body) if body_crc is None else body_crc,
        zeros,
    )
    return head + CRC.pack(zlib.crc32(meta, zlib.crc32(head))) + meta + body


def whole(letter: Letter, values: tuple[object, ...] | None = None) -> bytes:
    """Write a letter, with other values if they are given."""
    meta = pack(letter.values if values is None else values)
    return frame_of(
        letter.message.kind,
        meta,
        letter.body,
        request_id=letter.request_id,
        deadline_ms=letter.deadline_ms,
    )


def mended(data: bytes) -> bytes:
    """Make both CRCs right for whatever the sizes in the header take in."""
    words = list(HEADER.unpack_from(data))
    meta_size, body_size = words[5], words[6]
    meta = data[HEADER_SIZE : HEADER_SIZE + meta_size]
    body = data[HEADER_SIZE + meta_size :][:body_size]
    words[7] = zlib.crc32(body)
    head = HEADER.pack(*words)
    return head + CRC.pack(zlib.crc32(meta, zlib.crc32(head))) + data[HEADER_SIZE:]


# Changes. Each takes a letter and chance.


def _as_it_is(letter: Letter, chance: Random) -> Hostile:
    return Hostile("not changed at all", whole(letter), must_fail=False)


def _flipped(letter: Letter, chance: Random) -> Hostile:
    """Up to three bits: as many as CRC-32 finds for sure in frames of this size."""
    data = whole(letter)
    return Hostile("bits flipped", _flip(data, chance, chance.randint(1, 3)), must_fail=True)


def _flipped_and_mended(letter: Letter, chance: Random) -> Hostile:
    data = bytearray(whole(letter))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(HEADER_SIZE, len(data))
        data[place] ^= 1 << chance.randrange(8)
    return Hostile("bits flipped, CRC mended", mended(bytes(data)), must_fail=False)


def _header_flipped_and_mended(letter: Letter, chance: Random) -> Hostile:
    data = bytearray(whole(letter))
    data[chance.randrange(4, HEADER.size)] ^= 1 << chance.randrange(8)
    return Hostile("header flipped, CRC mended", mended(bytes(data)), must_fail=False)


def _cut(letter: Letter, chance: Random) -> Hostile:
    data = whole(letter)
    return Hostile("cut short", data[: chance.randrange(len(data))], must_fail=True)


def _extended(letter: Letter, chance: Random) -> Hostile:
    data = whole(letter) + chance.randbytes(chance.randint(1, 200))
    return Hostile("bytes behind it", data, must_fail=False)


def _extreme_number(letter: Letter, chance: Random) -> Hostile:
    values = letter.values
    places = [place for place in _places(values) if type(_at(values, place)) is int]
    if not places:
        return _extreme_header(letter, chance)
    count = 1 if chance.random() < 0.7 else chance.randint(1, len(places))
    for place in chance.sample(places, count):
        values = _with(values, place, chance.choice(EXTREMES))
    return Hostile("numbers at their limits", whole(letter, values), must_fail=False)


def _extreme_header(letter: Letter, chance: Random) -> Hostile:
    request_id = chance.choice((0, 1, 2**63, 2**64 - 1, chance.getrandbits(64)))
    deadline_ms = chance.choice((0, 1, 2**31, 2**32 - 1, chance.getrandbits(32)))
    changed = replace(letter, request_id=request_id, deadline_ms=deadline_ms)
    return Hostile("id and deadline at their limits", whole(changed), must_fail=False)


def _wrong_type(letter: Letter, chance: Random) -> Hostile:
    values = letter.values
    places = [place for place in _places(values) if _at(values, place) is not None]
    if not places:
        return _wrong_count(letter, chance)
    place = chance.choice(places)
    found = _at(values, place)
    # None may stand in some places, and Failed has fields of two types.
    options = [one for one in OTHERS if type(one) not in (type(found), type(None), str, int)]
    values = _with(values, place, chance.choice(options))
    return Hostile("wrong type", whole(letter, values), must_fail=True)


def _wrong_count(letter: Letter, chance: Random) -> Hostile:
    values = list(letter.values)
    if values and chance.random() < 0.5:
        del values[chance.randrange(len(values))]
    else:
        values.insert(chance.randint(0, len(values)), chance.choice(OTHERS))
    return Hostile("a field more or less", whole(letter, tuple(values)), must_fail=True)


def _swapped(letter: Letter, chance: Random) -> Hostile:
    values = list(letter.values)
    if len(values) < 2:
        return _wrong_count(letter, chance)
    first, second = chance.sample(range(len(values)), 2)
    values[first], values[second] = values[second], values[first]
    return Hostile("fields swapped", whole(letter, tuple(values)), must_fail=False)


def _no_array(letter: Letter, chance: Random) -> Hostile:
    meta = pack(chance.choice(OTHERS[:6]))
    return Hostile("no array at all", frame_of(letter.message.kind, meta), must_fail=True)


def _foreign(letter: Letter, chance: Random) -> Hostile:
    """A value that is no msgpack of ours, in the place of one field."""
    parts = [pack(value) for value in letter.values] or [b""]
    parts[chance.randrange(len(parts))] = chance.choice(FOREIGN)
    meta = bytes((0x90 | max(len(letter.values), 1),)) + b"".join(parts)
    data = frame_of(letter.message.kind, meta, letter.body)
    return Hostile("foreign msgpack", data, must_fail=True)


def _nested(letter: Letter, chance: Random) -> Hostile:
    depth = chance.choice((9, 10, 100, 1_000, 5_000, 100_000))
    meta = b"\x91" * depth + b"\x90"
    return Hostile("nested deep", frame_of(letter.message.kind, meta), must_fail=True)


def _long(letter: Letter, chance: Random) -> Hostile:
    """A text, bytes or an array that is far longer than any should be."""
    values = letter.values
    places = [one for one in _places(values) if isinstance(_at(values, one), str | bytes)]
    size = chance.choice((1_000, 65_536, MIB))
    if not places:
        meta = pack(tuple(range(min(size, 65_536))))
        return Hostile("long values", frame_of(letter.message.kind, meta), must_fail=True)
    place = chance.choice(places)
    long = "x" * size if isinstance(_at(values, place), str) else bytes(size)
    return Hostile("long values", whole(letter, _with(values, place, long)), must_fail=False)


def _wrong_kind(letter: Letter, chance: Random) -> Hostile:
    meta = pack(letter.values)
    kind = chance.choice((0, 10, 15, 25, 31, 35, 47, 59, 82, 255, 2**15, 2**16 - 1))
    return Hostile("kind that nobody has", frame_of(kind, meta, letter.body), must_fail=True)


def _other_kind(letter: Letter, chance: Random) -> Hostile:
    kind = chance.choice((1, 2, 3, 5, 7, 17, 20, 22, 48, 50, 52, 54, 56, 64, 72, 80))
    data = frame_of(kind, pack(letter.values), letter.body)
    return Hostile("kind of another message", data, must_fail=False)


def _reserved(letter: Letter, chance: Random) -> Hostile:
    flags, zeros = chance.choice(((2, 0), (0, 1), (0x8000, 0), (3, 0), (0, 2**31), (1, 7)))
    meta = pack(letter.values)
    data = frame_of(letter.message.kind, meta, letter.body, flags=flags, zeros=zeros)
    return Hostile("reserved bits", data, must_fail=True, must_cut=True)


def _without_crc(letter: Letter, chance: Random) -> Hostile:
    """Only a message with a checksum of its body may do without the CRC, and with its own."""
    body = letter.body or b"a body"
    is_changed = chance.random() < 0.5
    changed = _flip(body, chance, 1) if is_changed else body
    meta = pack(letter.values)
    data = frame_of(letter.message.kind, meta, changed, flags=NO_BODY_CRC, body_crc=0)
    must_fail = is_changed or not getattr(letter.message, "checksum", b"")
    return Hostile("body without a CRC", data, must_fail)


def _no_crc_and_one(letter: Letter, chance: Random) -> Hostile:
    crc = 1 << chance.randrange(32)
    meta = pack(letter.values)
    data = frame_of(letter.message.kind, meta, letter.body, flags=NO_BODY_CRC, body_crc=crc)
    return Hostile("no CRC, and yet one", data, must_fail=True, must_cut=True)


def _wrong_magic(letter: Letter, chance: Random) -> Hostile:
    magic = chance.choice((b"HRW2", b"HRW0", b"GET ", b"\x16\x03\x01\x02", bytes(4)))
    data = frame_of(letter.message.kind, pack(letter.values), letter.body, magic=magic)
    return Hostile("wrong magic", data, must_fail=True, must_cut=True)


def _huge_meta(letter: Letter, chance: Random) -> Hostile:
    size = chance.choice((16 * MIB + 1, 2**30, 2**31, 2**32 - 1))
    data = frame_of(letter.message.kind, pack(letter.values), meta_size=size)
    return Hostile("meta over the limit", data, must_fail=True, must_cut=True)


def _huge_body(letter: Letter, chance: Random) -> Hostile:
    size = chance.choice((65 * MIB, 2**30, 2**31, 2**32 - 1))
    data = frame_of(letter.message.kind, pack(letter.values), body_size=size)
    return Hostile("body over the limit", data, must_fail=True, must_cut=True)


def _promised(letter: Letter, chance: Random) -> Hostile:
    """A size within the limit of which nothing comes."""
    size = chance.choice((1, 1_000, MIB, 16 * MIB))
    meta = pack(letter.values)
    if chance.random() < 0.5:
        data = frame_of(letter.message.kind, meta, meta_size=len(meta) + size)
    else:
        data = frame_of(letter.message.kind, meta, letter.body, body_size=10 * MIB + size)
    return Hostile("promises more than it has", data, must_fail=True)


def _wrong_body(letter: Letter, chance: Random) -> Hostile:
    body = chance.randbytes(chance.choice((1, 8, 100, 70_000)))
    data = frame_of(letter.message.kind, pack(letter.values), body)
    return Hostile("body of noise", data, must_fail=bool(letter.body))


def _wrong_body_crc(letter: Letter, chance: Random) -> Hostile:
    body = letter.body or b"a body"
    crc = zlib.crc32(body) ^ (1 << chance.randrange(32))
    data = frame_of(letter.message.kind, pack(letter.values), body, body_crc=crc)
    # A checksum of the body stands for its CRC: it is the stronger one.
    is_checked_twice = bool(getattr(letter.message, "checksum", b""))
    return Hostile("CRC of another body", data, must_fail=not is_checked_twice)


def _twice(letter: Letter, chance: Random) -> Hostile:
    """Many requests of one id at once."""
    return Hostile("one id for many", whole(letter) * chance.randint(2, 6), must_fail=False)


Change = Callable[[Letter, Random], Hostile]
CHANGES: Final[tuple[Change, ...]] = (
    *(_as_it_is, _flipped, _flipped_and_mended, _flipped_and_mended, _flipped_and_mended),
    *(_header_flipped_and_mended, _cut, _extended, _extreme_number, _extreme_number),
    *(_extreme_number, _extreme_header, _wrong_type, _wrong_type, _wrong_count, _swapped),
    *(_no_array, _foreign, _nested, _long, _wrong_kind, _other_kind, _reserved, _wrong_magic),
    *(_huge_meta, _huge_body, _promised, _wrong_body, _wrong_body_crc, _twice),
    *(_without_crc, _no_crc_and_one),
)


def hostile(letter: Letter, chance: Random) -> Hostile:
    """Change a letter in one way."""
    return chance.choice(CHANGES)(letter, chance)


def noise(chance: Random) -> Iterator[bytes]:
    """Give strings for one connection without an end; half of them open as a frame does."""
    if chance.random() < 0.5:
        yield chance.choice((b"H", b"HR", b"HRW", MAGIC, _head_of_noise(chance)))
    while True:
        yield chance.randbytes(chance.choice((1, 2, 3, 5, 8, 40, 200, 2_000)))


def _head_of_noise(chance: Random) -> bytes:
    """A header whose CRC and meta are noise, of sizes that are allowed."""
    kind = chance.choice((1, 6, 48, 80, chance.getrandbits(16)))
    meta_size, body_size = chance.choice((0, 5, 60, 4_000)), chance.choice((0, 0, 100, MIB))
    return HEADER.pack(MAGIC, kind, 0, 1, 0, meta_size, body_size, 0, 0)


def _flip(data: bytes, chance: Random, count: int) -> bytes:
    changed = bytearray(data)
    for place in chance.sample(range(8 * len(data)), count):
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


Place = tuple[int, ...]


def _places(values: object, within: Place = ()) -> Iterator[Place]:
    """Give the way to every value, arrays too."""
    if within:
        yield within
    if isinstance(values, tuple):
        for number, each in enumerate(values):
            yield from _places(each, (*within, number))


def _at(values: object, place: Place) -> object:
    for number in place:
        assert isinstance(values, tuple)
        values = values[number]
    return values


def _with(values: tuple[object, ...], place: Place, value: object) -> tuple[object, ...]:
    number, *rest = place
    inner = values[number]
    changed = _with(inner, tuple(rest), value) if rest and isinstance(inner, tuple) else value
    return (*values[:number], changed, *values[number + 1 :])
