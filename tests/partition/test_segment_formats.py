"""Two formats of a segment: other names and numbers in the file, the same rows to a reader."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from tests.partition.segments import (
    FIRST,
    FORMATS,
    NAN,
    USER,
    a_batch,
    a_footer,
    a_segment,
    opened,
    rows,
    small_groups,
)
from tests.partition.shards import (
    KEY,
    NARROW,
    NEWER,
    WIDE,
    Shard,
    a_shard,
    shard_options,
)
from xxhash import xxh3_128_digest

from headrace.errors import CorruptSegment, UnsupportedFormat
from headrace.journal.entry import SEAL
from headrace.model.proposal import EntryProposal
from headrace.model.row_digest import RowDigest
from headrace.model.schema import (
    SYSTEM_FIELDS,
    leaves_without_nan,
    stored_schema,
)
from headrace.partition.machine import operations
from headrace.partition.machine.operations import Seal, decode_seal
from headrace.partition.scrub import scrub
from headrace.partition.segments import segment_writer
from headrace.partition.segments.segment import segment_schema
from headrace.partition.segments.segment_reader import read_back
from headrace.storage.file import FileDirectory
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import evolving

FIELD_ID = b"PARQUET:field_id"


def numbers(fields, path=""):
    """Return the ID of each column and inner column that pyarrow found, by path."""
    found = {}
    for field in fields:
        name = f"{path}{field.name}"
        found[name] = int(field.metadata[FIELD_ID])
        kind = field.type
        if pa.types.is_struct(kind):
            inner = list(kind)
        elif pa.types.is_list(kind):
            inner = [kind.value_field]
        elif pa.types.is_map(kind):
            inner = [kind.key_field, kind.item_field]
        else:
            continue
        found |= numbers(inner, f"{name}.")
    return found


def file_of(*columns, schema=None, form=2, row_count=None):
    """Write one segment with these columns, and return its disk, info and digests."""
    schema = schema or pa.schema([(name, column.type) for name, column in columns])
    count = len(columns[0][1])
    system = a_batch(count).columns[: len(SYSTEM_FIELDS)]
    batch = pa.RecordBatch.from_arrays(
        [*system, *(column for _, column in columns)], schema=segment_schema(schema)
    )
    disk = MemoryDisk()
    with small_groups(row_count or count):
        return disk, *a_segment(disk.root, batch, schema=schema, form=form)


class TestColumns:
    def test_format_1_is_named_as_readers_name_it_and_has_no_numbers(self):
        disk = MemoryDisk()
        info, _ = a_segment(disk.root, form=1)
        found = pq.read_schema(pa.BufferReader(disk.content(info.name)))
        assert found.names == a_batch(1).schema.names
        assert not any(field.metadata for field in found)

    def test_format_2_has_names_that_a_table_may_have(self):
        disk = MemoryDisk()
        info, _ = a_segment(disk.root)
        found = pq.read_schema(pa.BufferReader(disk.content(info.name)))
        assert found.names == ["_hr_partition", "_hr_offset", "_hr_timestamp", *USER.names]
        assert found.types == a_batch(1).schema.types
        assert [field.nullable for field in found] == [
            field.nullable for field in a_batch(1).schema
        ]

    def test_columns_are_numbered_as_iceberg_numbers_those_of_a_new_table(self):
        """First the fields that are side by side, then what is in each of them in turn."""
        pair = pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.int32())]))])
        schema = pa.schema(
            [
                ("pair", pair),
                ("list", pa.list_(pa.field("element", pair))),
                ("map", pa.map_(pa.struct([("k", pa.int32())]), pa.list_(pa.int32()))),
                ("last", pa.int32()),
            ]
        )
        disk, info, _ = file_of(
            *((field.name, pa.nulls(3, field.type)) for field in schema), schema=schema
        )
        found = numbers(pq.read_schema(pa.BufferReader(disk.content(info.name))))
        assert found == {
            "_hr_partition": 1,
            "_hr_offset": 2,
            "_hr_timestamp": 3,
            "pair": 4,
            "list": 5,
            "map": 6,
            "last": 7,
            "pair.x": 8,
            "pair.deep": 9,
            "pair.deep.y": 10,
            "list.element": 11,
            "list.element.x": 12,
            "list.element.deep": 13,
            "list.element.deep.y": 14,
            "map.key": 15,
            "map.value": 16,
            "map.key.k": 17,
            "map.value.element": 18,
        }

    def test_what_pyarrow_reads_back_are_the_numbers_that_were_given(self):
        disk = MemoryDisk()
        info, _ = a_segment(disk.root)
        found = pq.read_schema(pa.BufferReader(disk.content(info.name)))
        given = stored_schema(a_batch(1).schema, 2)
        assert numbers(found) == numbers(given)
        assert sorted(numbers(found).values()) == list(range(1, len(numbers(found)) + 1))

    def test_numbers_are_not_stored_a_second_time(self):
        """In the text of Arrow's own schema they take as much as all the rest of a footer."""
        sizes = {}
        for form in FORMATS:
            disk = MemoryDisk()
            info, _ = a_segment(disk.root, form=form)
            sizes[form] = a_footer(disk, info.name).serialized_size
        assert sizes[2] < sizes[1] * 1.05

    @pytest.mark.parametrize("wrong", ["names", "numbers"])
    def test_a_file_with_other_names_or_numbers_is_not_read_back(self, wrong, monkeypatch):
        def other(schema, form):
            found = stored_schema(schema, form)
            if wrong == "names":
                return found.set(4, found.field(4).with_name("another"))
            return found.set(4, found.field(4).with_metadata({FIELD_ID: b"99"}))

        monkeypatch.setattr(segment_writer, "stored_schema", other)
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        with disk.root.open(info.name) as storage, pytest.raises(CorruptSegment) as caught:
            read_back(storage, info, USER, digests)
        assert "other columns in the file" in str(caught.value)


