"""Rows through NDJSON and CSV and back: exactly, or told with line, column, type and value."""

import io
import json
import math
from contextlib import suppress
from datetime import UTC
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.formats import lines
from headrace.cli.formats.formats import Format, InputFile
from headrace.cli.formats.lines import BadLine
from headrace.cli.formats.open_rows import incoming
from headrace.cli.formats.write_rows import writing
from headrace.client.write.schemas import schema_of
from headrace.errors import BadBatch, BadRequest, Rejected

ALL = schema_of(
    {
        "yes": "bool",
        "tiny": "int8",
        "id": "int64",
        "small": "float32",
        "amount": "float64",
        "name": "string",
        "blob": "binary",
        "day": "date",
        "at": "timestamp",
        "price": "decimal(10, 2)",
        "tags": "list<string>",
        "prices": "list<decimal(5, 1)>",
        "sizes": "map<string, int64>",
        "times": "map<int64, timestamp>",
        "place": "struct<city: string, at: timestamp, far: float64>",
    }
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
MOMENT = st.datetimes(timezones=st.just(UTC))
ROW = st.fixed_dictionaries(
    {
        "yes": st.none() | st.booleans(),
        "tiny": st.none() | st.integers(-128, 127),
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.floats(width=32),
        "amount": st.none() | st.floats(),
        "name": st.none() | TEXT,
        "blob": st.none() | st.binary(max_size=8),
        "day": st.none() | st.dates(),
        "at": st.none() | MOMENT,
        "price": st.none() | st.decimals(-99_999_999, 99_999_999, places=2),
        "tags": st.none() | st.lists(st.none() | TEXT, max_size=3),
        "prices": st.none() | st.lists(st.decimals(-9_999, 9_999, places=1), max_size=3),
        "sizes": st.none() | st.dictionaries(TEXT, st.integers(0, 9), max_size=3),
        "times": st.none() | st.dictionaries(st.integers(0, 9), MOMENT, max_size=3),
        "place": st.none()
        | st.fixed_dictionaries({"city": st.none() | TEXT, "at": MOMENT, "far": st.floats()}),
    }
)


def a_source(data: bytes, name: str = "rows") -> InputFile:
    return InputFile(name, io.BufferedReader(io.BytesIO(data)), None)


def written(table: pa.Table, kind: Format) -> bytes:
    file = io.BytesIO()
    with writing(file, kind, table.schema) as writer:
        for batch in table.to_batches():
            writer.write(batch)
    return file.getvalue()


def read(data: bytes, kind: Format, schema: pa.Schema) -> pa.Table:
    with incoming(a_source(data), kind) as rows:
        return pa.Table.from_batches(rows.batches(schema), schema)


def taken(data: bytes, kind: Format, schema: pa.Schema):
    """Return the rows that were given, and the error that ended them."""
    found = []
    with incoming(a_source(data), kind) as rows:
        try:
            for batch in rows.batches(schema):
                found += batch.to_pylist()
        except Rejected as error:
            return found, error
    pytest.fail("every row was taken")


def guessed(data: bytes, kind: Format) -> pa.Schema:
    with incoming(a_source(data), kind) as rows:
        return rows.schema()


def same(one: pa.Table, other: pa.Table) -> bool:
    """Compare bit by bit: NaN is NaN here."""
    return one.schema.equals(other.schema) and repr(one.to_pylist()) == repr(other.to_pylist())


@pytest.mark.parametrize("kind", Format)
@given(rows=st.lists(ROW, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_again_exactly(kind, rows):
    table = pa.Table.from_pylist(rows, schema=ALL)
    assert same(read(written(table, kind), kind, ALL), table)


@pytest.mark.parametrize("kind", Format)
def test_no_rows_are_no_rows(kind):
    table = ALL.empty_table()
    assert read(written(table, kind), kind, ALL).num_rows == 0


@pytest.mark.parametrize("kind", [Format.NDJSON, Format.CSV])
def test_an_empty_file_has_no_rows(kind):
    assert read(b"", kind, ALL).num_rows == 0


def test_one_column_of_nulls_is_kept_by_csv():
    table = pa.table({"a": pa.array([None, "", "x", None], pa.string())})
    data = written(table, Format.CSV)
    assert read(data, Format.CSV, table.schema).equals(table)


def test_csv_writes_floats_so_that_they_are_guessed_to_be_floats():
    values = [3.0, -0.0, 1e15, 0.1, None, 1e300, math.inf]
    table = pa.table({"x": values, "small": pa.array([123456792.0] * 7, pa.float32())})
    data = written(table, Format.CSV)
    assert data.split(b"\n")[:3] == [b'"x","small"', b"3.0,123456790.0", b"-0.0,123456790.0"]
    assert guessed(written(table.slice(0, 1), Format.CSV), Format.CSV).field(0).type == "double"
    assert same(read(data, Format.CSV, table.schema), table)


def test_csv_tells_null_from_empty_text_and_takes_what_quotes_hold():
    schema = schema_of({"a": "string", "b": "int64"})
    data = b'b,a\r\n1,"x\ny, ""z"""\r\n2,\r\n\r\n3,""\r\n'
    assert read(data, Format.CSV, schema).to_pylist() == [
        {"a": 'x\ny, "z"', "b": 1},
        {"a": None, "b": 2},
        {"a": "", "b": 3},
    ]


@pytest.mark.parametrize(
    ("kind", "data"),
    [(Format.NDJSON, b'{"id": 1}\n'), (Format.CSV, b"id\n1\n")],
)
def test_columns_that_are_lacking_are_null(kind, data):
    schema = schema_of({"id": "int64", "note": "string"})
    assert read(data, kind, schema).to_pylist() == [{"id": 1, "note": None}]


def test_numbers_of_json_are_decimals_to_the_last_digit():
    schema = schema_of({"price": "decimal(38, 20)", "rate": "float64"})
    data = b'{"price": 0.12345678901234567890, "rate": 0.5}\n'
    (row,) = read(data, Format.NDJSON, schema).to_pylist()
    assert row == {"price": Decimal("0.12345678901234567890"), "rate": 0.5}


def test_words_stand_for_numbers_that_json_has_not():
    table = pa.table({"x": [math.nan, math.inf, -math.inf, 0.5]})
    assert written(table, Format.NDJSON).split(b"\n")[:3] == [
        b'{"x":"NaN"}',
        b'{"x":"Infinity"}',
        b'{"x":"-Infinity"}',
    ]


BAD = [
    ("id", "x", "line 3: column 'id': expected int64, found 'x'"),
    ("id", 1.5, "column 'id': expected int64, found 1.5"),
    ("id", True, "column 'id': expected int64, found true"),
    ("id", 2**63, "column 'id': expected int64, found 9223372036854775808"),
    ("tiny", 128, "column 'tiny': expected int8, found 128"),
    ("amount", "much", "column 'amount': expected float64, found 'much'"),
    ("amount", True, "column 'amount': expected float64, found true"),
    ("name", 7, "column 'name': expected string, found 7"),
    ("yes", 1, "column 'yes': expected bool, found 1"),
    ("day", "2026-13-01", "expected date as 2026-11-15, found '2026-13-01'"),
    ("at", "2026-11-15T10:00:00", "expected timestamp as ISO 8601 with a time zone"),
    ("at", "2026-11-15T10:00:00.1234567Z", "to microseconds, found '2026"),
    ("at", 1_700_000_000, "expected timestamp"),
    ("blob", "***", "expected binary as base64, found '***'"),
    ("price", "1.234", "expected decimal(10, 2), found '1.234'"),
    ("price", "NaN", "expected decimal(10, 2), found 'NaN'"),
    ("tags", "x", "column 'tags': expected list<string>, found 'x'"),
    ("tags", [1], "column 'tags[]': expected string, found 1"),
    ("sizes", {"a": "b"}, "column 'sizes{value}': expected int64, found 'b'"),
    ("place", {"town": "x"}, "column 'place.town': the schema has no such column"),
    ("nam", "x", "column 'nam': the schema has no such column. Did you mean 'name'?"),
    ("_offset", 1, "remove them, as --no-system does"),
]


@pytest.mark.parametrize(("column", "value", "said"), BAD)
def test_a_value_that_does_not_fit_is_told_with_its_line(column, value, said):
    lines = ['{"id": 1}', "", json.dumps({column: value}), '{"id": 2}']
    found, error = taken("\n".join(lines).encode(), Format.NDJSON, ALL)
    assert str(error).startswith("rows line 3: ")
    assert said in str(error)
    assert [row["id"] for row in found] == [1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": ', "line 2: it is not valid JSON"),
        (b'{"id": 1} {"id": 2}', "line 2"),
        (
            b"[1]",
            "line 2: expected an object, found [1]. A JSON array is not NDJSON: use jq -c",
        ),
        (
            b"[",
            "line 2: it is not valid JSON: Input data was truncated, in '['. "
            "A JSON array is not",
        ),
        (b"[\n  {\n  }\n]", "line 2: it is not valid JSON"),
        (b"{\n  1\n}", "in '{'. Put each object on one line, with jq -c ."),
        (
            b'{"id": 2}\r{"id": 3}\r',
            r"its lines end in CR alone. Convert them to LF with tr '\r' '\n'",
        ),
        (b"17", "expected an object, found 17"),
        (b'{"name": "\xff"}', "line 2: it is not valid JSON"),
        (b'{"id": 1' + b"0" * 5000 + b"}", "line 2"),
        (b'{"tags": ' + b"[" * 100_000, "line 2: it is not valid JSON"),
    ],
)
def test_a_line_that_is_no_object_is_told(line, said):
    with pytest.raises(BadLine) as caught:
        read(b'{"id": 1}\n' + line + b"\n", Format.NDJSON, ALL)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


TWICE = [
    b'{"id": 1, "id": 2}',
    b'{"id" :1,"name":"x","id":2}',
    b'{"id":1,"name":"x","id"\t: 2}',
    b'{"id":1,"\\u0069d":2}',
    b'{"name":"a\\":\\":","id":1,"id":2}',
    b'{"place":{"city":"x","city":"y"}}',
    b'{"tags":["x"],"sizes":{"id":1,"id":2}}',
]


@pytest.mark.parametrize("line", TWICE)
@pytest.mark.parametrize("before", [b"", b'{"id": 7, "name": "a\\": 1"}\n' * 3])
def test_a_name_that_is_there_twice_is_told_with_its_line(line, before):
    count = before.count(b"\n")
    found, error = taken(before + line + b"\n", Format.NDJSON, ALL)
    name = "city" if b"city" in line else "id"
    assert str(error).startswith(f"rows line {count + 1}: the name '{name}' appears twice")
    assert len(found) == count
    with pytest.raises(BadLine, match=f"line {count + 1}: the name '{name}' appears twice"):
        guessed(before + line + b"\n", Format.NDJSON)


@pytest.mark.parametrize(
    "line",
    [
        b'{"name": "a\\":1,\\"b\\" :2", "id": 1}',
        b'{"name": "\\\\", "id" : 1}',
        b'{"place": {"city": "\\": \\":"}, "tags": ["\\":"], "id": 1}',
        b'{"sizes": {"id": 1, "place": 2}, "id": 1}',
    ],
)
def test_names_within_text_and_within_values_are_no_second_ones(line):
    (row,) = read(line + b"\n", Format.NDJSON, ALL).to_pylist()
    assert row["id"] == 1


@pytest.mark.parametrize("depth", [500, 900, 950, 980, 990, 1_000, 5_000])
def test_lists_within_lists_are_told_however_deep(depth):
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(BadLine, match="line 1"):
        read(b'{"tags": ' + nested + b"}\n", Format.NDJSON, ALL)
    with pytest.raises(BadLine, match="line 2"):
        read(b"tags\n" + nested + b"\n", Format.CSV, ALL)


def test_a_name_that_is_twice_in_a_field_of_csv_is_told():
    data = b'id,sizes\n1,"{""a"":1}"\n2,"{""a"":1,""a"":2}"\n'
    with pytest.raises(BadLine, match="line 3: column 'sizes': the name 'a' appears twice"):
        read(data, Format.CSV, ALL)


def test_a_null_where_none_may_be_is_told_with_its_line():
    schema = schema_of({"id": "int64 not null", "name": "string"})
    with pytest.raises(BadLine, match=r"line 2: column 'id': expected a value, found null"):
        read(b'{"id": 1}\n{"name": "x"}\n', Format.NDJSON, schema)
    with pytest.raises(BadLine, match=r"line 3: column 'id': expected a value, found null"):
        read(b"id,name\n1,x\n,y\n", Format.CSV, schema)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id\n1\nx\n", "a.csv line 3: column 'id': expected int64, found 'x'"),
        ("id\n1\n1.0\n", "line 3: column 'id': expected int64, found '1.0'"),
        (
            "id,amount\n1,2\n1,1e999\n",
            "line 3: column 'amount': expected float64, found '1e999'",
        ),
        ("id,at\n1,2026-11-15T10:00:00\n", "line 2: column 'at': expected timestamp as ISO"),
        ("id,price\n1,1.234\n", "line 2: column 'price': expected decimal(10, 2)"),
        ("id,yes\n1,maybe\n", "line 2: column 'yes': expected bool, found 'maybe'"),
        ("id\n1\n0x10\n", "line 3: column 'id': expected int64, found '0x10'"),
        ("amount\n1\n9007199254740993\n", "expected float64, found '9007199254740993'"),
        (
            "small\n0.1\n16777217\n",
            "line 3: column 'small': expected float32, found '16777217'",
        ),
        ("small\n-16777217\n", "line 2: column 'small': expected float32"),
        ('id,name\n1,"x"\n2,"a"b\n', "line 3: characters follow a closing quote: '2,\"a\"b'"),
        ('id,name\n3,"a" \n', "line 2: characters follow a closing quote"),
        ('id,name\n3,""a\n', "line 2: characters follow a closing quote"),
        ('id,name\n3,"a""""b"c"\n"\n', "line 2: characters follow a closing quote"),
        ('"na"me,id\nx,3\n', "line 1: characters follow a closing quote"),
        ("id,tags\n1,[1\n", "line 2: column 'tags': expected list<string> as JSON, found '[1'"),
        ("id,blob\n1,***\n", "line 2: column 'blob': expected binary as base64"),
        ("id,name\n1,x\n1,2,3\n", "line 3: expected 2 fields, found 3: '1,2,3'"),
        ('id,name\n1,"x\ny"\n2\n', "line 4: expected 2 fields"),
        ('id,name\n1,x\n2,"y\n3,z\n', "line 3: a quote is not closed: '2,\"y'"),
        (
            "id,nam\n1,x\n",
            "line 1: column 'nam': the schema has no such column. Did you mean 'name'?",
        ),
        ("id,id\n1,x\n", "line 1: 'id' appears twice"),
        ("id,\n1,x\n", "line 1: a column has no name"),
        (
            "id;name\n1;x\n",
            "line 1: its names are separated by ';', not a comma: 'id;name'. Add --de",
        ),
        ('"id";"name"\n1;x\n', "line 1: its names are separated by ';', not a comma"),
        ("id\tname\n1\tx\n", "line 1: its names are separated by tab, not a comma"),
        ("id|name\n1|x\n", "not a comma: 'id|name'. Add --delimiter '|'; or --delimiter , if"),
        (
            "id,name\r1,x\r2,y\r",
            "a.csv line 1: its lines end in CR alone. Convert them to LF with tr '\\r' '\\n'",
        ),
        ("id\r1\r", "a.csv line 1: its lines end in CR alone"),
        (
            "id,name\n1,x\n2,y\rz\n",
            "a.csv line 3: it contains a CR: '2,y\\rz'. Quote that field",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_told_with_its_line(text, said):
    with (
        pytest.raises(Rejected) as caught,
        incoming(a_source(text.encode(), "a.csv"), Format.CSV) as rows,
    ):
        list(rows.batches(ALL))
    assert said in str(caught.value)


def test_whole_numbers_that_a_float_has_are_taken_however_large():
    schema = schema_of({"small": "float32", "amount": "float64"})
    data = b"small,amount\n16777216,9007199254740994\n-33554432,-1180591620717411303424\n"
    assert read(data, Format.CSV, schema).to_pylist() == [
        {"small": 2.0**24, "amount": 2.0**53 + 2},
        {"small": -(2.0**25), "amount": -(2.0**70)},
    ]


def test_quotes_within_a_field_that_does_not_begin_with_one_are_letters():
    schema = schema_of({"id": "int64", "name": "string"})
    data = b'id,name\n1,5" by 6"\n"2","a ""b"", ""\n\xc3\xa9"\n3,""\n'
    names = [row["name"] for row in read(data, Format.CSV, schema).to_pylist()]
    assert names == ['5" by 6"', 'a "b", "\n\u00e9', ""]


def test_a_mark_of_utf8_is_left_out_at_the_beginning_only():
    schema = schema_of({"id": "int64", "name": "string"})
    data = "\ufeffname,id\n\ufeffann,1\n".encode()
    assert read(data, Format.CSV, schema).to_pylist() == [{"id": 1, "name": "\ufeffann"}]


def test_a_number_that_no_float_has_makes_a_column_of_text():
    schema = guessed(b"a\n0.1\n9007199254740993\n", Format.CSV)
    assert schema.equals(schema_of({"a": "string"}))


@pytest.mark.parametrize(
    ("typed", "sign"), [(";", ";"), ("tab", "\t"), (r"\t", "\t"), ("|", "|")]
)
def test_fields_are_separated_by_what_was_said(typed, sign):
    data = 'id,name,x\n1,"a, ""b"" CC D",1.5\n2,,\n,,\n\n3,"",\n'
    data = data.replace(",", sign).replace("CC", ",").encode()
    with incoming(a_source(data), Format.CSV, typed) as rows:
        schema = rows.schema()
        found = pa.Table.from_batches(rows.batches(schema)).to_pylist()
    assert schema.equals(schema_of({"id": "int64", "name": "string", "x": "float64"}))
    assert found == [
        {"id": 1, "name": f'a{sign} "b" , D', "x": 1.5},
        {"id": 2, "name": None, "x": None},
        {"id": None, "name": None, "x": None},
        {"id": 3, "name": "", "x": None},
    ]


def test_letters_behind_a_quote_are_told_whatever_separates_fields():
    with (
        pytest.raises(BadLine, match="line 2: characters follow a closing quote"),
        incoming(a_source(b'id;name\n1;"a",b\n'), Format.CSV, ";") as rows,
    ):
        list(rows.batches(ALL))


def test_one_column_may_have_any_name_if_it_is_said_or_in_quotes():
    schema = schema_of({"a;b": "int64"})
    for data, typed in ((b"a;b\n1\n", ","), (b'"a;b"\n1\n', None)):
        with incoming(a_source(data), Format.CSV, typed) as rows:
            assert rows.schema().equals(schema)


@pytest.mark.parametrize("typed", ["", ";;", '"', "\n", "\u00e9", "\x00"])
def test_a_delimiter_is_one_character(typed):
    with (
        pytest.raises(BadRequest, match=r"--delimiter: .* is not a single ASCII character"),
        incoming(a_source(b"a\n"), Format.CSV, typed),
    ):
        pass


def test_csv_that_is_not_utf8_is_told_with_its_line():
    with pytest.raises(BadLine, match="line 3: it is not UTF-8"):
        read(b"id,name\n1,x\n2,\xff\n", Format.CSV, ALL)


@pytest.mark.parametrize("kind", [Format.NDJSON, Format.CSV])
@pytest.mark.parametrize("bad", [1, 2, 999, 1_000, 1_001, 4_321, 5_000])
def test_the_first_bad_line_is_found_wherever_it_is(kind, bad, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK_SIZE", 10_000)
    schema = schema_of({"id": "int64"})
    values = ["x" if number == bad or number == 4_999 else number for number in range(1, 5_001)]
    if kind is Format.CSV:
        data, line = "\n".join(["id", *map(str, values)]), min(bad, 4_999) + 1
    else:
        data = "\n".join(
            f'{{"id": {n if n != "x" else chr(34) + "x" + chr(34)}}}' for n in values
        )
        line = min(bad, 4_999)
    found, error = taken(data.encode(), kind, schema)
    assert error.line == line
    assert [row["id"] for row in found] == list(range(1, min(bad, 4_999)))


class TestArrowFiles:
    def test_a_row_that_does_not_fit_is_told_and_those_before_it_are_given(self):
        table = pa.table({"at": pa.array([0, 1_000, 5, 0], pa.timestamp("ns", "UTC"))})
        data = written(table, Format.ARROW)
        found, error = taken(data, Format.ARROW, schema_of({"at": "timestamp"}))
        assert str(error).startswith("rows row 3: column 'at'")
        assert [row["at"].microsecond for row in found] == [0, 1]

    def test_a_column_of_another_type_is_told(self):
        data = written(pa.table({"id": ["x"]}), Format.PARQUET)
        with pytest.raises(Rejected, match="got string, the schema expects int64"):
            read(data, Format.PARQUET, schema_of({"id": "int64"}))

    def test_a_column_that_nobody_knows_is_told(self):
        data = written(pa.table({"idd": [1]}), Format.PARQUET)
        with pytest.raises(Rejected, match="Did you mean 'id'"):
            read(data, Format.PARQUET, schema_of({"id": "int64"}))

    @pytest.mark.parametrize("kind", [Format.PARQUET, Format.ARROW])
    def test_a_file_that_is_cut_off_is_told(self, kind):
        data = written(pa.table({"id": list(range(1000))}), kind)
        with pytest.raises(BadRequest, match="rows"):
            read(data[:-400], kind, schema_of({"id": "int64"}))

    def test_an_arrow_file_is_read_as_a_stream_is(self):
        sink = io.BytesIO()
        table = pa.table({"id": [1, 2, 3]})
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        assert read(sink.getvalue(), Format.ARROW, table.schema).equals(table)


class TestGuessing:
    def test_json_values_say_their_types(self):
        data = (
            b'{"id": 1, "x": 1, "ok": true, "name": "ann", "tags": ["a"]}\n'
            b'{"id": 2, "x": 2.5, "day": "2026-11-15", "at": "2026-11-15T10:00:00Z"}\n'
        )
        expected = {
            "id": "int64",
            "x": "float64",
            "ok": "bool",
            "name": "string",
            "tags": "list<string>",
            "day": "date",
            "at": "timestamp",
        }
        assert guessed(data, Format.NDJSON).equals(schema_of(expected))

    def test_texts_of_csv_say_their_types(self):
        data = (
            "id,x,ok,name,zip,day,at,local\n"
            "1,1,true,ann,01234,2026-11-15,2026-11-15T10:00:00Z,2026-11-15T10:00:00\n"
            "-2,2.5,FALSE,,1,2026-11-16,2026-11-15T10:00:00+01:00,2026-11-15T10:00:00\n"
        )
        expected = {
            "id": "int64",
            "x": "float64",
            "ok": "bool",
            "name": "string",
            "zip": "string",
            "day": "date",
            "at": "timestamp",
            "local": "string",
        }
        assert guessed(data.encode(), Format.CSV).equals(schema_of(expected))

    @pytest.mark.parametrize(
        ("data", "kind", "said"),
        [
            (b'{"a": null}\n', Format.NDJSON, "column 'a': it is null in all sampled rows"),
            (b"a,b\n1,\n", Format.CSV, "column 'b': it is empty in all sampled rows"),
            (b"", Format.NDJSON, "there are no rows to infer a schema from"),
            (b"", Format.CSV, "there are no rows"),
            (b'{"a": 1}\n{"a": "x"}\n', Format.NDJSON, "column 'a': its values have several"),
            (
                b'{"a": 9223372036854775807}\n{"a": 9223372036854775808}\n',
                Format.NDJSON,
                "column 'a': 9223372036854775808 is too large for int64. "
                "Give the schema: headrace",
            ),
            (
                b'{"a": [9223372036854775808]}\n',
                Format.NDJSON,
                "'a': a number is too large for",
            ),
            (b'{"_a": 1}\n', Format.NDJSON, "column '_a' is reserved"),
            (b'{"a": 1}\nx\n', Format.NDJSON, "line 2: it is not valid JSON"),
            (b"a,b\n1,2\n3\n", Format.CSV, "line 3: expected 2 fields"),
        ],
    )
    def test_what_says_no_schema_is_told(self, data, kind, said):
        with pytest.raises((BadBatch, BadRequest, BadLine)) as caught:
            guessed(data, kind)
        assert said in str(caught.value)

    def test_rows_that_were_looked_at_are_not_lost(self):
        data = b'{"id": 1}\n{"id": 2}\n'
        with incoming(a_source(data), Format.NDJSON) as rows:
            schema = rows.schema()
            assert sum(batch.num_rows for batch in rows.batches(schema)) == 2


NOISE = st.lists(
    st.sampled_from(
        [
            "id",
            "name",
            ",",
            "\n",
            "\r\n",
            '"',
            '""',
            "1",
            "x",
            " ",
            "\0",
            "\ufeff",
            "{",
            "}",
            ":",
        ]
    )
    | st.text(max_size=3),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("kind", [Format.NDJSON, Format.CSV])
@given(noise=NOISE, head=st.sampled_from(["", "id,name\n", "name\n", '{"id": 1}\n']))
@settings(max_examples=300, deadline=None)
def test_whatever_a_file_holds_is_rows_or_a_told_error(kind, noise, head):
    data = (head + noise).encode()
    schema = schema_of({"id": "int64", "name": "string"})
    with suppress(Rejected):
        read(data, kind, schema)
    with suppress(Rejected):
        guessed(data, kind)


@pytest.mark.parametrize("kind", Format)
@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"PAR1", b"ARROW1\0\0", b"\xff" * 4]),
)
@settings(max_examples=200, deadline=None)
def test_whatever_bytes_a_file_holds_it_is_rows_or_a_told_error(kind, data, head):
    with suppress(Rejected):
        read(head + data, kind, ALL)


@pytest.mark.parametrize("kind", [Format.PARQUET, Format.ARROW])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=400, deadline=None)
def test_a_changed_byte_of_a_file_is_rows_or_a_told_error(kind, place, byte):
    data = bytearray(written(pa.table({"id": [1, 2], "name": ["a", None]}), kind))
    data[place % len(data)] = byte
    with suppress(Rejected):
        read(bytes(data), kind, schema_of({"id": "int64", "name": "string"}))
