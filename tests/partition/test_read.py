"""Reads: by offsets, by time, the last few, next for a group; whole, or an error by name."""

import pyarrow as pa
import pytest
from tests.partition.shards import (
    KEY,
    NARROW,
    NEWER,
    OTHER,
    SCHEMA,
    TOPIC_CREATED,
    WIDE,
    Stubborn,
    a_disk,
    a_shard,
    layered,
    sealed,
    some_rows,
    table_of,
)

from headrace.errors import (
    BadRequest,
    Behind,
    CorruptSegment,
    Expired,
    PartitionUnknown,
    Recreated,
)
from headrace.model.ids import Offset, Revision
from headrace.model.namespace import Namespace
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Placed, Unplaced
from headrace.partition.reader import Key
from headrace.partition.segments import segment_writer
from headrace.storage import stream
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import (
    TICK_US,
    appending,
    closing,
    evolving,
    opening,
    publishing,
    purging,
    staging,
    trimming,
)

NEVER = SegmentSizes(1 << 60, 1 << 60, 1 << 60)


@pytest.fixture(scope="module")
def layers():
    return a_disk(layered)


@pytest.fixture
def shard(layers):
    """Rows 0..140 in a segment, 140..170 in carry files, 170..190 in the journal."""
    return a_shard(layers.clone())


def read(shard, start, end, **options):
    return table_of(shard.store.reader.read(KEY, Offset(start), Offset(end), **options))


class TestRange:
    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 190), (0, 1), (189, 190), (135, 145), (139, 171), (165, 175), (7, 8), (150, 160)],
    )
    def test_rows_of_all_places_are_one_range(self, shard, start, end):
        found = read(shard, start, end)
        assert found["_offset"].to_pylist() == list(range(start, end))
        assert found["id"].to_pylist() == list(range(start, end))
        assert found["name"].to_pylist() == [f"name {n}" for n in range(start, end)]

    def test_every_range_is_what_a_plain_list_says(self, shard):
        for start in range(0, 191, 7):
            for end in range(start, 191, 11):
                assert read(shard, start, end, columns=["id"]).num_rows == end - start

    def test_the_layers_are_what_they_are_said_to_be(self, shard):
        keeper, journal = shard.store.keeper, shard.store.group.journal
        (segment,) = shard.segments
        assert isinstance(segment.place, Placed)
        (run,) = shard.partition.runs
        assert [keeper.files.carry_of(one.op) is None for one in run.pieces] == [False] * 3 + [
            True
        ] * 2
        assert [journal.slot(one.op) is None for one in run.pieces] == [True] * 2 + [False] * 3

    def test_an_empty_range_has_no_rows_anywhere(self, shard):
        for offset in (0, 70, 140, 155, 190):
            assert list(shard.store.reader.read(KEY, Offset(offset), Offset(offset))) == []

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (-5, -1)])
    def test_what_is_no_range_is_refused(self, shard, start, end):
        with pytest.raises(BadRequest, match="not a valid range"):
            read(shard, start, end)

    def test_beyond_the_end_is_behind_with_both_ends(self, shard):
        with pytest.raises(Behind) as caught:
            read(shard, 0, 191)
        assert (caught.value.end, caught.value.committed) == (191, 190)

    def test_no_partition_and_another_life_are_two_errors(self, shard):
        with pytest.raises(PartitionUnknown):
            shard.rows(key=OTHER)
        with pytest.raises(Recreated) as caught:
            shard.store.reader.read(Key(KEY.namespace, Revision(9)), Offset(0), Offset(1))
        assert (caught.value.expected, caught.value.found) == (9, 1)

    def test_a_new_life_has_none_of_the_old_rows(self, shard):
        again = Key(KEY.namespace, Revision(7))
        shard.one(closing(KEY, Revision(6)))
        with pytest.raises(PartitionUnknown):
            shard.rows()
        shard.one(opening(again, [NARROW], Revision(7), Revision(7)))
        rows = some_rows(0, 3, NARROW)
        shard.one(appending(again, rows, b"w" * 16, 1))
        assert shard.rows(key=again).column_names[3:] == ["id"]
        assert shard.rows(key=again)["id"].to_pylist() == [0, 1, 2]
        with pytest.raises(Recreated):
            shard.rows(key=KEY)

    def test_the_partition_column_is_the_partitions_own_number(self, shard):
        shard.open_partition(OTHER)
        shard.append_many(14, key=OTHER)
        shard.append(key=KEY)
        before = shard.rows(key=OTHER)["_partition"].unique().to_pylist()
        shard.checkpoint()
        after = shard.rows(key=OTHER)["_partition"].unique().to_pylist()
        assert before == after == [1]
        assert shard.rows()["_partition"].unique().to_pylist() == [0]


