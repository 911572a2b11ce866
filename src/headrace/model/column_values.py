"""Converts the values of an array to a supported type, exactly or not at all.

Only visible values count: what lies under a null or outside a slice is not checked.
"""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadBatch, BadSchema
from headrace.model.column_types import (
    DECIMAL_PRECISION_MAX,
    TAKES,
    Walk,
    family,
    inside,
    is_any_list,
    said,
)

_SCALE_OF_ANY_INT = (
    19  # digits after the point that leave room for any int64, or uint64, before
)

# Not ArrowMemoryError: that is not the batch's fault.
_UNFIT = (
    pa.ArrowInvalid,
    pa.ArrowCapacityError,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
)


def exact(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return `array` as a supported type, `kind`; unchanged if it has that type already.

    Raise BadBatch if its type does not convert to `kind`, or if a value would change. Nulls
    are not checked here.
    """
    if array.type == kind:
        return array
    # The whole type first: Arrow aborts the process on a union below a null struct.
    _check_type(array.type, kind, path)
    return _exact(array, kind, path)


def _exact(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_dictionary(array.type):
        return _exact(_decoded(array, path), kind, path)
    for is_one, is_other, convert in _NESTED:
        if is_one(kind) and is_other(array.type):
            return convert(array, kind, path)
    if family(array.type) not in TAKES.get(family(kind), ()):
        raise other_type(str(array.type), kind, path)
    return _cast_number(array, kind, path)


def other_type(found: str, kind: pa.DataType, path: str) -> BadBatch:
    """Return the error for values of another family than the column's."""
    return BadBatch(
        f"got {said(found)}, the schema expects {said(kind)}",
        column=path,
        hint="Cast it before appending",
    )


def _cast_number(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Cast where Arrow needs an intermediate step, or would silently change a value."""
    if pa.types.is_float16(array.type):
        array = cast(array, pa.float32(), path)
    if pa.types.is_float32(kind):
        # Round to the nearest: few values from Python or a data frame are exact float32.
        wide = cast(array, pa.float64(), path)
        found = cast(wide, kind, path)
        if pc.any(pc.and_(pc.is_inf(found), pc.is_finite(wide))).as_py():
            raise unfit(kind, "a number is out of range", path)
        return found
    if pa.types.is_decimal(kind) and pa.types.is_integer(array.type):
        wide = pa.decimal128(DECIMAL_PRECISION_MAX, min(kind.scale, _SCALE_OF_ANY_INT))
        return cast(cast(array, wide, path), kind, path)
    return cast(array, kind, path)


def cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return `array` cast to `kind`, or raise BadBatch if a value does not fit."""
    try:
        return array.cast(kind)
    except _UNFIT as error:
        raise unfit(kind, str(error), path) from error


def unfit(kind: pa.DataType, flaw: str, path: str) -> BadBatch:
    """Return the error for a value that the column cannot hold exactly."""
    return BadBatch(
        f"a value does not fit {said(kind)}: {flaw}",
        column=path,
        hint="Change the value, or use a column type that can hold it",
    )


def check_nulls(array: pa.Array, field: pa.Field, path: str, absent: int = 0) -> None:
    """Raise BadBatch for a null, nested ones too, where `field` is not nullable.

    `absent` nulls are not counted: there the enclosing struct is null.
    """
    if not field.nullable and (count := array.null_count - absent):
        raise BadBatch(
            f"{count} of {len(array) - absent} values are null, but it is not nullable",
            column=path,
            hint="Give every row a value",
        )
    kind = field.type
    if not _has_required(kind):
        return
    if pa.types.is_list(kind):
        check_nulls(array.flatten(), kind.value_field, f"{path}[]")
    elif pa.types.is_map(kind):
        keys, values = map_as_list(array).flatten().flatten()
        check_nulls(keys, kind.key_field, f"{path}{{key}}")
        check_nulls(values, kind.item_field, f"{path}{{value}}")
    else:
        for child, part in zip(kind, array.flatten(), strict=True):
            check_nulls(part, child, inside(path, child.name), array.null_count)


# Columns that are not nullable or contain something that is not, each with a flag: nothing
# nested needs a check.
Required = tuple[tuple[int, pa.Field, bool], ...]


def required_of(schema: pa.Schema) -> Required:
    """Compute once what `check_required` checks in each batch."""
    return tuple(
        (place, field, not _has_required(field.type))
        for place, field in enumerate(schema)
        if not field.nullable or _has_required(field.type)
    )


def check_required(batch: pa.RecordBatch, required: Required) -> None:
    """Raise BadBatch for a null in something that is not nullable."""
    for place, field, is_flat in required:
        column = batch.column(place)
        if column.null_count or not is_flat:
            check_nulls(column, field, field.name)


def check_names(
    found: Sequence[str],
    expected: Iterable[str],
    path: str = "",
    required: Collection[str] = (),
) -> None:
    """Raise BadBatch unless both have the same names, each once, in any order.

    `required` are the names that are not nullable.
    """
    known = list(expected)
    given, wanted = frozenset(found), frozenset(known)
    missing = [name for name in known if name not in given]
    unknown = [name for name in found if name not in wanted]
    if missing:
        hint = _nearest("batch", missing[0], unknown) or "Add it to every row"
        flaw = "missing and not nullable" if missing[0] in required else "missing"
        raise BadBatch(flaw, column=inside(path, missing[0]), hint=hint)
    if unknown:
        hint = _nearest("schema", unknown[0], known) or "Omit it, or add it to the schema"
        flaw = "the schema has no such column"
        raise BadBatch(flaw, column=inside(path, said(unknown[0])), hint=hint)
    if len(found) != len(known):
        name = next(name for name in known if found.count(name) > 1)
        raise BadBatch("appears twice", column=inside(path, name), hint="Remove one")


def names_of(fields: Iterable[pa.Field], path: str = "") -> list[str]:
    """Return the names of a batch's columns, or of the fields of a struct."""
    try:
        return [str(field.name) for field in fields]
    except UnicodeDecodeError:
        flaw = "a column name is not valid UTF-8"
        raise BadBatch(flaw, column=path, hint="Use the name from the schema") from None


def _nearest(where: str, name: str, others: Sequence[str]) -> str:
    folded = {other.casefold(): other for other in others}
    near = get_close_matches(name.casefold(), folded, n=1)
    return f"Is it {said(folded[near[0]])!r} in the {where}?" if near else ""


def _check_type(found: pa.DataType, kind: pa.DataType, path: str) -> None:
    try:
        Walk(is_input=True).kind(found, path)
    except BadSchema as error:
        flaw = f"got {said(found)}, which is not supported; the schema expects {said(kind)}"
        raise BadBatch(flaw, column=error.column, hint=error.hint) from error


def _decoded(array: pa.Array, path: str) -> pa.Array:
    try:
        return array.dictionary_decode()
    except _UNFIT as error:
        flaw = f"the dictionary cannot be decoded: {error}"
        raise BadBatch(flaw, column=path, hint="Append fewer rows at once") from error


def _exact_struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    names = names_of(array.type, path)
    is_known = all(kind.get_field_index(name) >= 0 for name in names)  # no mistyped name
    absent = [each for each in kind if is_known and each.nullable and each.name not in names]
    required = [each.name for each in kind if not each.nullable]
    check_names([*names, *(each.name for each in absent)], names_of(kind), path, required)
    children = dict(zip(names, array.flatten(), strict=True))
    children |= {each.name: pa.nulls(len(array), each.type) for each in absent}
    return pa.StructArray.from_arrays(
        [_exact(children[each.name], each.type, inside(path, each.name)) for each in kind],
        fields=list(kind),
        mask=_mask(array),
    )


def _exact_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    elements = _exact(array.flatten(), kind.value_type, f"{path}[]")
    offsets = _offsets(array, path)
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=_mask(array))


def _exact_map(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    entries = map_as_list(array)
    keys, values = entries.flatten().flatten()
    keys = _exact(keys, kind.key_type, f"{path}{{key}}")
    check_nulls(keys, kind.key_field, f"{path}{{key}}")  # Arrow cannot build such a map
    return pa.MapArray.from_arrays(
        _offsets(entries, path),
        keys,
        _exact(values, kind.item_type, f"{path}{{value}}"),
        type=kind,
        mask=_mask(array),
    )


def map_as_list(array: pa.Array) -> pa.Array:
    """Return the same memory as lists of structs: kernels reject maps, `view` some of them."""
    entries = array.values
    return pa.Array.from_buffers(
        pa.list_(pa.field("entries", entries.type)),
        len(array),
        array.buffers()[:2],
        offset=array.offset,
        children=[entries],
    )


_NESTED = (
    (pa.types.is_struct, pa.types.is_struct, _exact_struct),
    (pa.types.is_list, is_any_list, _exact_list),
    (pa.types.is_map, pa.types.is_map, _exact_map),
)


def _offsets(array: pa.Array, path: str) -> pa.Array:
    """Return where the lists of `array` start in its flattened elements."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    return cast(pa.concat_arrays([pa.array([0], pa.int64()), ends]), pa.int32(), path)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _has_required(kind: pa.DataType) -> bool:
    """Say whether something nested in `kind` is not nullable."""
    if pa.types.is_map(kind):
        return True  # its keys
    if not (pa.types.is_list(kind) or pa.types.is_struct(kind)):
        return False
    children = (kind.field(place) for place in range(kind.num_fields))
    return any(not child.nullable or _has_required(child.type) for child in children)
