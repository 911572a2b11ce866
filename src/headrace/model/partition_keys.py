"""The partition of a row by its key: the same in every client and language.

    partition := CRC-32 of the key's bytes  mod  the count of partitions

    null                     nothing
    string, binary           its bytes, UTF-8
    bool                     one byte, 0 or 1
    int, date, timestamp     i64, little-endian: the number, days, microseconds since 1970
    float                    f64, little-endian: one NaN (0x7ff8 and zeros), and no -0.0
    decimal                  i128, little-endian: the digits without their point

Widening a number keeps its bytes. Adding partitions moves keys; existing rows stay.
"""

import math
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa
from pyarrow import types

from headrace.errors import BadSchema
from headrace.model.column_types import said

_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_NAN: Final = bytes.fromhex("000000000000f87f")
_DECIMAL_SIZE: Final = 16

_ToBytes = Callable[[object], bytes]


def check_key(schema: pa.Schema, name: str) -> None:
    """Raise BadSchema unless column `name` of `schema` may be a topic's key."""
    if name not in schema.names:
        hint = f"The columns are {said(', '.join(schema.names))}"
        raise BadSchema(name, "the key is not a column of the schema", hint=hint)
    _bytes_of(schema.field(name).type, name)


def partitions_of(keys: pa.Array, count: int, name: str = "") -> pa.Array:
    """Return the partition of each key as int32; errors name the column `name`."""
    assert count >= 1
    to_bytes = _bytes_of(keys.type, name)
    encoded = _plain(keys).dictionary_encode()
    found = [zlib.crc32(to_bytes(key)) % count for key in encoded.dictionary.to_pylist()]
    partitions = pa.array(found, pa.int32()).take(encoded.indices)
    return partitions.fill_null(zlib.crc32(b"") % count)


def _plain(keys: pa.Array) -> pa.Array:
    """Return dates and times as plain integers."""
    if types.is_date32(keys.type):
        return keys.view(pa.int32())
    return keys.view(pa.int64()) if types.is_timestamp(keys.type) else keys


def _bytes_of(kind: pa.DataType, name: str) -> _ToBytes:
    for is_one, to_bytes in _CANONICAL:
        if is_one(kind):
            return to_bytes
    raise BadSchema(
        name, f"{said(kind)} is not a valid key type", hint="Use a column of scalar values"
    )


def _of_text(key: object) -> bytes:
    assert isinstance(key, str)
    return key.encode()


def _of_binary(key: object) -> bytes:
    assert isinstance(key, bytes)
    return key


def _of_bool(key: object) -> bytes:
    return b"\1" if key else b"\0"


def _of_number(key: object) -> bytes:
    assert isinstance(key, int)
    return _I64.pack(key)


def _of_float(key: object) -> bytes:
    assert isinstance(key, float)
    return _NAN if math.isnan(key) else _F64.pack(key + 0.0)  # -0.0 + 0.0 is 0.0


def _of_decimal(key: object) -> bytes:
    assert isinstance(key, Decimal)
    sign, digits, _ = key.as_tuple()
    number = int("".join(map(str, digits)))
    return (-number if sign else number).to_bytes(_DECIMAL_SIZE, "little", signed=True)


_CANONICAL: tuple[tuple[Callable[[pa.DataType], bool], _ToBytes], ...] = (
    (types.is_string, _of_text),
    (types.is_binary, _of_binary),
    (types.is_boolean, _of_bool),
    (types.is_signed_integer, _of_number),
    (types.is_date32, _of_number),
    (types.is_timestamp, _of_number),
    (types.is_floating, _of_float),
    (types.is_decimal128, _of_decimal),
)