class TestTime:
    def times(self, shard):
        return [int(one.value) for one in shard.rows()["_timestamp"]]

    @pytest.mark.parametrize("sizes", [SegmentSizes(4_000, 16_000, 3), NEVER])
    def test_each_time_leads_to_the_first_row_not_before_it(self, sizes):
        shard = a_shard(sizes=sizes)
        layered_as(shard)
        times = self.times(shard)
        assert times == sorted(times)
        for wanted in {t + d for t in times for d in (-1, 0, 1)}:
            expected = next((n for n, t in enumerate(times) if t >= wanted), len(times))
            assert shard.store.reader.offset_at(KEY, wanted) == expected

    def test_before_all_is_the_first_and_after_all_the_end(self, shard):
        reader = shard.store.reader
        assert [reader.offset_at(KEY, at) for at in (-(2**70), 0)] == [0, 0]
        assert [reader.offset_at(KEY, at) for at in (2**62, 2**70)] == [190, 190]

    def test_after_a_trim_in_a_segment_the_first_retained_is_the_earliest(self, shard):
        shard.one(trimming(KEY, Offset(33)))
        reader, times = shard.store.reader, self.times(shard)
        assert reader.offset_at(KEY, 0) == 33
        assert reader.offset_at(KEY, times[0]) == 33
        assert reader.offset_at(KEY, times[0] + 1) == 40
        shard.one(purging(KEY))
        assert [reader.offset_at(KEY, at) for at in (0, 2**60)] == [190, 190]

    def test_within_a_segment_of_many_row_groups(self, monkeypatch):
        monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS_MAX", 32)
        shard = a_shard()
        sealed(shard)
        first = int(shard.rows(0, 1)["_timestamp"][0].value)
        for number in range(14):
            at = first + number * TICK_US
            assert shard.store.reader.offset_at(KEY, at) == number * 10
            assert shard.store.reader.offset_at(KEY, at + 1) == number * 10 + 10

    def test_an_unplaced_segment_is_asked_by_its_pieces(self, shard):
        shard.store.keeper.sealer = Stubborn({140})
        shard.append_many(12)
        shard.checkpoint()
        (unsealed,) = shard.unsealed
        assert unsealed.first == 140
        times = self.times(shard)
        for wanted in {t + d for t in times for d in (0, 1)}:
            expected = next((n for n, t in enumerate(times) if t >= wanted), len(times))
            assert shard.store.reader.offset_at(KEY, wanted) == expected

    def test_rows_of_one_publish_have_one_time(self, shard):
        writer = b"p" * 16
        receipts = [
            shard.one(staging(KEY, some_rows(190 + 5 * n, 5), writer, 1, (bytes([n] * 16), 0)))
            for n in range(3)
        ]
        shard.append(1)
        shard.one(publishing(KEY, writer, 1, [one.receipt for one in receipts]))
        times = self.times(shard)
        assert len(set(times[191:206])) == 1
        assert times == sorted(times)
        assert shard.store.reader.offset_at(KEY, times[191]) == 191
        assert shard.store.reader.offset_at(KEY, times[190] + 1) == 191


def layered_as(shard):
    """As `layered`, whatever becomes a segment."""
    shard.append_many(14)
    for _ in range(3):
        shard.checkpoint()
        shard.append_many(1)
    shard.checkpoint()
    shard.append_many(2)


