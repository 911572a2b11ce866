"""Segments: rows come back as they were sealed, in a file that says what it is."""

import errno
import gc
from decimal import Decimal
from itertools import accumulate, chain, pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.partition.segments import (
    USER,
    a_batch,
    a_footer,
    a_segment,
    an_info,
    each_format,
    opened,
    replaced,
    rows,
    small_groups,
)
from xxhash import xxh3_128_digest

from headrace.errors import CorruptEntry, DiskFull, SealFailed, StorageFailed
from headrace.model.row_digest import RowDigest
from headrace.partition.segments.segment import (
    Digests,
    parse_name,
    segment_name,
    segment_schema,
)
from headrace.partition.segments.segment_reader import read_back
from headrace.partition.segments.segment_writer import (
    ROW_GROUP_ROWS_MAX,
    ROW_GROUP_SIZE_MAX,
    row_groups,
    write_segment,
)
from headrace.storage import stream
from headrace.storage.file import FileDirectory
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk

__all__ = ["each_format"]


@pytest.fixture(params=["file", "memory"])
def root(request, tmp_path):
    if request.param == "memory":
        yield MemoryDisk().root
        return
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as directory:
        yield directory


class TestNames:
    def test_a_name_is_pinned(self):
        name = "0000000000000abc-9-00000000000000000100-00000000000000000160.parquet"
        assert an_info().name == name
        assert parse_name(name) == (0xABC, 9, 100, 160)

    @given(
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    )
    def test_names_come_back(self, namespace, created, ends):
        first, end = sorted(ends)
        parsed = parse_name(segment_name(namespace, created, first, end))
        assert parsed == ((namespace, created, first, end) if first < end else None)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "x.parquet",
            "0000000000000ABC-9-00000000000000000100-00000000000000000160.parquet",
            "0000000000000abc-09-00000000000000000100-00000000000000000160.parquet",
            "0000000000000abc-9-100-160.parquet",
            "0000000000000abc-9-00000000000000000160-00000000000000000160.parquet",
            "0000000000000abc-9-00000000000000000160-00000000000000000100.parquet",
            "0000000000000abc-9-00000000000000000100-09223372036854775808.parquet",
            "0000000000000abc-18446744073709551616-00000000000000000100-00000000000000000160.parquet",
            "0000000000000abc-9-00000000000000000100-00000000000000000160.parquet.tmp",
            "0000000000000abc-9-0000000000000000010\u0660-00000000000000000160.parquet",
            "0000000000000abc-9-00000000000000000100-00000000000000000160.parquet\n",
        ],
    )
    def test_other_names_are_none(self, name):
        assert parse_name(name) is None


@pytest.mark.usefixtures("each_format")
class TestRoundTrip:
    def test_every_kept_type_comes_back_with_its_nulls(self, root):
        batch = a_batch()
        info, digests = a_segment(root, batch)
        with root.open(info.name) as storage:
            read_back(storage, info, USER, digests)
        found = list(opened(root, info, digests).read(info.first, info.end))
        assert rows(found) == rows([batch])
        assert all(b.schema.equals(batch.schema, check_metadata=True) for b in found)

    def test_the_digests_are_those_of_the_rows_and_of_the_file(self):
        disk = MemoryDisk()
        batch = a_batch()
        info, digests = a_segment(disk.root, batch)
        expected = RowDigest(batch.schema)
        expected.update(batch)
        content = disk.content(info.name)
        assert digests == Digests(expected.digest(), xxh3_128_digest(content), len(content))

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(0, 25), max_size=12), st.integers(1, 80))
    def test_however_the_rows_are_cut_they_are_the_same_rows(self, cuts, group_rows):
        batch = a_batch()
        pieces, at = [], 0
        for cut in cuts:
            pieces.append(batch.slice(at, cut))
            at = min(at + cut, batch.num_rows)
        pieces.append(batch.slice(at))
        disk = MemoryDisk()
        info, expected = a_segment(disk.root, batch)
        with small_groups(group_rows), disk.root.create("other") as storage:
            digests = write_segment(storage, info, USER, pieces)
            read_back(storage, info, USER, digests)
        assert digests.rows == expected.rows
        found = opened(disk.root, info, digests, "other").read(info.first, info.end)
        assert rows(found) == rows([batch])

    def test_names_of_inner_fields_come_back_as_they_were(self):
        kind = pa.list_(pa.field("odd name", pa.map_(pa.string(), pa.list_(pa.int32()))))
        schema = pa.schema([("column", kind)])
        values = [[[("k", [1, None])]], None, []]
        batch = pa.RecordBatch.from_arrays(
            [*a_batch(3).columns[:3], pa.array(values, kind)], schema=segment_schema(schema)
        )
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, batch, schema=schema)
        file = opened(disk.root, info, digests)
        (found,) = file.read(info.first, info.end, ["column"])
        assert found.schema.equals(schema, check_metadata=True)
        assert found.column(0).type.equals(kind, check_metadata=True)
        assert rows([found]) == rows([batch.select(["column"])])

    def test_metadata_of_a_schema_does_not_speak_for_the_segment(self):
        schema = USER.with_metadata({"headrace.first": "7"})
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, schema=schema)
        assert opened(disk.root, info, digests).schema.metadata is None


