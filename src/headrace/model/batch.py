"""A batch as the body of an entry: one Arrow record batch message, its schema known by id.

`encode` makes a body, `admit` judges one that came from a client, `decode` reads one that was
admitted before. Compressed bodies are taken; `encode` makes none. The bytes are those of
message.py.
"""

from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from headrace.errors import BadBatch, first_line
from headrace.model.arrow_message import HINT, INFLATED_SIZE_MAX, parse
from headrace.model.column_values import Required, check_required, required_of

# A body of nothing but one int64 column has as many rows as this. More are possible only with
# narrow columns, and would grow far beyond their body: every row gets an offset, a timestamp
# and a partition when it is sealed.
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
    """What is worked out once of a schema, and asked for each batch."""

    node_count: int  # of a message
    buffer_count: int
    required: Required
    end_count: int  # columns of strings, lists or maps, also inside: their offsets have an end
    is_bits: bool  # all columns are booleans


class Inflates(Exception):
    """A batch that inflates to more than its caller has time for now. It may be a good one."""


def encode(
    batch: pa.RecordBatch, known: Layout | None = None, size: int | None = None
) -> pa.Buffer:
    """Return the body for `batch`: uncompressed, and of a slice only its own rows.

    `known` is the layout of its schema and `size` its `nbytes`, where the caller has them.
    """
    known = known or layout(batch.schema)
    is_slice = _may_be_slice(batch, known, batch.nbytes if size is None else size)
    try:
        return (compacted(batch) if is_slice else batch).serialize()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadBatch(f"the batch cannot be encoded: {first_line(error)}") from error


def encode_for_reader(batch: pa.RecordBatch) -> pa.Buffer:
    """Return rows for a reader, who keeps nothing of it: as `encode`, in one copy of a slice.

    Between the buffers may be a few bytes of the rows beside it, which nobody looks at.
    """
    return batch.serialize()


def decode(
    body: Body,
    schema: pa.Schema,
    row_count: int,
    known: Layout | None = None,
    inflated_max: int = INFLATED_SIZE_MAX,
) -> pa.RecordBatch:
    """Return the batch in `body`, without a copy unless compressed; judge no values.

    `known` is the layout of `schema`, where the caller has it already. Inflates is raised
    before anything is inflated.
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
        raise  # the sizes were checked: this node is out of memory, the batch is not at fault
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
    """Return the batch in a client's `body`, every value of it judged. See `decode`."""
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
    """Work out what a message of `schema` must have."""
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
    """Tell whether there may be more in its buffers than its rows. Spare bits do not show."""
    # Arrow does not count the last offset, which ends a column of strings, lists or maps.
    counted = size + known.end_count * _OFFSET_SIZE
    return known.is_bits or batch.get_total_buffer_size() != counted


def _end_count(kind: pa.DataType) -> int:
    """Return how many arrays with offsets a column of `kind` has."""
    if types.is_struct(kind):
        return sum(_end_count(field.type) for field in kind)
    if types.is_list(kind) or types.is_map(kind):
        return 1 + _end_count(kind.field(0).type)
    return int(_LEAF_BUFFERS.get(kind.id) == _WITH_OFFSETS)


def compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the rows into buffers of their own. `serialize` alone leaves padding of others."""
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _validate(batch: pa.RecordBatch) -> None:
    """Let Arrow look at every value; if one is wrong, at each column, to name it."""
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