class TestColumns:
    @pytest.mark.parametrize(
        "columns",
        [["id"], ["name", "id"], ["_offset"], ["_timestamp", "name", "_partition"]],
    )
    def test_columns_come_as_asked_from_every_place(self, shard, columns):
        found = read(shard, 130, 190, columns=columns)
        assert found.column_names == columns
        assert found.equals(read(shard, 130, 190).select(columns))

    def test_a_column_that_is_not_there_suggests_one_that_is(self, shard):
        with pytest.raises(BadRequest, match=r"no column 'nam'.*Did you mean 'name'\?"):
            read(shard, 0, 1, columns=["nam"])
        with pytest.raises(BadRequest, match=r"no column 'zzz'$"):
            read(shard, 0, 1, columns=["zzz"])

    @pytest.mark.parametrize("columns", [[], ["id", "id"], ["_offset", "id", "_offset"]])
    def test_no_column_and_one_twice_are_refused(self, shard, columns):
        with pytest.raises(BadRequest):
            read(shard, 0, 190, columns=columns)

    def test_only_a_column_that_is_newer_than_the_rows(self, shard):
        shard.one(evolving(KEY, 2, NEWER))
        shard.append(schema=NEWER, schema_id=2)
        found = read(shard, 130, 200, columns=["note"])
        assert found.column_names == ["note"]
        assert found["note"].to_pylist() == [None] * 60 + [f"note {n}" for n in range(190, 200)]


class TestVersions:
    @pytest.fixture
    def evolved(self):
        """Rows 0..30 narrow, 30..60 wide with a note, of which 50..60 came as the old ones."""
        shard = a_shard()
        shard.one(closing(KEY, Revision(1)))
        key = Key(Namespace(1 << 24), Revision(3))
        shard.open_partition(key, [NARROW])
        shard.append_many(3, key=key, schema=NARROW)
        shard.one(evolving(Key(key.namespace, TOPIC_CREATED), 2, WIDE))
        shard.append_many(2, key=key, schema=WIDE, schema_id=2)
        shard.append(key=key, schema=NARROW, schema_id=1)
        return shard, key

    def wide_rows(self):
        notes = [None] * 30 + [f"note {n}" for n in range(30, 50)] + [None] * 10
        return pa.table([pa.array(range(60), pa.int64()), notes], schema=WIDE)

    def test_older_rows_are_widened_and_filled_before_and_after_sealing(self, evolved):
        shard, key = evolved
        before = shard.rows(key=key)
        assert before.select(["id", "note"]).equals(self.wide_rows())
        for _ in range(4):
            shard.checkpoint()
        partition = shard.store.machine.state.partitions[key.namespace]
        assert [(one.first, one.end, one.version) for one in partition.segments] == [
            (0, 30, 1),
            (30, 60, 2),
        ]
        assert not partition.runs
        assert shard.rows(key=key).equals(before)
        shard.store.reader.decoded.clear()
        assert shard.rows(key=key, columns=["note", "id"]).equals(
            self.wide_rows().select(["note", "id"])
        )

    def test_rows_are_shown_in_the_version_asked_for(self, evolved):
        shard, key = evolved
        for _ in range(5):
            found = shard.rows(0, 30, key=key, version=1)
            assert found.schema.field("id").type == pa.int32()
            assert found.column_names[3:] == ["id"]
            assert found["id"].to_pylist() == list(range(30))
            assert shard.rows(0, 30, key=key).schema.field("id").type == pa.int64()
            shard.checkpoint()

    def test_a_version_older_than_the_rows_is_refused(self, evolved):
        shard, key = evolved
        for _ in range(2):
            with pytest.raises(BadRequest, match=r"schema version 2.*Read with version 2"):
                shard.rows(0, 31, key=key, version=1)
            with pytest.raises(BadRequest, match="schema version 3 does not exist"):
                shard.rows(0, 1, key=key, version=3)
            with pytest.raises(BadRequest, match="no column 'note'"):
                shard.rows(0, 30, key=key, version=1, columns=["note"])
            shard.checkpoint()

    def test_staged_with_an_old_schema_and_published_under_a_new_one(self, shard):
        writer = b"p" * 16
        staged = shard.one(staging(KEY, some_rows(190, 5), writer, 1, (b"s" * 16, 0)))
        shard.one(evolving(KEY, 2, NEWER))
        shard.one(publishing(KEY, writer, 1, [staged.receipt]))
        found = read(shard, 185, 195)
        assert found["note"].to_pylist() == [None] * 10
        for _ in range(4):
            shard.checkpoint()
        assert not shard.partition.runs
        assert read(shard, 185, 195).equals(found)

    def test_a_schema_of_the_other_life_is_not_remembered(self, shard):
        assert "name" in shard.rows().column_names
        shard.one(closing(KEY, Revision(5)))
        again = Key(KEY.namespace, Revision(6))
        shard.one(opening(again, [WIDE], Revision(6), Revision(6)))
        shard.one(appending(again, some_rows(0, 2, WIDE), b"w" * 16, 1))
        assert shard.rows(key=again).column_names[3:] == ["id", "note"]