class TestRowDigest:
    def test_it_is_that_of_the_same_rows_in_either_format(self):
        found = {form: a_segment(MemoryDisk().root, form=form)[1].rows for form in FORMATS}
        expected = RowDigest(a_batch().schema)
        expected.update(a_batch())
        assert found == dict.fromkeys(FORMATS, expected.digest())

    def test_under_other_names_it_would_be_another(self):
        """So names of a file must never reach it."""
        renamed = a_batch().rename_columns(stored_schema(a_batch().schema, 2).names)
        digest = RowDigest(renamed.schema)
        digest.update(renamed)
        assert digest.digest() != a_segment(MemoryDisk().root)[1].rows


class TestNan:
    F = pa.float64()
    PAIR = pa.struct([("a", pa.float32()), ("b", pa.float64())])

    @pytest.mark.parametrize(
        ("column", "leaves"),
        [
            (pa.array([0.5, None, -0.0, float("inf")], F), {3}),
            (pa.array([0.5, NAN], F), set()),
            (pa.array([0.5, NAN], pa.float32()), set()),
            (pa.array([None, None], F), {3}),
            (pa.array([1, 2]), set()),  # no floating-point leaf
            (pa.array([{"a": 1, "b": NAN}], PAIR), {3}),
            (pa.array([{"a": NAN, "b": 1}], PAIR), {4}),
            (pa.array([{"a": NAN, "b": NAN}], PAIR), set()),
            (pa.array([[], None, [1.0, None]], pa.list_(F)), {3}),
            (pa.array([[1.0], [2.0, NAN]], pa.list_(F)), set()),
            (pa.array([[{"a": NAN, "b": 1}], None], pa.list_(PAIR)), {4}),
            (pa.array([[("k", NAN)]], pa.map_(pa.string(), F)), set()),
            (pa.array([[("k", 1.0)]], pa.map_(pa.string(), F)), {4}),
            (pa.array([[(NAN, 1.0)]], pa.map_(F, F)), {4}),
        ],
    )
    def test_the_footer_names_the_leaves_that_have_none(self, column, leaves):
        disk, info, digests = file_of(("x", column))
        footer = a_footer(disk, info.name)
        assert leaves_without_nan(footer.metadata) == leaves
        assert leaves <= set(range(footer.num_columns))
        with disk.root.open(info.name) as storage:
            read_back(storage, info, pa.schema([("x", column.type)]), digests)

    def test_one_that_no_row_shows_does_not_count(self):
        """Under a null of its parent a value is none."""
        hidden = pa.StructArray.from_arrays(
            [pa.array([1.0, NAN])], ["a"], mask=pa.array([False, True])
        )
        disk, info, _ = file_of(("x", hidden))
        assert leaves_without_nan(a_footer(disk, info.name).metadata) == {3}

    @pytest.mark.parametrize("place", [0, 5, 9])
    def test_one_in_any_row_group_counts(self, place):
        values = [NAN if n == place else float(n) for n in range(10)]
        disk, info, _ = file_of(
            ("x", pa.array(values)), ("y", pa.array([1.0] * 10)), row_count=2
        )
        footer = a_footer(disk, info.name)
        assert footer.num_row_groups == 5
        assert leaves_without_nan(footer.metadata) == {4}

    def test_a_flag_that_is_not_true_is_not_read_back(self, monkeypatch):
        monkeypatch.setattr(RowDigest, "leaves_without_nan", lambda _: [3])
        disk, info, digests = file_of(("x", pa.array([NAN])))
        monkeypatch.undo()
        file = opened(disk.root, info, digests)
        with pytest.raises(CorruptSegment, match=r"headrace\.no_nan"):
            file.check_rows()

    @pytest.mark.parametrize(
        "text", [None, b"", b"x", b"1,", b"-1", b"1, 2", "\u0661".encode()]
    )
    def test_a_footer_that_says_nothing_of_the_kind_names_none(self, text):
        metadata = {} if text is None else {b"headrace.no_nan": text}
        assert leaves_without_nan(metadata) == frozenset()