class TestFile:
    def test_it_says_what_it_is(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        words = a_footer(disk, info.name).metadata
        del words[b"ARROW:schema"]
        assert words == {
            b"headrace.format": b"2",
            b"headrace.cluster": b"63" * 16,
            b"headrace.group": b"1",
            b"headrace.namespace": b"2748",
            b"headrace.created": b"9",
            b"headrace.first": b"100",
            b"headrace.end": b"160",
            b"headrace.first_op": b"5",
            b"headrace.seal_op": b"40",
            b"headrace.tip": b"74" * 16,
            b"headrace.schema_id": b"2",
            b"headrace.row_digest": digests.rows.hex().encode(),
            b"headrace.no_nan": b"",
        }

    def test_columns_are_compressed_and_encoded_as_the_page_says(self):
        disk = MemoryDisk()
        info, _ = a_segment(disk.root, a_batch(1000))
        group = a_footer(disk, info.name).row_group(0)
        columns = {
            group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)
        }
        assert {column.compression for column in columns.values()} == {"ZSTD"}
        for name in ("_hr_offset", "_hr_timestamp"):
            assert "DELTA_BINARY_PACKED" in columns[name].encodings
            assert not columns[name].has_dictionary_page
        for name in ("_hr_partition", "text", "tags.list.element", "counts.key_value.key"):
            assert columns[name].has_dictionary_page

    @pytest.mark.parametrize(
        ("kind", "make"),
        [
            (pa.int64(), lambda n: n),
            (pa.float64(), float),
            (pa.string(), lambda n: f"value {n}"),
            (pa.binary(), lambda n: b"value %d" % n),
            (pa.decimal128(20, 2), Decimal),
            (pa.date32(), lambda n: n),
            (pa.timestamp("us", "UTC"), lambda n: n),
        ],
    )
    def test_a_column_has_a_dictionary_if_its_values_repeat(self, kind, make):
        schema = pa.schema([("unlike", kind), ("gaps", kind), ("alike", kind), ("no", kind)])
        count = 3_000
        columns = [
            pa.array([make(n) for n in range(count)], kind),
            pa.array([make(n) if n % 5 else None for n in range(count)], kind),
            pa.array([make(n * 7 % 100) for n in range(count)], kind),
            pa.nulls(count, kind),
        ]
        assert self.with_dictionaries(schema, columns) == {"alike", "no"}

    @pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.int16(), pa.float32()])
    def test_every_other_type_is_written_too(self, kind):
        columns = [pa.array([n % 2 for n in range(900)]).cast(kind)]
        found = self.with_dictionaries(pa.schema([("x", kind)]), columns)
        assert found == (set() if kind == pa.bool_() else {"x"})

    def test_values_that_come_again_far_apart_still_have_a_dictionary(self):
        """No value of 5,000 comes twice in the first 5,000 rows, nor in any 20."""
        chance = Random(3)
        laps = [chance.sample(range(5_000), 5_000) for _ in range(12)]
        columns = [pa.array([*chain(*laps)])]
        assert self.with_dictionaries(pa.schema([("sensor", pa.int64())]), columns)

    def test_a_first_row_group_of_a_few_rows_decides_nothing(self):
        columns = [pa.array(["a", "b", "c"])]
        assert self.with_dictionaries(pa.schema([("host", pa.string())]), columns)

    def with_dictionaries(self, schema, columns):
        """Write a segment, and return which of the user's columns have a dictionary."""
        count = len(columns[0])
        batch = pa.RecordBatch.from_arrays(
            [*a_batch(count).columns[:3], *columns], schema=segment_schema(schema)
        )
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, batch, schema=schema)
        read_back(disk.root.open(info.name), info, schema, digests)
        group = a_footer(disk, info.name).row_group(0)
        found = [group.column(n) for n in range(3, 3 + len(columns))]
        return {each.path_in_schema for each in found if each.has_dictionary_page}