class TestTrimmed:
    def test_what_was_trimmed_is_expired_and_the_rest_is_there(self, shard):
        for first in (1, 70, 139, 140, 141, 155, 175, 190):
            shard.one(trimming(KEY, Offset(first)))
            with pytest.raises(Expired) as caught:
                read(shard, first - 1, 190)
            assert (caught.value.offset, caught.value.first) == (first - 1, first)
            if first < 190:
                assert shard.ids() == list(range(first, 190))

    def test_a_trim_under_a_reader_ends_it_with_expired_never_with_other_rows(self, shard):
        batches = shard.store.reader.read(KEY, Offset(140), Offset(190))
        assert next(batches)["id"].to_pylist() == list(range(140, 150))
        shard.one(trimming(KEY, Offset(160)))
        with pytest.raises(Expired) as caught:
            next(batches)
        assert (caught.value.offset, caught.value.first) == (150, 160)

    def test_a_trim_below_a_reader_is_none_of_its_business(self, shard):
        batches = shard.store.reader.read(KEY, Offset(140), Offset(190))
        next(batches)
        shard.one(trimming(KEY, Offset(150)))
        assert table_of(batches)["id"].to_pylist() == list(range(150, 190))

    def test_a_close_under_a_reader_ends_it(self, shard):
        batches = shard.store.reader.read(KEY, Offset(0), Offset(190))
        next(batches)
        shard.one(closing(KEY, Revision(5)))
        with pytest.raises(PartitionUnknown):
            list(batches)

    def test_after_a_purge_offsets_go_on(self, shard):
        shard.one(purging(KEY))
        assert shard.store.reader.bounds(KEY) == (190, 190)
        shard.append()
        assert shard.ids() == list(range(190, 200))
        with pytest.raises(Expired):
            read(shard, 0, 200)


class TestDamage:
    def test_a_rotten_row_group_is_named_and_the_others_are_served(self, monkeypatch):
        monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS_MAX", 50)
        monkeypatch.setattr(stream, "BLOCK_SIZE", 64)
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        assert shard.ids(0, 1) == [0]  # open, and proven whole
        file = next(iter(shard.store.keeper.files.open.values()))
        column = file._metadata.row_group(1).column(3)
        at = column.data_page_offset + column.total_compressed_size // 2
        disk.flip(path, at * 8)
        with pytest.raises(CorruptSegment) as caught:
            read(shard, 40, 60)
        assert caught.value.path == path
        assert caught.value.row_group == 1
        assert shard.ids(0, 50) == list(range(50))
        assert shard.ids(100, 140) == list(range(100, 140))

    def test_rows_before_the_damage_are_given_and_then_the_error(self, monkeypatch):
        monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS_MAX", 50)
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        batches = shard.store.reader.read(KEY, Offset(0), Offset(140), columns=["id"])
        assert next(batches).num_rows == 50
        disk.cut(path, 10)
        with pytest.raises(CorruptSegment, match="row group 1"):
            next(batches)

    def test_a_segment_that_no_file_and_no_piece_holds_is_lost_by_name(self, shard):
        (segment,) = shard.segments
        segment.place = Unplaced((), "no snapshot says where it is")
        with pytest.raises(CorruptSegment, match="offsets 0 to 140 are lost: no snapshot"):
            shard.ids(0, 5)
        assert shard.ids(140, 190) == list(range(140, 190))


def test_a_batch_of_an_answer_has_the_types_of_the_schema(shard):
    for batch in shard.store.reader.read(KEY, Offset(0), Offset(190)):
        assert batch.schema.names == ["_partition", "_offset", "_timestamp", "id", "name"]
        assert [each.nullable for each in batch.schema] == [False] * 3 + [True] * 2
        assert batch.schema.field("id").type == SCHEMA.field("id").type
        batch.validate(full=True)
