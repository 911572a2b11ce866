"""Bytes that are not what was sealed are an error with a name, and never rows."""

import errno
from bisect import bisect_right
from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.partition.segments import (
    FIRST,
    START_US,
    USER,
    a_batch,
    a_footer,
    a_resealed_file,
    a_segment,
    an_info,
    each_format,
    opened,
    replaced,
    rows,
    small_blocks,
    small_groups,
)
from xxhash import xxh3_128_digest

from headrace.errors import BadRequest, CorruptSegment, UnsupportedFormat
from headrace.model.ids import Offset, Op
from headrace.model.schema import canonical, stored_schema
from headrace.partition.segments import segment_reader
from headrace.partition.segments.segment import Digests, identity, segment_schema
from headrace.partition.segments.segment_reader import (
    open_parquet,
    open_segment,
    read_back,
    repeating,
)
from headrace.storage.file import FileDirectory
from headrace_lab.disk.memory import MemoryDisk

__all__ = ["each_format"]
pytestmark = pytest.mark.usefixtures("each_format")


class TestOpening:
    def refused(self, disk, info, digests, match, name=None):
        with pytest.raises(CorruptSegment, match=match) as caught:
            opened(disk.root, info, digests, name)
        assert caught.value.path == (name or info.name)
        assert caught.value.row_group is None
        return caught.value

    def test_no_single_flipped_bit_is_opened(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        bits = digests.size * 8
        for bit in Random(3).sample(range(bits), 2000):
            disk.flip(info.name, bit)
            error = self.refused(disk, info, digests, "another file digest")
            assert error.expected == digests.file.hex()
            disk.flip(info.name, bit)
        opened(disk.root, info, digests)

    def test_one_of_another_size_is_refused_before_it_is_read(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        whole = disk.content(info.name)
        reads = []
        disk.read_fault = lambda path, at, size: reads.append(at)
        for content in (b"", whole[:-1], whole[:-8], whole + b"\0", whole + whole):
            disk.put(info.name, content)
            error = self.refused(disk, info, digests, "another size")
            assert (error.expected, error.found) == (len(whole), len(content))
        assert reads == []

    @pytest.mark.parametrize(
        ("key", "changes"),
        [
            ("cluster", {"cluster": b"d" * 16}),
            ("group", {"group": 2}),
            ("namespace", {"namespace": 0xABD}),
            ("created", {"created": 10}),
            ("first_op", {"first_op": Op(6)}),
            ("seal_op", {"seal_op": Op(41)}),
            ("tip", {"tip": b"u" * 16}),
            ("schema_id", {"schema_id": 3}),
        ],
    )
    def test_one_of_another_place_or_time_is_refused_though_its_bytes_are_whole(
        self, key, changes, each_format
    ):
        disk = MemoryDisk()
        stranger, digests = a_segment(disk.root, name="file", **changes)
        expected = an_info()
        error = self.refused(disk, expected, digests, f"another headrace.{key} ", name="file")
        assert error.expected == identity(expected, each_format)[f"headrace.{key}"]
        assert error.found == identity(stranger, each_format)[f"headrace.{key}"]

    def test_one_of_another_range_is_refused(self):
        disk = MemoryDisk()
        for first, count in ((99, 61), (100, 59), (100, 61), (160, 60)):
            name = f"{first}+{count}"
            _, digests = a_segment(disk.root, a_batch(count, first=first), name=name)
            self.refused(disk, an_info(), digests, "another headrace.(first|end)", name=name)

    def test_two_partitions_whose_files_were_swapped_are_both_refused(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        other, other_digests = a_segment(disk.root, namespace=0xABD)
        mine, theirs = disk.content(info.name), disk.content(other.name)
        disk.put(info.name, theirs)
        disk.put(other.name, mine)
        self.refused(disk, info, digests, "another (size|file digest)")
        self.refused(disk, other, other_digests, "another (size|file digest)")
        self.refused(disk, info, other_digests, "another headrace.namespace")

    def test_one_with_another_row_digest_is_refused(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        others = replace(digests, rows=b"r" * 16)
        error = self.refused(disk, info, others, "another headrace.row_digest")
        assert (error.expected, error.found) == (b"r".hex() * 16, digests.rows.hex())

    def test_one_that_does_not_say_is_refused(self, each_format):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        for key in identity(info, each_format):
            file, size = a_resealed_file(disk, info.name, **{key.partition(".")[2]: None})
            error = self.refused(
                disk, info, Digests(digests.rows, file, size), f"another {key} "
            )
            assert error.found == "nothing"
            disk.remove(info.name)
            a_segment(disk.root)

    def test_one_with_other_rows_than_it_says_is_refused(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root, a_batch(61))
        file, size = a_resealed_file(disk, info.name, end="160")
        found = Digests(digests.rows, file, size)
        self.refused(disk, an_info(), found, "another row count", name=info.name)

    def test_one_of_a_newer_release_is_named_so(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        file, size = a_resealed_file(disk, info.name, format="3")
        with pytest.raises(UnsupportedFormat) as caught:
            opened(disk.root, info, Digests(digests.rows, file, size))
        assert caught.value.found == "3"

    @pytest.mark.parametrize("text", ["0", "-1", "01", "1.0", "\u0661", "x" * 99, "9" * 5_000])
    def test_one_of_no_format_is_refused(self, text):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        file, size = a_resealed_file(disk, info.name, format=text)
        found = Digests(digests.rows, file, size)
        error = self.refused(disk, info, found, "another headrace.format ")
        assert error.expected == "1 to 2"

    def test_one_that_says_the_other_format_is_refused(self, each_format):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        file, size = a_resealed_file(disk, info.name, format=str(3 - each_format))
        with pytest.raises(CorruptSegment, match="another system columns"):
            opened(disk.root, info, Digests(digests.rows, file, size))

    @pytest.mark.parametrize(
        "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(100) + b"PAR1", bytes(range(256))]
    )
    def test_a_whole_file_that_is_no_parquet_is_refused(self, data):
        disk = MemoryDisk()
        disk.put("file", data)
        digests = Digests(b"r" * 16, xxh3_128_digest(data), len(data))
        self.refused(disk, an_info(), digests, "cannot be read", name="file")

    def test_someone_elses_parquet_is_refused(self):
        disk = MemoryDisk()
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"x": [1]}), sink, store_schema=False)
        data = sink.getvalue().to_pybytes()
        disk.put("file", data)
        digests = Digests(b"r" * 16, xxh3_128_digest(data), len(data))
        self.refused(disk, an_info(), digests, "another headrace.format", name="file")

    def test_an_unreadable_one_is_refused(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        disk.read_fault = lambda path, at, size: errno.EIO
        self.refused(disk, info, digests, "cannot be read: .*Input/output error")

    def test_after_a_refusal_the_storage_is_still_the_callers(self):
        root = MemoryDisk().root
        info, digests = a_segment(root)
        with root.open(info.name) as storage:
            with pytest.raises(CorruptSegment):
                open_segment(storage, info, replace(digests, file=bytes(16)))
            open_segment(storage, info, digests).close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                storage.size()


class TestReadingBack:
    def refused(self, disk, info, digests, match, schema=USER):
        with disk.root.open(info.name) as storage, pytest.raises(CorruptSegment, match=match):
            read_back(storage, info, schema, digests)

    def test_a_flipped_bit_is_found(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        for bit in Random(4).sample(range(digests.size * 8), 50):
            disk.flip(info.name, bit)
            self.refused(disk, info, digests, "another file digest")
            disk.flip(info.name, bit)

    def test_rows_that_are_not_those_of_the_digest_are_found(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        values = [n if n != 300 else 301 for n in a_batch().column("id").to_pylist()]
        changed = replaced(a_batch(), "id", values)
        _, others = a_segment(disk.root, changed, name="other")
        disk.put(info.name, disk.content("other"))
        file, size = a_resealed_file(disk, info.name, row_digest=digests.rows.hex())
        self.refused(disk, info, Digests(digests.rows, file, size), "another row digest")
        assert others.rows != digests.rows

    def test_another_schema_is_found(self):
        disk = MemoryDisk()
        info, digests = a_segment(disk.root)
        for schema in (
            USER.remove(0),
            USER.append(pa.field("more", pa.int8())),
            USER.set(0, USER.field(0).with_type(pa.int32())),
            USER.set(0, USER.field(0).with_nullable(True)),
        ):
            self.refused(disk, info, digests, "another schema", schema)


class TestReading:
    ROWS = 10  # of a row group

    @pytest.fixture
    def disk(self):
        return MemoryDisk()

    @pytest.fixture
    def file(self, disk):
        with small_groups(self.ROWS), small_blocks():
            return opened(disk.root, *a_segment(disk.root))

    def test_every_range_is_exact(self, file):
        whole = rows([a_batch().select(["id", "text"])])
        for start in range(FIRST, FIRST + 61):
            for end in range(start, FIRST + 61, 7):
                found = list(file.read(Offset(start), Offset(end), ["id", "text"]))
                assert rows(found) == whole[start - FIRST : end - FIRST]
                assert all(0 < batch.num_rows <= self.ROWS for batch in found)

    def test_columns_come_as_asked_for_in_that_order(self, file):
        batch = a_batch()
        for names in (
            ["text", "id"],
            ["_timestamp", "tags", "_partition"],
            ["_offset"],
            ["deep", "_offset", "place", "a.b"],
            batch.schema.names[::-1],
        ):
            found = list(file.read(Offset(115), Offset(137), names))
            expected = batch.select(names).slice(15, 22)
            assert rows(found) == rows([expected])
            assert all(b.schema.equals(expected.schema, check_metadata=True) for b in found)

    def test_no_columns_are_rows_without_values(self, file):
        found = file.read(Offset(115), Offset(137), [])
        assert sum(batch.num_rows for batch in found) == 22

    def test_an_unknown_column_is_the_callers_mistake(self, file):
        for name in ("nope", "place.x", "", "ID"):
            with pytest.raises(BadRequest, match="there is no column"):
                file.read(file.info.first, file.info.end, ["id", name])

    def test_only_row_groups_with_such_rows_are_read(self, disk, file):
        footer = a_footer(disk, file.info.name)
        starts = [footer.row_group(n).column(0).dictionary_page_offset for n in range(6)]
        reads = []
        disk.read_fault = lambda path, at, size: reads.append((at, at + size))
        list(file.read(Offset(119), Offset(131)))
        assert min(start for start, _ in reads) > starts[1] - 64
        assert max(end for _, end in reads) < starts[4] + 64

    def test_only_columns_asked_for_are_read_and_the_offsets(self, disk, file):
        reads = []
        disk.read_fault = lambda path, at, size: reads.append(size)
        list(file.read(Offset(110), Offset(120), ["id"]))
        narrow = sum(reads)
        reads.clear()
        list(file.read(Offset(110), Offset(120)))
        assert narrow < sum(reads) / 5

    def test_two_readers_do_not_disturb_each_other(self, file):
        one, two = (file.read(file.info.first, file.info.end) for _ in range(2))
        both = [next(one), next(two), next(two), next(one)]
        assert rows(both[::3]) == rows(both[1:3])

    def test_offsets_that_are_not_dense_are_found_though_nobody_asked_for_them(
        self, disk, each_format
    ):
        info, digests = a_segment(disk.root)
        offsets = [*range(100, 130), 131, 130, *range(132, 160)]
        table = pa.Table.from_batches([replaced(a_batch(), "_offset", offsets)])
        table = table.rename_columns(stored_schema(table.schema, each_format).names)
        words = {
            **identity(info, each_format),
            "headrace.row_digest": digests.rows.hex(),
        }
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(words), sink)
        data = sink.getvalue().to_pybytes()
        disk.put(info.name, data)
        whole = Digests(digests.rows, xxh3_128_digest(data), len(data))
        with pytest.raises(CorruptSegment, match="are not consecutive from 100") as caught:
            list(opened(disk.root, info, whole).read(Offset(100), Offset(101), ["id"]))
        assert caught.value.row_group == 0


class TestOffsetAt:
    def test_is_the_first_row_not_before_a_time_wherever_that_is(self):
        chance = Random(5)
        for group_rows in (1, 7, 60):
            for ordered in (True, False):
                times = [START_US + chance.randrange(300) for _ in range(60)]
                times = sorted(times) if ordered else times
                disk = MemoryDisk()
                with small_groups(group_rows):
                    file = opened(disk.root, *a_segment(disk.root, a_batch(times=times)))
                for wanted in range(START_US - 2, START_US + 303):
                    late = [FIRST + n for n, time in enumerate(times) if time >= wanted]
                    assert file.offset_at(wanted) == (late[0] if late else FIRST + 60)

    @pytest.mark.parametrize("number", [-(2**63) + 1, -1, 0, 2**63 - 1])
    def test_times_at_the_ends_of_what_can_be_written(self, number):
        disk = MemoryDisk()
        times = [number] * 60
        file = opened(disk.root, *a_segment(disk.root, a_batch(times=times)))
        assert file.offset_at(number) == FIRST
        assert file.offset_at(number - 1) == FIRST
        assert file.offset_at(number + 1) == FIRST + 60
        assert file.offset_at(-(2**80)) == FIRST
        assert file.offset_at(2**80) == FIRST + 60

    def test_reads_two_columns_of_one_row_group(self):
        disk = MemoryDisk()
        with small_groups(10), small_blocks(1):
            file = opened(disk.root, *a_segment(disk.root))
        reads = []
        disk.read_fault = lambda path, at, size: reads.append((at, size))
        assert file.offset_at(START_US + 2500) == FIRST + 30
        group = a_footer(disk, file.info.name).row_group(3)
        columns = [group.column(n) for n in (1, 2)]
        assert sorted(reads) == [(c.data_page_offset, c.total_compressed_size) for c in columns]


class TestRot:
    """A segment was whole when it was opened; then its disk goes bad under it."""

    COUNT = 90

    def a_rotting_file(self):
        disk = MemoryDisk()
        with small_groups(30), small_blocks():
            file = opened(disk.root, *a_segment(disk.root, a_batch(self.COUNT)))
        footer = int.from_bytes(disk.content(file.info.name)[-8:-4], "little") + 8
        return disk, file, file.digests.size - footer

    def test_a_flipped_bit_is_an_error_that_names_the_row_group(self):
        disk, file, end = self.a_rotting_file()
        footer = a_footer(disk, file.info.name)
        starts = [footer.row_group(n).column(0).dictionary_page_offset for n in range(3)]
        for bit in Random(6).sample(range(starts[0] * 8, end * 8), 2000):
            group = bisect_right(starts, bit // 8) - 1
            start = FIRST + group * 30
            disk.flip(file.info.name, bit)
            with pytest.raises(CorruptSegment) as caught:
                list(file.read(Offset(start), Offset(start + 30)))
            assert (caught.value.path, caught.value.row_group) == (file.info.name, group)
            disk.flip(file.info.name, bit)

    def test_a_flipped_bit_that_page_checksums_miss_is_an_error(self):
        # The header of a page says how many values it has, and no checksum covers it: a list
        # that is cut short by it is a list like any other.
        disk, file, _ = self.a_rotting_file()
        footer = a_footer(disk, file.info.name)
        index = next(n for n in range(24) if "matrix" in footer.schema.column(n).path)
        column = footer.row_group(1).column(index)
        first = column.dictionary_page_offset
        missed = 0
        for bit in range(first * 8, (first + column.total_compressed_size) * 8):
            disk.flip(file.info.name, bit)
            missed += self.page_checksums_miss(disk.content(file.info.name), footer)
            with pytest.raises(CorruptSegment):
                list(file.read(Offset(FIRST + 30), Offset(FIRST + 60), ["matrix"]))
            disk.flip(file.info.name, bit)
        assert missed > 0

    def page_checksums_miss(self, content, footer):
        """Tell whether plain Parquet reads other rows from the second row group."""
        source = pa.BufferReader(content)
        plain = pq.ParquetFile(source, metadata=footer, page_checksum_verification=True)
        try:
            found = plain.read_row_group(1, columns=["matrix"], use_threads=False)
        except (pa.ArrowException, OSError):
            return False
        expected = a_batch(self.COUNT).column("matrix").slice(30, 30).to_pylist()
        return found["matrix"].to_pylist() != expected

    def test_pages_that_went_bad_before_the_file_digest_was_taken_are_found(self):
        # Memory fails too. Without verification most of these flips would read as other rows.
        flat = pa.schema([USER.field(name) for name in ("id", "double", "text", "price")])
        disk = MemoryDisk()
        with small_groups(30):
            info, digests = a_segment(disk.root, a_batch(90, schema=flat), schema=flat)
        whole = disk.content(info.name)
        end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        expected = rows(opened(disk.root, info, digests).read(info.first, info.end))
        error_count = 0
        for bit in Random(8).sample(range(4 * 8, end * 8), 1000):
            disk.flip(info.name, bit)
            flipped = replace(digests, file=xxh3_128_digest(disk.content(info.name)))
            file = opened(disk.root, info, flipped)
            try:
                assert rows(file.read(info.first, info.end)) == expected
            except CorruptSegment:
                error_count += 1
            disk.flip(info.name, bit)
        assert error_count > 500  # other bits are of page headers, and say nothing needed

    def test_other_row_groups_are_served(self):
        disk, file, _ = self.a_rotting_file()
        middle = a_footer(disk, file.info.name).row_group(1).column(3)
        disk.overwrite(file.info.name, middle.data_page_offset, bytes(40))
        for start, end in ((100, 130), (160, 190)):
            found = file.read(Offset(start), Offset(end))
            assert sum(batch.num_rows for batch in found) == 30
        with pytest.raises(CorruptSegment) as caught:
            list(file.read(Offset(100), Offset(190)))
        assert caught.value.row_group == 1

    def test_a_file_cut_short_under_a_reader_is_an_error(self):
        disk, file, end = self.a_rotting_file()
        for size in (0, 4, end // 3, end - 1):
            disk.cut(file.info.name, size)
            with pytest.raises(CorruptSegment):
                list(file.read(file.info.first, file.info.end))
            with pytest.raises(CorruptSegment):
                file.offset_at(START_US + 8000)

    def test_a_failed_read_is_an_error_of_its_row_group(self):
        disk, file, _ = self.a_rotting_file()
        disk.read_fault = lambda path, at, size: errno.EIO
        with pytest.raises(CorruptSegment, match="Input/output error") as caught:
            list(file.read(Offset(140), Offset(150), ["id"]))
        assert caught.value.row_group == 1
        with pytest.raises(CorruptSegment, match="Input/output error"):
            file.offset_at(START_US)

    def test_a_rotten_footer_does_not_matter_to_an_open_file(self):
        disk, file, end = self.a_rotting_file()
        expected = rows(file.read(file.info.first, file.info.end))
        end += 64  # past the block that is of both
        disk.overwrite(file.info.name, end, bytes(file.digests.size - end))
        assert rows(file.read(file.info.first, file.info.end)) == expected

    def test_the_scrub_finds_every_flipped_bit(self):
        disk, file, _ = self.a_rotting_file()
        opened(disk.root, file.info, file.digests).check_rows()
        for bit in Random(7).sample(range(file.digests.size * 8), 300):
            disk.flip(file.info.name, bit)
            with pytest.raises(CorruptSegment, match="another file digest"):
                opened(disk.root, file.info, file.digests)
            disk.flip(file.info.name, bit)
        opened(disk.root, file.info, file.digests).check_rows()

    def test_real_files_rot_alike(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "data"), create=True) as root:
            file = opened(root, *a_segment(root))
            with root.open(file.info.name, writable=True) as storage:
                at = file.digests.size // 3
                storage.write(at, [bytes([storage.read(at, 1)[0] ^ 1])])
            with pytest.raises(CorruptSegment, match="another file digest"):
                opened(root, file.info, file.digests)
            with pytest.raises(CorruptSegment) as caught:
                list(file.read(file.info.first, file.info.end))
            assert caught.value.row_group == 0
            file.close()


class TestFewValues:
    """Columns of few values are read as places in a dictionary, and leave as values."""

    SCHEMA = canonical(
        pa.schema(
            [
                pa.field("flag", pa.string(), nullable=False),
                pa.field("mode", pa.string()),
                pa.field("blob", pa.binary()),
                pa.field("nothing", pa.string()),
                pa.field("later", pa.string()),  # few values at first, then many
                pa.field("name", pa.string()),  # as many as rows
                pa.field("count", pa.int64()),
                pa.field("tags", pa.list_(pa.string())),
                pa.field("where", pa.struct([("town", pa.string())])),
            ]
        )
    )

    def rows(self, count=4_000):
        def value(name, n):
            return {
                "flag": "ANR"[n % 3],
                "mode": None if n % 5 == 0 else ["", "AIR", "\N{SNOWMAN}"][n % 3],
                "blob": None if n % 7 == 0 else bytes([n % 2, 255]),
                "nothing": None,
                "later": "x" if n < count // 2 else f"later {n}",
                "name": f"name {n}",
                "count": n % 2,
                "tags": ["a", None] if n % 2 else [],
                "where": {"town": "Ulm" if n % 2 else None},
            }[name]

        numbers = range(count)
        system = [
            pa.array([3] * count, pa.int32()),
            pa.array(range(FIRST, FIRST + count), pa.int64()),
            pa.array([START_US] * count, pa.timestamp("us", tz="UTC")),
        ]
        columns = [pa.array([value(f.name, n) for n in numbers], f.type) for f in self.SCHEMA]
        schema = segment_schema(self.SCHEMA)
        return pa.RecordBatch.from_arrays([*system, *columns], schema=schema)

    def test_they_are_the_rows_that_were_sealed(self):
        disk, batch = MemoryDisk(), self.rows()
        with small_groups(1_000):
            file = opened(disk.root, *a_segment(disk.root, batch, schema=self.SCHEMA))
        footer = a_footer(disk, file.info.name)
        assert footer.num_row_groups == 4
        assert repeating(footer) == ["flag", "mode", "blob", "nothing"]
        found = pa.Table.from_batches(file.read(file.info.first, file.info.end))
        assert found.schema.equals(batch.schema, check_metadata=True)
        assert found.equals(pa.Table.from_batches([batch]))
        some = pa.Table.from_batches(file.read(Offset(950), Offset(2_050), ["mode", "later"]))
        wanted = batch.slice(950 - FIRST, 1_100).select(["mode", "later"])
        assert some.equals(pa.Table.from_batches([wanted]))
        file.check_rows()

    def test_the_decoder_is_asked_for_places(self, monkeypatch):
        disk = MemoryDisk()
        file = opened(disk.root, *a_segment(disk.root, self.rows(), schema=self.SCHEMA))
        asked = []
        monkeypatch.setattr(
            segment_reader,
            "open_parquet",
            lambda *args: asked.append(args[3]) or open_parquet(*args),
        )
        list(file.read(file.info.first, file.info.end))
        assert asked == [["flag", "mode", "blob", "nothing"]]