class TestRowGroups:
    def test_they_end_at_the_limit_of_rows(self):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        count = ROW_GROUP_ROWS_MAX + 5
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, a_batch(count, schema=schema), schema=schema)
        footer = a_footer(disk, info.name)
        assert [footer.row_group(n).num_rows for n in range(2)] == [ROW_GROUP_ROWS_MAX, 5]
        assert footer.num_row_groups == 2
        read_back(disk.root.open(info.name), info, schema, digests)

    def test_they_end_at_the_limit_of_bytes(self):
        schema = pa.schema([("blob", pa.binary())])
        row = bytes(1024 * 1024)
        count = ROW_GROUP_SIZE_MAX // len(row) + 3
        batch = pa.RecordBatch.from_arrays(
            [*a_batch(count).columns[:3], pa.array([row] * count)],
            schema=segment_schema(schema),
        )
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, batch, schema=schema)
        footer = a_footer(disk, info.name)
        # One fewer than fit as bytes alone: offsets, times and lengths are bytes too.
        assert [footer.row_group(n).num_rows for n in range(2)] == [15, 4]
        assert footer.num_row_groups == 2
        read_back(disk.root.open(info.name), info, schema, digests)

    def test_a_row_over_the_limit_has_one_to_itself(self):
        batch = pa.record_batch({"x": ["a", "b", "c" * 500, "d", "e"]})
        groups = row_groups([batch], rows_max=100, size_max=200)
        assert [[piece.num_rows for piece in group] for group in groups] == [[2], [1], [2]]

    @given(
        st.lists(st.lists(st.binary(max_size=60), max_size=12), max_size=8),
        st.integers(1, 9),
        st.integers(1, 300),
    )
    def test_they_are_as_large_as_both_limits_allow_and_lose_nothing(
        self, lots, rows_max, size
    ):
        batches = [pa.record_batch({"x": pa.array(lot, pa.binary())}) for lot in lots]
        groups = list(row_groups(batches, rows_max, size))
        values = [[v for piece in group for v in piece["x"].to_pylist()] for group in groups]
        assert [*chain(*values)] == [*chain(*lots)]
        for group, found in zip(groups, values, strict=True):
            assert 1 <= len(found) <= rows_max
            assert len(found) == 1 or sum(piece.nbytes for piece in group) <= size
        begins = dict(zip(accumulate(map(len, lots), initial=0), batches, strict=False))
        position = 0
        for group, after in pairwise(groups):
            position += sum(piece.num_rows for piece in group)
            # Where no batch begins, one was cut: not a row sooner than it had to be.
            more = [*group, begins.get(position, after[0].slice(0, 1))]
            assert (
                sum(piece.num_rows for piece in more) > rows_max
                or sum(piece.nbytes for piece in more) > size
            )

    def test_a_batch_is_cut_only_if_it_is_over_the_limits_alone(self):
        batches = [pa.record_batch({"x": [0] * count}) for count in (7, 7, 3, 25, 4)]
        groups = row_groups(batches, rows_max=10, size_max=10_000)
        assert [[piece.num_rows for piece in group] for group in groups] == [
            [7],
            [7, 3],
            [10],
            [10],
            [5, 4],
        ]


