"""A closed subset of msgpack: the field types of messages, and nothing else.

    value := nil | bool | int in i64 or u64 | str, UTF-8 | bin | array of values

Encoded in the shortest form; decoded from any. Maps, floats, extensions, trailing bytes and
deep nesting are refused, and no memory is allocated based on a claimed size.
"""

import struct
from collections.abc import Callable
from struct import Struct
from typing import Final

from headrace.errors import BadFrame

Buffer = bytes | bytearray | memoryview
Value = None | bool | int | str | bytes | tuple["Value", ...]

DEPTH_MAX: Final = 8  # arrays within arrays; messages need 5
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1
NOT_SENT: Final = "Nothing was sent; use values that the message can hold"

_NIL, _FALSE, _TRUE = b"\xc0", b"\xc2", b"\xc3"
_FIXINT = tuple(bytes((number,)) for number in range(0x80))
_FIXARRAY = tuple(bytes((0x90 | count,)) for count in range(16))
_FIXSTR = tuple(bytes((0xA0 | size,)) for size in range(32))
_BIN8 = tuple(bytes((0xC4, size)) for size in range(0x100))

_HEAD8, _HEAD16, _HEAD32 = Struct(">BB").pack, Struct(">BH").pack, Struct(">BI").pack
_HEAD64, _SIGNED = Struct(">BQ").pack, tuple(Struct(f">B{code}").pack for code in "bhiq")

_Write = Callable[[object, int], bytes]  # value, nesting depth
_Read = Callable[[bytes, int, int], tuple[Value, int]]  # data, position, nesting depth


def pack(value: object) -> bytes:
    """Encode one value. BadFrame if it, or anything in it, is outside the subset."""
    try:
        return _WRITERS[type(value)](value, 0)
    except KeyError as error:
        (kind,) = error.args
        found = kind.__name__ if isinstance(kind, type) else str(kind)
        raise BadFrame(f"a {found} cannot be sent", hint=NOT_SENT) from None
    except UnicodeEncodeError as error:
        raise BadFrame(
            f"text that is not valid Unicode cannot be sent: {error}", hint=NOT_SENT
        ) from None
    except struct.error:
        raise BadFrame("a value of more than 4 GiB cannot be sent", hint=NOT_SENT) from None


def unpack(data: Buffer) -> Value:
    """Decode one value, which must fill `data`, or raise BadFrame. Arrays become tuples."""
    whole = data if type(data) is bytes else bytes(data)
    try:
        value, end = _READERS[whole[0]](whole, 1, 0)
    except (IndexError, struct.error):
        raise BadFrame(f"a value ends after the {len(whole)} bytes that hold it") from None
    except UnicodeDecodeError as error:
        raise BadFrame(f"text that is not valid UTF-8: {error.reason}") from None
    if end != len(whole):
        raise BadFrame(f"{len(whole) - end} bytes follow the value")
    return value


def _write_none(_value: object, _depth: int) -> bytes:
    return _NIL


def _write_bool(value: object, _depth: int) -> bytes:
    return _TRUE if value else _FALSE


def _write_int(value: int, _depth: int) -> bytes:
    if value >= 0:
        if value < 0x80:
            return _FIXINT[value]
        if value < 0x10000:
            return _HEAD8(0xCC, value) if value < 0x100 else _HEAD16(0xCD, value)
        if value <= INT_MAX:
            return _HEAD32(0xCE, value) if value < 0x100000000 else _HEAD64(0xCF, value)
    elif value >= INT_MIN:
        return _write_negative(value)
    raise BadFrame(f"a number of {value.bit_length()} bits cannot be sent", hint=NOT_SENT)


def _write_negative(value: int) -> bytes:
    if value >= -0x20:
        return bytes((value + 0x100,))
    for width, write in enumerate(_SIGNED[:3]):
        if value >= -(1 << ((8 << width) - 1)):
            return write(0xD0 + width, value)
    return _SIGNED[3](0xD3, value)


def _write_str(value: str, _depth: int) -> bytes:
    data = value.encode()
    size = len(data)
    if size < 32:
        return _FIXSTR[size] + data
    return _head(size, 0xD9) + data


def _write_bytes(value: bytes, _depth: int) -> bytes:
    size = len(value)
    if size < 0x100:
        return _BIN8[size] + value
    return _head(size, 0xC4) + value


