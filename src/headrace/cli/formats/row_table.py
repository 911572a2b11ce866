"""Prints rows as a human-readable table, line by line as they arrive.

Columns only grow wider, so rows need not wait for later ones. On a terminal each line fits its
width: long values are truncated with an ellipsis.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from headrace.cli.formats.cell_text import text_column
from headrace.cli.formats.write_rows import pieces
from headrace.client.show import printable

GAP: Final = "  "
NULL: Final = "null"
CELL_LETTERS_MAX: Final = 1_000  # characters of a value that are used


class TableWriter:
    """Prints rows below a header. Values cannot inject terminal control codes."""

    def __init__(self, console: Console, *, fits: bool) -> None:
        self._console = console
        self._fits = fits
        self._schema: pa.Schema | None = None
        self._wanted: list[int] = []  # widths, space permitting
        self._is_head_due = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch."""
        self.head(batch.schema)
        rights = [_is_number(field.type) for field in batch.schema]
        for piece in pieces(batch):
            columns = [_cells(column) for column in piece.columns]
            widths = self._grown([max(map(cell_len, cells), default=0) for cells in columns])
            lines = [_line(line, widths, rights) for line in zip(*columns, strict=True)]
            self._console.file.write("\n".join([*lines, ""]))
            self._console.file.flush()

    def head(self, schema: pa.Schema) -> None:
        """Print the column names with the next rows, once per schema."""
        if self._schema is None or not schema.equals(self._schema):
            self._schema = schema
            self._wanted = [
                max(_width_known(field.type), cell_len(cell(field.name))) for field in schema
            ]
            self._is_head_due = True

    def finish(self) -> None:
        """Print a header that had no rows."""
        if self._is_head_due:
            self._grown([])

    def _grown(self, sizes: Sequence[int]) -> list[int]:
        """Return widths for values of these sizes. Prints a header that is due."""
        assert self._schema is not None
        self._wanted = [max(both) for both in zip_longest(self._wanted, sizes, fillvalue=0)]
        kinds = [field.type for field in self._schema]
        widths = fitted(self._wanted, kinds, self._console.width if self._fits else None)
        if self._is_head_due:
            self._is_head_due = False
            names = [cell(name) for name in self._schema.names]
            head = _line(names, widths, [_is_number(kind) for kind in kinds])
            self._console.print(Text(head, style="bold"), soft_wrap=True)
        return widths


def fitted(wanted: Sequence[int], kinds: Sequence[pa.DataType], room: int | None) -> list[int]:
    """Return widths that fit into `room`: text shrinks first, then times, then all."""
    widths = list(wanted)
    if room is None:
        return widths
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    for gives_way, least in _GIVING_WAY:
        chosen = [place for place, kind in enumerate(kinds) if gives_way(kind)]
        over = _shrunk(widths, chosen, least, over)
    return widths


def cell(value: object) -> str:
    """Return a value as one line without terminal control codes."""
    text = NULL if value is None else str(value)[:CELL_LETTERS_MAX]
    return printable(text)


def _cells(column: pa.Array) -> list[str]:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    return [cell(each) for each in text_column(column).to_pylist()]


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_text or pa.types.is_nested(kind))


def _width_known(kind: pa.DataType) -> int:
    """Return the width of values if their type determines it, else 0."""
    if pa.types.is_timestamp(kind):
        return len("2026-11-15T10:00:00.000000Z")
    return len("2026-11-15") if pa.types.is_date(kind) else 0


# Which columns shrink, in this order, and to which width.
_GIVING_WAY: Final[tuple[tuple[Callable[[pa.DataType], bool], int], ...]] = (
    (_is_text, 12),
    (pa.types.is_timestamp, len("2026-11-15T10:00:00…")),
    (_is_text, 6),
    (lambda _: True, 6),
)


def _shrunk(widths: list[int], places: list[int], least: int, over: int) -> int:
    """Take `over` from the widths at these places, widest first; return the remainder."""
    while over > 0 and places:
        widest = max(widths[place] for place in places)
        if widest <= least:
            break
        sharing = [place for place in places if widths[place] == widest]
        below = max([widths[p] for p in places if widths[p] < widest], default=0)
        step = min(widest - max(below, least), -(-over // len(sharing)))
        for place in sharing:
            widths[place] -= step
        over -= step * len(sharing)
    return over


def _line(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    shown = [
        _placed(each, width, to_right=right)
        for each, width, right in zip(cells, widths, rights, strict=True)
    ]
    return GAP.join(shown).rstrip()


def _placed(text: str, width: int, *, to_right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(0, width - 1)) + "…"
    blank = " " * (width - length)
    return blank + text if to_right else text + blank
