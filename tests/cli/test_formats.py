"""Formats told from bytes and names; lines, however long, broken or cut they are."""

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.formats import lines
from headrace.cli.formats.formats import (
    Format,
    InputFile,
    format_named,
    format_of,
    reading,
    seekable,
)
from headrace.cli.formats.lines import BadLine, line_chunks
from headrace.cli.terminal.exits import NotFound
from headrace.errors import BadRequest

TABLE = pa.table({"id": [1, 2]})


def a_source(data: bytes, name: str = "standard input") -> InputFile:
    return InputFile(name, io.BufferedReader(io.BytesIO(data)), None)


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return sink.getvalue().to_pybytes()


def arrow(opened) -> bytes:
    sink = pa.BufferOutputStream()
    with opened(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


class TestFormatOf:
    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (parquet(), Format.PARQUET),
            (arrow(pa.ipc.new_file), Format.ARROW),
            (arrow(pa.ipc.new_stream), Format.ARROW),
            (b'{"id": 1}\n', Format.NDJSON),
            (b'\xef\xbb\xbf \n{"id": 1}\n', Format.NDJSON),
            (b"id,name\n1,ann\n", Format.CSV),
            (b"", Format.NDJSON),
        ],
    )
    def test_bytes_say_what_they_are(self, data, kind):
        assert format_of(a_source(data), None) is kind

    def test_bytes_say_more_than_a_name(self):
        assert format_of(a_source(parquet(), "orders.csv"), None) is Format.PARQUET

    @pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSON"])
    def test_a_name_decides_where_bytes_say_nothing(self, name):
        assert format_of(a_source(b"17", name), None) is Format.NDJSON

    def test_what_was_said_counts(self):
        assert format_of(a_source(b"17", "a.json"), Format.CSV) is Format.CSV

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"\x1f\x8b\x08", "is gzip. Unwrap it first: … | zcat | headrace …"),
            (b"\x28\xb5\x2f\xfd", "is zstd"),
            (b"\xfd7zXZ\0\0", "is xz. Unwrap it first: … | xzcat | headrace …"),
            (b"PK\x03\x04", "is zip. Unwrap it first: … | funzip | headrace …"),
            (
                "id".encode("utf-16"),
                "is UTF-16 text. Unwrap it first: … | iconv -f UTF-16 -t UTF-8 | headrace …",
            ),
            (b"[1, 2]", "jq -c '.[]'"),
            (b"\0\1\2\3", "cannot detect the format"),
        ],
    )
    def test_what_holds_no_rows_as_it_is_says_what_to_do(self, data, said):
        with pytest.raises(BadRequest) as caught:
            format_of(a_source(data), None)
        assert said in str(caught.value)

    def test_a_file_is_named_in_a_command_that_can_be_run(self):
        with pytest.raises(BadRequest) as caught:
            format_of(a_source(b"\x1f\x8b\x08", "my rows.csv.gz"), None)
        assert "zcat < 'my rows.csv.gz' | headrace … - --format …" in str(caught.value)

    def test_looking_takes_nothing(self):
        source = a_source(b'{"id": 1}\n')
        format_of(source, None)
        assert source.file.read() == b'{"id": 1}\n'

    def test_a_file_to_be_written_is_told_by_its_name(self, tmp_path):
        assert format_named(tmp_path / "a.parquet") is Format.PARQUET
        with pytest.raises(BadRequest, match="does not imply a format"):
            format_named(tmp_path / "a.txt")


class TestReading:
    def test_a_file_that_is_not_there_is_not_found(self, tmp_path):
        with (
            pytest.raises(NotFound, match=r"file .* does not exist"),
            reading(f"{tmp_path}/a.csv"),
        ):
            pass

    def test_a_directory_is_no_file(self, tmp_path):
        with pytest.raises(BadRequest, match="Is a directory"), reading(str(tmp_path)):
            pass

    def test_a_pipe_can_be_gone_back_in_once_it_is_kept(self):
        end, begin = os.pipe()
        os.write(begin, b"PAR1 and more")
        os.close(begin)
        with open(end, "rb") as file, seekable(InputFile("a pipe", file, None)) as kept:
            assert kept.read(4) == b"PAR1"
            kept.seek(0)
            assert kept.read() == b"PAR1 and more"


class TestLines:
    def lines(self, data: bytes):
        return [
            (line, record)
            for chunk in line_chunks(a_source(data))
            for line, record in zip(chunk.lines, chunk.records, strict=True)
        ]

    def test_blank_lines_are_counted_and_left_out(self):
        assert self.lines(b"a\n\n  \nb\n") == [(1, b"a"), (4, b"b")]

    def test_the_last_line_needs_no_end(self):
        assert self.lines(b"a\nb") == [(1, b"a"), (2, b"b")]

    def test_a_mark_of_utf8_is_left_out(self):
        assert self.lines(b"\xef\xbb\xbfa\n") == [(1, b"a")]

    def test_a_line_that_spans_chunks_is_one(self, monkeypatch):
        monkeypatch.setattr(lines, "CHUNK_SIZE", 3)
        assert self.lines(b"abcdefgh\nij\n\nkl") == [(1, b"abcdefgh"), (2, b"ij"), (4, b"kl")]

    def test_a_line_without_an_end_does_not_fill_the_memory(self, monkeypatch):
        monkeypatch.setattr(lines, "CHUNK_SIZE", 10)
        monkeypatch.setattr(lines, "LINE_SIZE_MAX", 25)
        source = a_source(b"first\n" + b"x" * 1_000_000)
        chunks = line_chunks(source)
        assert next(chunks).records == [b"first"]
        with pytest.raises(BadLine, match="line 2: it is longer than 25 bytes"):
            next(chunks)
        assert source.file.tell() < 100
