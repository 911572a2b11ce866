"""Rows as a table: columns in line, nothing that commands a terminal, no line too long."""

import io

import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.console import Console

from headrace.cli.formats.row_table import TableWriter, cell


def shown(*tables: pa.Table, width=None, finish=True) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width or 10_000, color_system=None)
    writer = TableWriter(console, fits=width is not None)
    for table in tables:
        writer.head(table.schema)
        for batch in table.to_batches():
            writer.write(batch)
    if finish:
        writer.finish()
    return file.getvalue().splitlines()


def test_numbers_stand_to_the_right_and_text_to_the_left():
    assert shown(pa.table({"id": [1, 200], "name": ["ann", None], "x": [True, False]})) == [
        " id  name  x",
        "  1  ann   true",
        "200  null  false",
    ]


def test_no_rows_have_a_head():
    assert shown(pa.table({"id": pa.array([], pa.int64())})) == ["id"]


def test_rows_are_there_before_the_end():
    assert shown(pa.table({"id": [1]}), finish=False) == ["id", " 1"]


def test_columns_grow_wider_and_a_newer_schema_gets_a_head():
    one, two = pa.table({"a": ["x"]}), pa.table({"a": ["xxx"]})
    three = pa.table({"a": ["y"], "b": [1]})
    assert shown(one, two, one, three) == ["a", "x", "xxx", "x", "a  b", "y  1"]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\rb", "a\nb", "\x9b31m", "\u202eevil", "\0"])
def test_no_value_commands_the_terminal(hostile):
    (_, line) = shown(pa.table({"a": [hostile]}))
    assert line.isprintable()
    assert "\\" in line


def test_a_huge_value_is_not_looked_at_to_its_end():
    assert len(cell("x" * 10_000_000)) == 1_000


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_lines_fit_the_terminal_and_stay_in_line(width):
    table = pa.table(
        {"id": [1, 2], "name": ["x" * 300, "漢字" * 40], "note": ["short", "y" * 50]}
    )
    lines = shown(table, width=width)
    assert max(map(cell_len, lines)) <= width
    assert any("…" in line for line in lines)


def test_text_gives_way_before_numbers_and_times():
    table = pa.table(
        {
            "at": pa.array([0], pa.timestamp("us", "UTC")),
            "id": [1_234_567_890],
            "name": ["x" * 100],
        }
    )
    _, line = shown(table, width=60)
    assert line.startswith("1970-01-01T00:00:00Z         1234567890  xxxxxxxxxxxx")
    assert line.endswith("…")
