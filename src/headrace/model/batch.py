"""A batch as the body of an entry: one Arrow record batch message, with its schema by id.

`encode` creates a body, `admit` validates one from a client, `decode` reads an admitted one.
Compressed bodies are accepted; `encode` creates none. See arrow_message.py for the bytes.
"""

from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from headrace.errors import BadBatch, first_line
from headrace.model.arrow_message import HINT, INFLATED_SIZE_MAX, parse
from headrace.model.column_values import Required, check_required, required_of

# The rows of a body with a single int64 column. Narrower columns could have more, but would
# grow far beyond their body: sealing adds an offset, a timestamp and a partition to each row.
ROW_COUNT_MAX: Final = 8 * 1024 * 1024

_FIXED_TYPES = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.timestamp("us", tz="UTC"), pa.decimal128(1)),
)
# Validity, and values; strings have offsets between them.
_WITH_OFFSETS: Final = 3
_LEAF_BUFFERS: Final = {kind.id: 2 for kind in _FIXED_TYPES} | {
    kind.id: _WITH_OFFSETS for kind in (pa.string(), pa.binary())
}
_OFFSET_SIZE: Final = 4

Body = bytes | bytearray | memoryview  # or a pa.Buffer


class Layout(NamedTuple):
    """What is computed once per schema and needed for each batch."""

    node_count: int  # of a message
    buffer_count: int
    required: Required
    end_count: (
        int  # columns of strings, lists or maps, nested ones too: their offsets have an end
    )
    is_bits: bool  # all columns are booleans


class Inflates(Exception):
    """The batch decompresses to more than the caller accepts now. It may be valid."""


def encode(
    batch: pa.RecordBatch, known: Layout | None = None, size: int | None = None
) -> pa.Buffer:
    """Return the body for `batch`: uncompressed, and for a slice with its own rows only.

    `known` is the layout of its schema and `size` its `nbytes`, if the caller has them.
    """
    known = known or layout(batch.schema)
    is_slice = _may_be_slice(batch, known, batch.nbytes if size is None else size)
    try:
        return (compacted(batch) if is_slice else batch).serialize()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadBatch(f"the batch cannot be encoded: {first_line(error)}") from error


def encode_for_reader(batch: pa.RecordBatch) -> pa.Buffer:
    """Return rows for a reader, to be discarded after use: as `encode`, copying a slice once.

    The padding between buffers may hold a few bytes of adjacent rows; no reader uses it.
    """
    return batch.serialize()


def decode(
    body: Body,
    schema: pa.Schema,
    row_count: int,
    known: Layout | None = None,
    inflated_max: int = INFLATED_SIZE_MAX,
) -> pa.RecordBatch:
    """Return the batch in `body`, zero-copy unless compressed, without validating values.

    `known` is the layout of `schema`, if the caller has it. Inflates is raised before anything
    is decompressed.
    """
    known = known or layout(schema)
    view = memoryview(body)
    message = parse(view, node_count=known.node_count, buffer_count=known.buffer_count)
    if message.row_count != row_count:
        raise BadBatch(
            f"the header declares {row_count} rows, the batch has {message.row_count}",
            hint=HINT,
        )
    if message.inflated_size > inflated_max:
        raise Inflates
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(view), schema)
    except pa.ArrowMemoryError:
        raise  # the sizes were checked: the node is out of memory, not the batch at fault
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadBatch(
            f"Arrow cannot read the batch: {first_line(error)}", hint=HINT
        ) from error


def admit(
    body: Body,
    schema: pa.Schema,
    row_count: int,
    known: Layout | None = None,
    inflated_max: int = INFLATED_SIZE_MAX,
) -> pa.RecordBatch:
    """Return the batch in a client's `body` with every value validated. See `decode`."""
    if row_count == 0:
        raise BadBatch("the batch has no rows", hint="There is nothing to append: skip it")
    if row_count > ROW_COUNT_MAX:
        raise BadBatch(
            f"the batch has {row_count} rows, the limit is {ROW_COUNT_MAX}",
            hint="Split its rows into several batches",
        )
    known = known or layout(schema)
    batch = decode(body, schema, row_count, known, inflated_max)
    _validate(batch)
    check_required(batch, known.required)
    return batch


def layout(schema: pa.Schema) -> Layout:
    """Compute what a message of `schema` must have."""
    counts = [_counts(field.name, field.type) for field in schema]
    return Layout(
        sum(nodes for nodes, _ in counts),
        sum(buffers for _, buffers in counts),
        required_of(schema),
        sum(_end_count(kind) for kind in schema.types),
        all(types.is_boolean(kind) for kind in schema.types),
    )


def _counts(path: str, kind: pa.DataType) -> tuple[int, int]:
    if (buffers := _LEAF_BUFFERS.get(kind.id)) is not None:
        return 1, buffers
    if types.is_struct(kind):
        inner = [_counts(f"{path}.{field.name}", field.type) for field in kind]
        return 1 + sum(one[0] for one in inner), 1 + sum(one[1] for one in inner)
    if types.is_list(kind) or types.is_map(kind):
        nodes, buffers = _counts(f"{path}[]", kind.field(0).type)
        return 1 + nodes, 2 + buffers
    raise BadBatch(f"values of type {kind} are not supported", column=path)


def _may_be_slice(batch: pa.RecordBatch, known: Layout, size: int) -> bool:
    """Say whether its buffers may hold more than its rows. Spare bits do not show."""
    # Arrow does not count the last offset of a column of strings, lists or maps.
    counted = size + known.end_count * _OFFSET_SIZE
    return known.is_bits or batch.get_total_buffer_size() != counted


def _end_count(kind: pa.DataType) -> int:
    """Return how many offset arrays a column of `kind` has."""
    if types.is_struct(kind):
        return sum(_end_count(field.type) for field in kind)
    if types.is_list(kind) or types.is_map(kind):
        return 1 + _end_count(kind.field(0).type)
    return int(_LEAF_BUFFERS.get(kind.id) == _WITH_OFFSETS)


def compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the rows into new buffers. `serialize` alone keeps padding from other rows."""
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _validate(batch: pa.RecordBatch) -> None:
    """Have Arrow validate every value; on failure, each column, to name the bad one."""
    try:
        batch.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _validate_column(name, column)
        raise BadBatch(first_line(error), hint=HINT) from error


def _validate_column(name: str, column: pa.Array) -> None:
    try:
        column.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadBatch(first_line(error), column=name, hint=HINT) from error