def _write_array(value: tuple[object, ...] | list[object], depth: int) -> bytes:
    if depth == DEPTH_MAX:
        raise BadFrame(f"arrays nested deeper than {DEPTH_MAX} cannot be sent", hint=NOT_SENT)
    count, within, writers = len(value), depth + 1, _WRITERS
    items = b"".join([writers[type(item)](item, within) for item in value])
    if count < 16:
        return _FIXARRAY[count] + items
    return (_HEAD16(0xDC, count) if count < 0x10000 else _HEAD32(0xDD, count)) + items


def _head(size: int, first: int) -> bytes:
    """Encode a size after the code for its width: `first`, or one of the next two."""
    if size < 0x100:
        return _HEAD8(first, size)
    return _HEAD16(first + 1, size) if size < 0x10000 else _HEAD32(first + 2, size)


# Keyed by exact type: a bool is not an int here, and subclasses are refused.
_WRITERS: Final[dict[type, _Write]] = {
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,  # type: ignore[dict-item]
    str: _write_str,  # type: ignore[dict-item]
    bytes: _write_bytes,  # type: ignore[dict-item]
    tuple: _write_array,  # type: ignore[dict-item]
    list: _write_array,  # type: ignore[dict-item]
}


def _read_array(data: bytes, at: int, count: int, depth: int) -> tuple[Value, int]:
    if count > len(data) - at:
        raise BadFrame(f"an array of {count} values in {len(data) - at} bytes")
    if depth == DEPTH_MAX:
        raise BadFrame(f"arrays are nested deeper than {DEPTH_MAX}")
    items: list[Value] = []
    within, readers = depth + 1, _READERS
    for _ in range(count):
        first = data[at]
        at += 1
        if first < 0x80:
            items.append(first)
        else:
            item, at = readers[first](data, at, within)
            items.append(item)
    return tuple(items), at


def _read_str(data: bytes, at: int, size: int) -> tuple[Value, int]:
    end = at + size
    if end > len(data):
        raise BadFrame(f"text of {size} bytes in {len(data) - at}")
    return data[at:end].decode(), end


def _read_bin(data: bytes, at: int, size: int) -> tuple[Value, int]:
    end = at + size
    if end > len(data):
        raise BadFrame(f"{size} bytes in {len(data) - at}")
    return data[at:end], end


def _read_bin8(data: bytes, at: int, _depth: int) -> tuple[Value, int]:
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise BadFrame(f"{data[at]} bytes in {len(data) - start}")
    return data[start:end], end


def _read_other(data: bytes, at: int, _depth: int) -> tuple[Value, int]:
    raise BadFrame(f"a value begins with 0x{data[at - 1]:02x}, which no message uses")


def _constant(value: Value) -> _Read:
    return lambda _data, at, _depth: (value, at)


def _number(code: str) -> _Read:
    form = Struct(f">{code}")
    size, read = form.size, form.unpack_from

    def reader(data: bytes, at: int, _depth: int) -> tuple[Value, int]:
        return read(data, at)[0], at + size

    return reader


def _fixed_str(size: int) -> _Read:
    return lambda data, at, _depth: _read_str(data, at, size)


def _fixed_array(count: int) -> _Read:
    return lambda data, at, depth: _read_array(data, at, count, depth)


def _sized(code: str, read: Callable[[bytes, int, int], tuple[Value, int]]) -> _Read:
    form = Struct(f">{code}")
    width, size = form.size, form.unpack_from
    return lambda data, at, _depth: read(data, at + width, size(data, at)[0])


def _counted(code: str) -> _Read:
    form = Struct(f">{code}")
    width, count = form.size, form.unpack_from
    return lambda data, at, depth: _read_array(data, at + width, count(data, at)[0], depth)


def _readers() -> tuple[_Read, ...]:
    """Build the table of readers by first byte."""
    table: list[_Read] = [_read_other] * 0x100
    table[0x00:0x80] = [_constant(number) for number in range(0x80)]
    table[0x90:0xA0] = [_fixed_array(count) for count in range(16)]
    table[0xA0:0xC0] = [_fixed_str(size) for size in range(32)]
    table[0xE0:0x100] = [_constant(number) for number in range(-0x20, 0)]
    table[0xC0], table[0xC2], table[0xC3] = _constant(None), _constant(False), _constant(True)
    table[0xC4:0xC7] = [_read_bin8, _sized("H", _read_bin), _sized("I", _read_bin)]
    table[0xCC:0xD4] = [_number(code) for code in "BHIQbhiq"]
    table[0xD9:0xDC] = [_sized(code, _read_str) for code in "BHI"]
    table[0xDC:0xDE] = [_counted("H"), _counted("I")]
    return tuple(table)


_READERS: Final = _readers()
