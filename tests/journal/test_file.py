"""A journal file: names, header blocks, room, and holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.builders import FILE_SIZE, a_file_header
from xxhash import xxh3_128_digest

from headrace.errors import ForeignFile, UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.frame import FRAME_SIZE_MAX, PREFIX_SIZE, aligned
from headrace.journal.journal_file import (
    BLOCK_SIZE,
    FIRST_POSITION,
    TAIL_SIZE,
    FileHeader,
    JournalFile,
    check_identity,
    decode_block,
    encode_block,
    file_name,
    first_op_of,
    size_for,
    write_header,
)
from headrace.model.ids import GroupId, Op
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk

u64 = st.integers(0, 2**64 - 1)
sixteen = st.binary(min_size=16, max_size=16)


class TestNames:
    @given(st.integers(1, 10**20 - 1))
    def test_an_op_comes_back_from_its_name(self, op):
        assert first_op_of(file_name(Op(op))) == op

    def test_names_sort_as_their_ops_do(self):
        ops = [1, 9, 10, 11, 99, 100, 10**12]
        assert sorted(file_name(Op(op)) for op in ops) == [file_name(Op(op)) for op in ops]

    @pytest.mark.parametrize(
        "name", ["1.wal", "1" * 20, "1" * 20 + ".wal.tmp", "x.wal", "", "0" * 20 + ".wal"]
    )
    def test_anything_else_is_no_live_name(self, name):
        assert first_op_of(name) is None


class TestHeaderBlock:
    @given(
        u64,
        sixteen,
        st.integers(0, 2**32 - 1),
        st.integers(1, 2**64 - 1),
        sixteen,
        st.integers(3, 2**20),
    )
    def test_comes_back(self, file_id, cluster, group, first_op, parent, block_count):
        size = block_count * BLOCK_SIZE
        header = FileHeader(file_id, cluster, group, Op(first_op), parent, size)
        block = encode_block(header)
        assert len(block) == BLOCK_SIZE
        assert decode_block(block, "x") == header

    @pytest.mark.parametrize(
        "change",
        [
            {"first_op": Op(0)},
            {"size": 0},
            {"size": FIRST_POSITION},
            {"size": FILE_SIZE + 1},
            {"size": 2**41},
        ],
        ids=str,
    )
    def test_numbers_that_no_file_of_ours_has_are_a_flaw(self, change):
        found = decode_block(encode_block(a_file_header(**change)), "x")
        assert isinstance(found, Flaw)
        assert found.what == "first op and size"

    @given(st.binary(max_size=100), st.booleans())
    def test_arbitrary_bytes_are_a_flaw(self, data, padded):
        data = data.ljust(BLOCK_SIZE, b"\0") if padded else data
        assert isinstance(decode_block(data, "x"), Flaw)

    @given(st.integers(0, BLOCK_SIZE - 1), st.integers(1, 255))
    def test_no_single_byte_can_change_unnoticed(self, at, change):
        block = bytearray(encode_block(a_file_header()))
        block[at] ^= change
        assert isinstance(decode_block(bytes(block), "x"), Flaw)

    def test_one_of_a_newer_release_says_so(self):
        block = bytearray(encode_block(a_file_header()))
        block[26:28] = b"\4\0"
        whole = xxh3_128_digest(bytes(block[16:])) + bytes(block[16:])
        with pytest.raises(UnsupportedFormat) as caught:
            decode_block(whole, "journal/x.wal")
        assert (caught.value.path, caught.value.found) == ("journal/x.wal", 4)

    def test_one_of_a_newer_release_that_this_one_can_read_is_read(self):
        block = bytearray(encode_block(a_file_header()))
        block[24:26] = b"\2\0"
        whole = xxh3_128_digest(bytes(block[16:])) + bytes(block[16:])
        assert decode_block(whole, "x") == a_file_header()

    @pytest.mark.parametrize(
        ("field", "change"), [("cluster", {"cluster": bytes(16)}), ("group", {"group": 9})]
    )
    def test_one_of_another_identity_is_foreign(self, field, change):
        check_identity(a_file_header(), SOLO, "x")
        with pytest.raises(ForeignFile) as caught:
            check_identity(a_file_header(**change), SOLO, "journal/x.wal")
        assert (caught.value.path, caught.value.field) == ("journal/x.wal", field)

    def test_both_blocks_are_equal(self):
        disk = MemoryDisk()
        disk.put("f", bytes(FILE_SIZE))
        write_header(disk.root.open("f", writable=True), a_file_header())
        data = disk.content("f")
        assert data[:BLOCK_SIZE] == data[BLOCK_SIZE:FIRST_POSITION]
        assert decode_block(data, "f") == a_file_header()
        assert GroupId(a_file_header().group) == SOLO.group


class TestRoom:
    def a_file(self, size=FILE_SIZE):
        disk = MemoryDisk()
        disk.put("f", bytes(size))
        return JournalFile(disk.root.open("f"), a_file_header(size=size))

    def test_behind_an_entry_there_is_always_room_for_a_mark_and_the_end(self):
        file = self.a_file()
        room = FILE_SIZE - FIRST_POSITION - TAIL_SIZE
        assert file.fits(room)
        assert not file.fits(room + 1)
        file.end += aligned(room)
        assert file.header.size - file.end >= 2 * PREFIX_SIZE
        assert not file.fits(1)

    @given(st.integers(1, 1_000_000))
    def test_a_file_made_for_a_frame_fits_it(self, frame_size):
        size = size_for(frame_size, FILE_SIZE)
        assert size % BLOCK_SIZE == 0
        assert size >= FILE_SIZE
        assert JournalFile(MemoryDisk().root.create("f"), a_file_header(size=size)).fits(
            frame_size
        )

    def test_no_file_is_larger_than_its_frame_needs(self):
        assert size_for(10, FILE_SIZE) == FILE_SIZE
        assert size_for(FRAME_SIZE_MAX, FILE_SIZE) - FRAME_SIZE_MAX < 4 * BLOCK_SIZE


class TestHolds:
    def test_a_free_file_may_be_used_again(self):
        assert TestRoom().a_file().retire()

    def test_a_held_file_may_not_and_closes_with_its_last_holder(self):
        file = TestRoom().a_file()
        with file.hold() as first, file.hold() as second:
            assert (first, second) == (True, True)
            assert not file.retire()
            assert file.storage.read(0, 1) == b"\0"
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.storage.read(0, 1)

    def test_a_drained_file_cannot_be_held(self):
        file = TestRoom().a_file()
        file.retire()
        with file.hold() as held:
            assert held is False
        assert file.holds == 0