class TestRefusedRows:
    def refused(self, *batches, schema=USER):
        disk = MemoryDisk()
        info = an_info()
        with pytest.raises(SealFailed) as caught:
            write_segment(disk.root.create(info.name), info, schema, batches)
        assert caught.value.path == info.name
        return str(caught.value)

    @pytest.mark.parametrize(
        "offsets",
        [
            range(101, 161),
            range(99, 159),
            [*range(100, 130), *range(131, 161)],
            [*range(100, 130), *range(129, 159)],
            [100, 102, 101, *range(103, 160)],
            range(159, 99, -1),
        ],
    )
    def test_offsets_with_a_gap_a_repeat_or_another_start(self, offsets):
        message = self.refused(replaced(a_batch(), "_offset", offsets))
        assert "its offsets are not consecutive from 100" in message

    def test_a_gap_between_two_batches(self):
        self.refused(a_batch(30), a_batch(30, first=131))

    def test_a_gap_between_two_row_groups(self):
        with small_groups(30):
            message = self.refused(a_batch(30), a_batch(30, first=131))
        assert "are not consecutive from 130" in message

    @pytest.mark.parametrize("count", [0, 1, 59])
    def test_too_few(self, count):
        message = self.refused(a_batch(count))
        assert f"expected 60 rows, found {count}" in message

    def test_none_at_all(self):
        assert "found 0" in self.refused()

    @pytest.mark.parametrize("group_rows", [7, 60, 100])
    def test_too_many(self, group_rows):
        with small_groups(group_rows):
            assert "found more" in self.refused(a_batch(61))

    def test_a_null_where_none_may_be(self):
        for name in ("_timestamp", "_offset", "id"):
            values = [None, *a_batch().column(name).to_pylist()[1:]]
            self.refused(replaced(a_batch(), name, values))

    def test_other_columns(self):
        batch = a_batch()
        self.refused(batch.select(batch.schema.names[:-1]))
        self.refused(batch.select(["_offset", "_partition", *batch.schema.names[2:]]))
        self.refused(batch.select(USER.names))
        message = self.refused(batch, schema=pa.schema([("id", pa.int32())]))
        assert "_offset: int64 not null" in message

    def test_types_without_a_digest(self):
        self.refused(schema=pa.schema([("time", pa.time64("us"))]))


class TestFailedWrites:
    """A failure leaves garbage, has a name, and is the last thing that touches the disk."""

    def failed(self, error, fault=None, batches=None):
        disk = MemoryDisk()
        info = an_info()
        storage = disk.root.create(info.name)
        disk.hook = lambda effect: fault
        with pytest.raises(error) as caught:
            write_segment(storage, info, USER, batches or [a_batch()])
        effect_count = disk.effect_count
        disk.hook = None
        disk.crashed = False
        caught.value.__traceback__ = None
        gc.collect()
        assert disk.effect_count == effect_count
        return caught.value

    def test_a_full_disk(self):
        for number in (errno.ENOSPC, errno.EDQUOT):
            error = self.failed(DiskFull, Fail(number, done=100))
            assert (error.path, error.stage) == (an_info().name, "write")

    def test_a_broken_disk(self):
        error = self.failed(StorageFailed, Fail(errno.EIO))
        assert (error.path, error.stage, error.cause.errno) == (
            an_info().name,
            "write",
            errno.EIO,
        )

    def test_a_crash(self):
        self.failed(Crashed, Crash())

    def test_rows_that_cannot_be_had_name_their_own_cause(self):
        def broken():
            yield a_batch(30)
            raise CorruptEntry("gone", path="journal")

        assert self.failed(CorruptEntry, batches=broken()).path == "journal"

    def test_an_unnamed_failure_of_the_rows_is_not_blamed_on_the_disk(self):
        def broken():
            yield a_batch(30)
            raise OSError(errno.ENOSPC, "not ours")

        assert "not ours" in str(self.failed(SealFailed, batches=broken()))

    def test_refused_rows_are_not_closed_with_a_footer(self, monkeypatch):
        monkeypatch.setattr(stream, "GATHER_SIZE", 1)
        disk = MemoryDisk()
        with small_groups(30), pytest.raises(SealFailed):
            write_segment(disk.root.create("file"), an_info(), USER, [a_batch(61)])
        assert disk.content("file").startswith(b"PAR1")
        assert not disk.content("file").endswith(b"PAR1")