def deltas(path: Path, schema: pa.Schema, file: str, count: int) -> DeltaTable:
    """Make a Delta table of one file that is there already."""
    stored = [field.with_name(f"_hr{field.name}") for field in SYSTEM_FIELDS]
    table = DeltaTable.create(str(path), Schema.from_arrow(pa.schema([*stored, *schema])))
    size = (path / file).stat().st_size
    added = AddAction(file, size, {}, 0, True, f'{{"numRecords":{count}}}')
    table.create_write_transaction([added], "append", table.schema())
    return DeltaTable(str(path))


def test_a_table_takes_the_file_as_it_is(tmp_path):
    schema = pa.schema([field for field in USER if field.name != "a.b"])
    batch = a_batch(schema=schema)
    with FileDirectory.open_root(str(tmp_path / "t"), create=True) as root, small_groups(10):
        info, _ = a_segment(root, batch, schema=schema)
    table = deltas(tmp_path / "t", schema, info.name, batch.num_rows)
    found = table.to_pyarrow_table().sort_by("_hr_offset")
    assert found["_hr_offset"].to_pylist() == list(range(FIRST, FIRST + 60))
    for name in ("id", "text", "price", "seen", "tags", "place"):
        assert str(found[name].to_pylist()) == str(batch.column(name).to_pylist())
    by_polars = polars.scan_delta(str(tmp_path / "t")).select("_hr_offset", "id").collect()
    assert by_polars["id"].to_list() == batch.column("id").to_pylist()
    by_duckdb = duckdb.sql(f"select sum(id) from '{tmp_path}/t/*.parquet'").fetchall()
    assert by_duckdb == [(pc.sum(batch.column("id")).as_py(),)]


class TestSeal:
    @pytest.mark.parametrize("expire", [True, False])
    def test_format_1_has_the_bytes_of_before(self, expire):
        assert operations.encode(Seal(expire)) == bytes([0x91, 0xC3 if expire else 0xC2])
        assert decode_seal(operations.encode(Seal(expire))) == Seal(expire, 1)

    def test_a_format_that_is_unknown_is_an_unreadable_body(self):
        assert decode_seal(b"\x92\xc3\x02") == Seal(True, 2)
        for body in (b"\x92\xc3\x00", b"\x92\xc3\x03", b"\x92\xc3\xc3", b"\x93\xc3\x02\x00"):
            assert decode_seal(body) == Seal(False, 1)

    @pytest.mark.parametrize("form", FORMATS)
    def test_the_segments_of_a_seal_have_its_format_on_every_replica(self, form):
        """And after a crash before the snapshot: the replay meets the same Seal."""
        files = []
        for _ in range(2):
            disk = MemoryDisk()
            shard = a_shard(disk)
            shard.append_many(12)
            shard.submit([EntryProposal(SEAL, operations.encode(Seal(False, form)))])
            crashed = disk.clone().kill()  # before a byte of the checkpoint
            shard.run()
            again = a_shard(crashed)
            again.run()
            for one, of in ((shard, disk), (again, crashed)):
                (name,) = one.segment_names()
                files.append(of.content(f"segments/{name}"))
        said = [pq.read_metadata(pa.BufferReader(data)).metadata for data in files]
        assert {one[b"headrace.format"] for one in said} == {b"%d" % form}
        assert len(set(files)) == 1

    def test_what_an_earlier_seal_could_not_write_is_written_in_the_format_of_a_later_one(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(12)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "headrace.partition.segments.seal_job.read_back",
                lambda storage, *_: (_ for _ in ()).throw(
                    CorruptSegment("planted", path=storage.path)
                ),
            )
            shard.checkpoint(form=1)
        assert len(shard.unsealed) == 1
        shard.checkpoint(form=2)
        (name,) = shard.segment_names()
        assert a_footer(disk, f"segments/{name}").metadata[b"headrace.format"] == b"2"
        assert shard.ids() == list(range(120))


