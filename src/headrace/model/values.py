"""How the values of an array become those of a kept type, exactly or not at all.

Only values that can be seen count: what lies under a null or outside a slice is never judged.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadBatch, BadSchema
from headrace.model.types import Walk, inside, is_any_list, said

# Not ArrowMemoryError: then the batch is not at fault.
_UNFIT = (
    pa.ArrowInvalid,
    pa.ArrowCapacityError,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
)


def exact(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return `array` as one of `kind`, which is a kept type; the same one if it is already.

    Raise BadBatch if its type does not become `kind`, or if a value would change. Whether nulls
    may stand where they stand is not judged here.
    """
    if array.type == kind:
        return array
    # All of the type first: Arrow aborts the process on a union below a null struct.
    _kept(array.type, kind, path)
    return _exact(array, kind, path)


def _exact(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return _exact(_decoded(array, path), kind, path)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _exact_struct(array, kind, path)
    if pa.types.is_list(kind) and is_any_list(array.type):
        return _exact_list(array, kind, path)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _exact_map(array, kind, path)
    if _kept(array.type, kind, path) != kind:
        raise BadBatch(
            f"it is {said(array.type)}, the schema says {said(kind)}",
            column=path,
            hint="Cast it before it is appended",
        )
    return cast(array, kind, path)


def cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return `array` cast to `kind`, or raise BadBatch if a value does not fit."""
    try:
        return array.cast(kind)
    except _UNFIT as error:
        raise BadBatch(
            f"a value does not fit {said(kind)}: {error}",
            column=path,
            hint="Change the value, or take a column that holds it",
        ) from error


def check_nulls(array: pa.Array, field: pa.Field, path: str, absent: int = 0) -> None:
    """Raise BadBatch if there is a null, also inside, where `field` allows none.

    `absent` of them are null because the struct around them is.
    """
    if not field.nullable and (count := array.null_count - absent):
        raise BadBatch(
            f"{count} of {len(array) - absent} values are null, and none may be",
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


# Columns that are never null, or hold something that never is; and whether nothing within them
# is to be looked at.
Required = tuple[tuple[int, pa.Field, bool], ...]


def required_of(schema: pa.Schema) -> Required:
    """Work out once what `check_required` looks at for each batch."""
    return tuple(
        (place, field, not _has_required(field.type))
        for place, field in enumerate(schema)
        if not field.nullable or _has_required(field.type)
    )


def check_required(batch: pa.RecordBatch, required: Required) -> None:
    """Raise BadBatch if there is a null where none may be."""
    for place, field, is_flat in required:
        column = batch.column(place)
        if column.null_count or not is_flat:
            check_nulls(column, field, field.name)


def check_names(found: Sequence[str], expected: Iterable[str], path: str = "") -> None:
    """Raise BadBatch unless both are the same names, each once, in any order."""
    known = list(expected)
    given, wanted = frozenset(found), frozenset(known)
    missing = [name for name in known if name not in given]
    unknown = [name for name in found if name not in wanted]
    if missing:
        hint = _nearest("the batch has", missing[0], unknown) or "Give it, as nulls if need be"
        raise BadBatch("it is missing", column=inside(path, missing[0]), hint=hint)
    if unknown:
        hint = _nearest("the schema has", unknown[0], known) or "Leave it out, or add it first"
        flaw = "the schema has no such column"
        raise BadBatch(flaw, column=inside(path, said(unknown[0])), hint=hint)
    if len(found) != len(known):
        name = next(name for name in known if found.count(name) > 1)
        raise BadBatch("it is there twice", column=inside(path, name), hint="Leave one out")


def names_of(fields: Iterable[pa.Field], path: str = "") -> list[str]:
    """Return the names that a batch gives to its columns, or to the fields of a struct."""
    try:
        return [str(field.name) for field in fields]
    except UnicodeDecodeError:
        flaw = "the name of a column is not UTF-8"
        raise BadBatch(flaw, column=path, hint="Name it as the schema does") from None


def _nearest(where: str, name: str, others: Sequence[str]) -> str:
    folded = {other.casefold(): other for other in others}
    near = get_close_matches(name.casefold(), folded, n=1)
    return f"Is it what {where} as {said(folded[near[0]])!r}?" if near else ""


def _kept(found: pa.DataType, kind: pa.DataType, path: str) -> pa.DataType:
    try:
        return Walk().kind(found, path)
    except BadSchema as error:
        flaw = f"it is {said(found)}, which cannot be kept, where the schema says {said(kind)}"
        raise BadBatch(flaw, column=error.column, hint=error.hint) from error


def _decoded(array: pa.Array, path: str) -> pa.Array:
    try:
        return array.dictionary_decode()
    except _UNFIT as error:
        flaw = f"its dictionary cannot be undone: {error}"
        raise BadBatch(flaw, column=path, hint="Append fewer rows at once") from error


def _exact_struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    names = names_of(array.type, path)
    check_names(names, names_of(kind), path)
    children = dict(zip(names, array.flatten(), strict=True))
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
    check_nulls(keys, kind.key_field, f"{path}{{key}}")  # Arrow makes no such map
    return pa.MapArray.from_arrays(
        _offsets(entries, path),
        keys,
        _exact(values, kind.item_type, f"{path}{{value}}"),
        type=kind,
        mask=_mask(array),
    )


def map_as_list(array: pa.Array) -> pa.Array:
    """Return the same memory as lists of structs: kernels take no maps, `view` not all."""
    entries = array.values
    return pa.Array.from_buffers(
        pa.list_(pa.field("entries", entries.type)),
        len(array),
        array.buffers()[:2],
        offset=array.offset,
        children=[entries],
    )


def _offsets(array: pa.Array, path: str) -> pa.Array:
    """Return where the lists of `array` begin in its flattened elements."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    return cast(pa.concat_arrays([pa.array([0], pa.int64()), ends]), pa.int32(), path)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _has_required(kind: pa.DataType) -> bool:
    """Say whether something within `kind` may not be null."""
    if pa.types.is_map(kind):
        return True  # its keys
    if not (pa.types.is_list(kind) or pa.types.is_struct(kind)):
        return False
    children = (kind.field(place) for place in range(kind.num_fields))
    return any(not child.nullable or _has_required(child.type) for child in children)