class TestBothInOnePartition:
    @pytest.fixture
    def shard(self):
        """A partition whose segments have the formats 1, 2, 1, and whose columns grow."""
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(12)
        shard.checkpoint(form=1)
        shard.append_many(12)
        shard.checkpoint(form=2)
        shard.one(evolving(KEY, 2, NEWER))
        shard.append_many(12, schema=NEWER, schema_id=2)
        shard.checkpoint(form=1)
        shard.append_many(12, schema=NEWER, schema_id=2)
        shard.checkpoint(form=2)
        shard.append_many(2, schema=NEWER, schema_id=2)
        formats = [
            int(a_footer(disk, f"segments/{name}").metadata[b"headrace.format"])
            for name in shard.segment_names()
        ]
        assert formats == [1, 2, 1, 2]
        return shard

    def test_they_are_read_as_one(self, shard):
        found = shard.rows()
        assert found.schema.names == ["_partition", "_offset", "_timestamp", *NEWER.names]
        assert found["_offset"].to_pylist() == list(range(500))
        assert found["id"].to_pylist() == list(range(500))
        assert found["note"].to_pylist()[:240] == [None] * 240
        assert found["note"].to_pylist()[240:] == [f"note {n}" for n in range(240, 500)]

    def test_any_range_and_any_columns(self, shard):
        for start, end in ((0, 1), (119, 121), (100, 400), (239, 241), (355, 500)):
            for columns in (["_offset"], ["note", "_partition"], ["_timestamp", "id"]):
                found = shard.rows(start, end, columns=columns)
                assert found.schema.names == columns
                assert found.num_rows == end - start
            assert shard.ids(start, end) == list(range(start, end))

    def test_rows_are_found_by_time(self, shard):
        times = [one.value for one in shard.rows()["_timestamp"]]
        for offset in (0, 110, 120, 239, 240, 400):
            expected = times.index(times[offset])
            assert shard.store.reader.offset_at(KEY, times[offset]) == expected

    def test_a_scrub_finds_nothing(self, shard):
        assert [one for one in scrub(shard.store.keeper) if one is not None] == []


def test_a_widened_number_is_read_from_both_formats():
    shard = Shard.open(MemoryDisk().root, shard_options(), SOLO)
    shard.open_partition(schemas=(NARROW,))
    for form in FORMATS:
        shard.append_many(60, schema=NARROW)
        shard.checkpoint(form=form)
        shard.checkpoint(form=form)
        shard.checkpoint(form=form)
        shard.checkpoint(form=form)
    shard.one(evolving(KEY, 2, WIDE))
    found = shard.rows()
    assert found.schema.field("id").type == pa.int64()
    assert found["id"].to_pylist() == list(range(1200))
    assert found["note"].null_count == 1200


GOLDEN = Path(__file__).parent.parent / "formats"


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_an_earlier_release_is_read_as_it_was_written(form):
    """The bytes that Arrow writes may change; what they mean may not."""
    data = (GOLDEN / f"segment-{form}.parquet").read_bytes()
    disk = MemoryDisk()
    disk.put("file", data)
    said = a_footer(disk, "file").metadata
    info, written = a_segment(disk.root, form=form)
    digests = replace(written, file=xxh3_128_digest(data), size=len(data))
    assert said[b"headrace.format"] == b"%d" % form
    assert said[b"headrace.row_digest"].decode() == digests.rows.hex()
    file = opened(disk.root, info, digests, "file")
    assert rows(file.read(info.first, info.end)) == rows([a_batch()])
    file.check_rows()


def test_a_release_that_knows_only_format_1_refuses_the_other(monkeypatch):
    """As the release before did: it knew 1 as the newest."""
    monkeypatch.setattr("headrace.partition.segments.segment.SEGMENT_FORMAT", 1)
    disk = MemoryDisk()
    info, digests = a_segment(disk.root)
    with pytest.raises(UnsupportedFormat, match="needs a newer release"):
        opened(disk.root, info, digests)


def test_decimals_and_widths_are_the_same_in_both():
    values = pa.array([Decimal("1.25"), None, Decimal("-0.01")], pa.decimal128(10, 2))
    for form in FORMATS:
        disk, info, digests = file_of(
            ("d", values), ("i", pa.array([1, 2, None], pa.int8())), form=form
        )
        (found,) = opened(disk.root, info, digests).read(info.first, info.end, ["d", "i"])
        assert found.column("d").equals(values)
        assert found.schema.types == [pa.decimal128(10, 2), pa.int8()]


def test_format_1_has_no_key_of_format_2():
    disk = MemoryDisk()
    info, _ = a_segment(disk.root, form=1)
    said = a_footer(disk, info.name).metadata
    assert b"headrace.no_nan" not in said
    assert said[b"headrace.format"] == b"1"
