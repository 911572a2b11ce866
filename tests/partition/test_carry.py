"""A carry file gives back the very entries or names the flaw; it is whole or not there."""

import errno
import gc
import os
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.builders import Recorder, an_entry, effects_of
from xxhash import xxh3_128_digest

from headrace.errors import (
    CorruptEntry,
    DiskFull,
    ForeignFile,
    StorageFailed,
    UnsupportedFormat,
)
from headrace.journal.entry import BODY_SIZE_MAX, HEADER_SIZE, Entry, Flaw
from headrace.model.ids import OP_MAX, GroupId, Op
from headrace.partition.files import carry as carry_module
from headrace.partition.files.carry import (
    STREAM_SIZE,
    CarryFile,
    Item,
    carry_name,
    op_of,
    open_carry,
    write_carry,
)
from headrace.storage.file import FileDirectory
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Fail, LoseSync, choices
from headrace_lab.disk.memory import MemoryDisk

SEAL = Op(9)
NAME = "00000000000000000009.carry"
ENTRIES = {
    op: an_entry(op, body=body) for op, body in ((3, b""), (5, b"x" * 64), (8, b"y" * 100))
}
TABLE_SIZE = 256  # header, three rows, padding
EIO_TEXT = os.strerror(errno.EIO)
SIZE = TABLE_SIZE + 256 + 320 + 384
# By op: where its entry begins and ends, and where its padding ends.
PLACES = {3: (256, 512, 512), 5: (512, 832, 832), 8: (832, 1188, 1216)}

_HEADER = struct.Struct("<16s8sHHI16sQQ16sI44s")
_FIXED = ["checksum", "magic", "format", "reader_min", "group", "cluster"]
_HEADER_FIELDS = [*_FIXED, "op", "size", "index_checksum", "entry_count", "zeros"]
_ROW = struct.Struct("<QQII16s")


def an_item(entry: Entry) -> Item:
    return Item(entry.op, HEADER_SIZE + len(entry.body), entry.checksum)


def written(directory, entries=ENTRIES, identity=SOLO, op=SEAL) -> CarryFile:
    items = [an_item(entry) for entry in entries.values()]
    return write_carry(directory, identity, op, items, entries.__getitem__)


def a_disk() -> MemoryDisk:
    """Return a disk with one small carry file."""
    disk = MemoryDisk()
    written(disk.root).close()
    assert len(disk.content(NAME)) == SIZE
    return disk


def opened(disk, op=SEAL) -> CarryFile:
    found = open_carry(disk.root, SOLO, op)
    assert isinstance(found, CarryFile)
    return found


def flaw(disk, op=SEAL) -> str:
    """Open a file that must not open, and return what is wrong."""
    found = open_carry(disk.root, SOLO, op)
    assert isinstance(found, Flaw)
    return found.what


def readable(carry: CarryFile) -> set[int]:
    """Return the ops that can be read; what is read must be the very entry."""
    found = {op: carry.read(Op(op)) for op in ENTRIES}
    whole = {op for op, entry in found.items() if isinstance(entry, Entry)}
    assert all(found[op] == ENTRIES[op] for op in whole)
    return whole


def is_whole(carry: object) -> bool:
    if not isinstance(carry, CarryFile):
        return False
    return readable(carry) == set(ENTRIES) and carry.check() is None


def forged(data: bytes, rows=None, **changes) -> bytes:
    """Return a file whose checksums agree with what was changed in its header and rows."""
    fields = dict(zip(_HEADER_FIELDS, _HEADER.unpack_from(data), strict=True))
    if rows is not None:
        index = b"".join(_ROW.pack(*row) for row in rows)
        data = data[: _HEADER.size] + index + data[_HEADER.size + len(index) :]
        fields["index_checksum"] = xxh3_128_digest(index)
    fields.update(changes)
    rest = _HEADER.pack(*fields.values())[16:]
    return xxh3_128_digest(rest) + rest + data[_HEADER.size :]


def rows_of(data: bytes) -> list[list]:
    rows = data[_HEADER.size : _HEADER.size + 3 * _ROW.size]
    return [list(row) for row in _ROW.iter_unpack(rows)]


def descriptor_count() -> int:
    gc.collect()  # what other tests have left must not go between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def small_writes(monkeypatch):
    """Let one write take two of the small entries, so that a file needs several."""
    monkeypatch.setattr(carry_module, "STREAM_SIZE", 600)


@pytest.fixture(params=["file", "memory"])
def directory(request, tmp_path):
    if request.param == "memory":
        yield MemoryDisk().root
        return
    with FileDirectory.open_root(str(tmp_path / "carry"), create=True) as root:
        yield root


class TestNames:
    def test_a_name_is_the_op_in_twenty_digits(self):
        assert carry_name(SEAL) == NAME
        assert op_of(NAME) == SEAL
        assert op_of(carry_name(OP_MAX)) == OP_MAX

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "9.carry",
            "x" + NAME,
            NAME + ".tmp",
            NAME + "\n",
            "0000000000000000000९.carry",
            "99999999999999999999.carry",
            "00000000000000000009.snap",
        ],
    )
    def test_any_other_name_has_no_op(self, name):
        assert op_of(name) is None


class TestRoundTrip:
    def test_entries_come_back_from_the_writer_and_after_opening(self, directory):
        carry = written(directory)
        again = open_carry(directory, SOLO, SEAL)
        assert isinstance(again, CarryFile)
        for found in (carry, again):
            assert is_whole(found)
            assert list(found.ops) == [3, 5, 8]
            assert (found.op, found.name, found.size) == (SEAL, NAME, SIZE)
            assert found.path.endswith(NAME)
            assert found.checksum == carry.checksum
            found.close()

    def test_it_knows_its_ops_and_no_others(self):
        carry = opened(a_disk())
        assert [op for op in range(12) if Op(op) in carry] == [3, 5, 8]
        assert "3" not in carry
        for op in (0, 4, 9, OP_MAX, 2**80):
            assert op not in carry
            assert isinstance(carry.read(Op(op)), Flaw)

    def test_an_item_is_what_was_given_and_a_place_leads_to_the_bytes(self):
        disk = a_disk()
        carry = opened(disk)
        for op, entry in ENTRIES.items():
            assert carry.item(Op(op)) == an_item(entry)
            _, position, size, *_ = carry.row(Op(op))
            assert position % 64 == 0
            verbatim = disk.content(NAME)[position : position + size]
            assert verbatim == entry.sealed + bytes(entry.body)
            assert (position, position + size) == PLACES[op][:2]

    @settings(deadline=None)
    @given(st.dictionaries(st.integers(1, 2**63 - 2), st.binary(max_size=700), max_size=9))
    def test_any_entries_come_back(self, bodies):
        disk = MemoryDisk()
        entries = {op: an_entry(op, body=bodies[op]) for op in sorted(bodies)}
        written(disk.root, entries, op=OP_MAX)
        carry = opened(disk, OP_MAX)
        assert list(carry.ops) == list(entries)
        assert {op: carry.read(Op(op)) for op in carry.ops} == entries
        assert carry.check() is None

    def test_no_entries_make_a_file_of_its_header(self, directory):
        carry = written(directory, {})
        again = open_carry(directory, SOLO, SEAL)
        assert isinstance(again, CarryFile)
        for found in (carry, again):
            assert (len(found.ops), found.size, found.check()) == (0, 128, None)
            assert Op(1) not in found
            found.close()

    def test_equal_entries_make_equal_files_and_others_another_name(self):
        one, other = a_disk(), a_disk()
        assert one.content(NAME) == other.content(NAME)
        fewer = {op: ENTRIES[op] for op in (3, 5)}
        assert written(other.root, fewer).checksum != opened(one).checksum

    def test_it_may_be_written_again_after_a_checkpoint_that_failed(self, directory):
        with_old = written(directory)
        written(directory).close()
        again = open_carry(directory, SOLO, SEAL)
        assert is_whole(again)
        assert is_whole(with_old)
        assert directory.names() == [NAME]
        for carry in (with_old, again):
            carry.close()


class TestSize:
    def test_entries_of_the_largest_size_come_back(self, directory):
        body = bytes(BODY_SIZE_MAX)
        entries = {1: an_entry(1, body=body), 2: an_entry(2), 3: an_entry(3, body=body)}
        written(directory, entries).close()
        carry = open_carry(directory, SOLO, SEAL)
        assert isinstance(carry, CarryFile)
        assert carry.read(Op(3)) == entries[3]
        assert carry.read(Op(2)) == entries[2]
        assert carry.check() is None
        carry.close()

    def test_a_write_holds_at_most_the_stream_size_or_one_larger_entry(self):
        sizes = [3, 3, 3, 9, 1, 6, 1, 1]
        eighth = STREAM_SIZE // 8
        entries = {
            op: an_entry(op, body=bytes(size * eighth))
            for op, size in enumerate(sizes, start=1)
        }
        disk = MemoryDisk()
        effects = effects_of(disk, lambda: written(disk.root, entries))
        writes = [effect.size for effect in effects if effect.kind == "write"][1:]
        assert [round(size / eighth) for size in writes] == [6, 3, 9, 7, 2]
        assert sorted(writes)[-2] <= STREAM_SIZE

    def test_a_file_is_streamed_and_never_built_in_memory(self, tmp_path):
        mib = 1024 * 1024
        count = 40
        entries = {op: an_entry(op, body=bytes([op]) * mib) for op in range(1, count + 1)}
        items = [an_item(entry) for entry in entries.values()]

        def read(op):
            return replace(entries[op], body=bytes([op]) * mib)

        with FileDirectory.open_root(str(tmp_path), create=False) as root:
            tracemalloc.start()
            carry = write_carry(root, SOLO, Op(99), items, read)
            assert carry.check() is None
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            carry.close()
        assert peak < STREAM_SIZE + 2 * mib
        assert carry.size > count * mib

    def test_thousands_of_ops_cost_little_memory(self):
        disk = MemoryDisk()
        count = 10_000
        written(disk.root, {op: an_entry(op, body=b"") for op in range(1, count + 1)}, op=count)
        tracemalloc.start()
        carry = opened(disk, Op(count))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held / count < 60
        assert carry.read(Op(7777)) == an_entry(7777, body=b"")


class TestRot:
    def test_no_single_byte_can_change_unnoticed(self):
        disk = a_disk()
        data = disk.content(NAME)
        for position in range(SIZE):
            for mask in (1 << position % 8, 0xFF):
                rotten = bytearray(data)
                rotten[position] ^= mask
                disk.put(NAME, bytes(rotten))
                self.judge(disk, position)

    def judge(self, disk, position):
        found = open_carry(disk.root, SOLO, SEAL)
        if position < TABLE_SIZE:
            assert isinstance(found, Flaw)
            return
        assert isinstance(found, CarryFile)
        hit = {op for op, (start, end, _) in PLACES.items() if start <= position < end}
        assert readable(found) == set(ENTRIES) - hit
        owner = next(op for op, place in PLACES.items() if position < place[2])
        rot = found.check()
        assert rot is not None
        assert rot.what.startswith(f"op {owner}: ")

    def test_one_that_rots_while_it_is_open_is_noticed_too(self):
        disk = a_disk()
        data = disk.content(NAME)
        carry = opened(disk)
        for position in range(SIZE):
            disk.flip(NAME, position * 8)
            assert readable(carry) >= {
                op for op, (start, end, _) in PLACES.items() if not start <= position < end
            }
            assert isinstance(carry.check(), Flaw)
            disk.flip(NAME, position * 8)
        assert disk.content(NAME) == data
        assert is_whole(carry)

    def test_one_cut_at_any_length_is_a_flaw(self):
        disk = a_disk()
        data = disk.content(NAME)
        carry = opened(disk)
        for size in range(SIZE):
            disk.put(NAME, data[:size])
            assert flaw(disk)
            assert readable(carry) == {op for op, place in PLACES.items() if place[1] <= size}
            assert isinstance(carry.check(), Flaw)

    def test_one_that_grew_is_a_flaw(self):
        disk = a_disk()
        carry = opened(disk)
        disk.put(NAME, disk.content(NAME) + bytes(64))
        assert flaw(disk) == "size of the carry file"
        assert isinstance(carry.check(), Flaw)

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=400))
    def test_arbitrary_bytes_are_a_flaw(self, data):
        disk = MemoryDisk()
        disk.put(NAME, data)
        assert flaw(disk)

    def test_a_whole_entry_in_the_place_of_another_is_a_flaw(self):
        disk = a_disk()
        other = an_entry(5, parent=b"p" * 16, body=b"x" * 64)
        disk.overwrite(NAME, PLACES[5][0], other.sealed + bytes(other.body))
        carry = opened(disk)
        assert readable(carry) == {3, 8}
        rot = carry.check()
        assert rot is not None
        assert rot.what == "op 5: entry, by the carry index"

    def test_the_check_looks_at_the_platter_and_not_at_the_cache(self):
        disk = a_disk()
        right = disk.content(NAME)
        disk.flip(NAME, 600 * 8)
        carry = opened(disk)
        file = disk.root.open(NAME, writable=True)
        file.write(0, [right])
        disk.hook = lambda effect: LoseSync()
        with pytest.raises(OSError, match="error"):
            file.sync()
        assert readable(carry) == set(ENTRIES)
        assert isinstance(carry.check(), Flaw)

    def test_a_missing_file_is_a_flaw(self, directory):
        found = open_carry(directory, SOLO, SEAL)
        assert found == Flaw("file is missing", NAME, "nothing")

    def test_a_name_that_is_no_file_is_a_flaw(self, directory):
        directory.child(NAME, make=True)
        found = open_carry(directory, SOLO, SEAL)
        assert isinstance(found, Flaw)
        assert found.what == "file cannot be opened"

    def test_sectors_that_cannot_be_read_are_flaws(self):
        disk = a_disk()
        carry = opened(disk)
        for bad in (0, 130, 300, 600, 1000):
            disk.read_fault = lambda _, at, size, bad=bad: (
                errno.EIO if at <= bad < at + size else None
            )
            if bad < TABLE_SIZE:
                assert flaw(disk) == "carry file is unreadable"
            hit = {op for op, (start, end, _) in PLACES.items() if start <= bad < end}
            assert readable(carry) == set(ENTRIES) - hit
            assert carry.check() == Flaw("carry file is unreadable", "bytes", EIO_TEXT)

    def test_a_refused_file_is_closed(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path), create=False) as root:
            before = descriptor_count()
            written(root).close()
            data = (tmp_path / NAME).read_bytes()
            (tmp_path / NAME).write_bytes(data[:-1])
            assert isinstance(open_carry(root, SOLO, SEAL), Flaw)
            (tmp_path / NAME).write_bytes(forged(data, group=7))
            with pytest.raises(ForeignFile) as caught:
                open_carry(root, SOLO, SEAL)
            # The error holds its frames, and they hold the file: nobody else would close it.
            assert caught.value.__traceback__ is not None
            assert descriptor_count() == before


class TestForgery:
    """Checksums that agree do not make a header or an index believable."""

    def refused(self, **changes) -> str:
        disk = a_disk()
        disk.put(NAME, forged(disk.content(NAME), **changes))
        reads = []
        disk.read_fault = lambda path, at, size: reads.append(size)
        what = flaw(disk)
        assert max(reads) <= SIZE
        return what

    def test_the_forger_forges_well(self):
        disk = a_disk()
        data = disk.content(NAME)
        assert forged(data, rows=rows_of(data)) == data

    def test_another_magic(self):
        assert self.refused(magic=b"HRsnapsh") == "magic of the carry file"

    def test_a_size_that_is_not_the_files(self):
        assert self.refused(size=2**64 - 1) == "size of the carry file"

    @pytest.mark.parametrize("count", [4, 1000, 2**32 - 1])
    def test_more_entries_than_fit_are_never_read(self, count):
        assert self.refused(entry_count=count) == "entries of the carry file"

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_another_count_of_entries(self, count):
        assert self.refused(entry_count=count) == "checksum of the carry index"

    def test_a_row_behind_the_last_one(self):
        rows = rows_of(a_disk().content(NAME))[:2]
        assert self.refused(rows=rows, entry_count=2) == "padding of the carry index"

    def test_an_entry_behind_the_last_one(self):
        disk = a_disk()
        disk.overwrite(NAME, _HEADER.size + 2 * _ROW.size, bytes(_ROW.size))
        data = disk.content(NAME)
        disk.put(NAME, forged(data, rows=rows_of(data)[:2], entry_count=2))
        assert flaw(disk) == "end of the carried entries"

    @pytest.mark.parametrize(
        ("place", "field", "value", "what"),
        [
            (0, 0, 0, "op in the carry index"),
            (1, 0, 3, "op in the carry index"),
            (1, 0, 2, "op in the carry index"),
            (2, 0, 10, "op in the carry index"),
            (0, 1, 0, "position of op 3 in the carry index"),
            (1, 1, 256, "position of op 5 in the carry index"),
            (1, 1, 2**64 - 1, "position of op 5 in the carry index"),
            (0, 2, 255, "size of op 3"),
            (0, 2, 2**32 - 1, "size of op 3"),
            (0, 2, 257, "position of op 5 in the carry index"),
            (2, 2, 300, "end of the carried entries"),
            (2, 2, 1024, "end of the carried entries"),
        ],
    )
    def test_a_row_out_of_order_or_bounds(self, place, field, value, what):
        rows = rows_of(a_disk().content(NAME))
        rows[place][field] = value
        assert self.refused(rows=rows) == what

    def test_a_file_under_the_name_of_another(self):
        disk = a_disk()
        disk.put(carry_name(Op(8)), disk.content(NAME))
        assert open_carry(disk.root, SOLO, Op(8)) == Flaw("op of the carry file", 8, 9)

    @pytest.mark.parametrize(
        ("field", "stranger"),
        [
            ("cluster", replace(SOLO, cluster=bytes(16))),
            ("group", replace(SOLO, group=GroupId(5))),
        ],
    )
    def test_one_of_another_group_is_refused(self, field, stranger):
        disk = MemoryDisk()
        written(disk.root, identity=stranger)
        with pytest.raises(ForeignFile) as caught:
            open_carry(disk.root, SOLO, SEAL)
        assert (caught.value.path, caught.value.field) == (NAME, field)

    def test_one_that_needs_a_newer_reader_is_refused(self):
        disk = a_disk()
        disk.put(NAME, forged(disk.content(NAME), format=3, reader_min=3))
        with pytest.raises(UnsupportedFormat) as caught:
            open_carry(disk.root, SOLO, SEAL)
        assert caught.value.path == NAME

    def test_one_of_a_newer_format_that_we_can_read_is_read(self):
        disk = a_disk()
        disk.put(NAME, forged(disk.content(NAME), format=3))
        assert is_whole(opened(disk))


WRONG = {
    "another entry": an_entry(5, parent=b"p" * 16, body=b"x" * 64),
    "another op": an_entry(4, body=b"x" * 64),
    "a rotten body": replace(ENTRIES[5], body=b"x" * 63 + b"y"),
    "a short body": replace(ENTRIES[5], body=b"x" * 63),
    "a rotten header": replace(ENTRIES[5], sealed=ENTRIES[5].sealed[:-1] + b"!"),
    "a long header": replace(ENTRIES[5], sealed=ENTRIES[5].sealed + b"!"),
    "no header": replace(ENTRIES[5], sealed=b""),
}


class TestWhatIsCarried:
    """Another entry than the item's is never written."""

    @pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
    def test_an_entry_that_is_not_its_items_is_corrupt(self, wrong):
        disk = MemoryDisk()
        items = [an_item(entry) for entry in ENTRIES.values()]
        with pytest.raises(CorruptEntry, match="op 5") as caught:
            write_carry(disk.root, SOLO, SEAL, items, {**ENTRIES, 5: wrong}.__getitem__)
        assert caught.value.path == NAME
        assert disk.files() == []

    def test_an_item_of_another_size_is_corrupt(self):
        disk = MemoryDisk()
        items = [an_item(ENTRIES[3])._replace(size=HEADER_SIZE + 1)]
        with pytest.raises(CorruptEntry):
            write_carry(disk.root, SOLO, SEAL, items, ENTRIES.__getitem__)
        assert disk.files() == []

    @pytest.mark.parametrize(
        "error",
        [
            CorruptEntry("rotten", path="journal"),
            StorageFailed("journal", "write", OSError(errno.ENOSPC, "full")),
        ],
        ids=["corrupt", "storage"],
    )
    def test_what_the_source_raises_comes_out_unchanged(self, error):
        disk = MemoryDisk()

        def read(op):
            if op == 8:
                raise error
            return ENTRIES[op]

        items = [an_item(entry) for entry in ENTRIES.values()]
        with pytest.raises(type(error)) as caught:
            write_carry(disk.root, SOLO, SEAL, items, read)
        assert caught.value is error
        assert disk.files() == []

    def test_each_entry_is_read_once_and_in_order(self):
        asked = []

        def read(op):
            asked.append(op)
            return ENTRIES[op]

        items = [an_item(entry) for entry in ENTRIES.values()]
        write_carry(MemoryDisk().root, SOLO, SEAL, items, read)
        assert asked == [3, 5, 8]


class TestGlance:
    """What a glance finds is taken only if it is the very entry, else a read decides."""

    items = tuple(an_item(entry) for entry in ENTRIES.values())
    bytes_of = {op: entry.sealed + bytes(entry.body) for op, entry in ENTRIES.items()}  # noqa: RUF012

    def write(self, disk, found, entries=ENTRIES):
        """Write a file of what a glance has found; return the ops that were read carefully."""
        read = []

        def careful(op):
            read.append(op)
            return entries[op]

        def glance(items):
            return [found.get(item.op) for item in items]

        write_carry(disk.root, SOLO, SEAL, self.items, careful, glance)
        return read

    def test_entries_that_it_has_are_not_read_again(self):
        disk = MemoryDisk()
        assert self.write(disk, self.bytes_of) == []
        assert disk.content(NAME) == a_disk().content(NAME)

    def test_what_it_lacks_is_read(self):
        disk = MemoryDisk()
        assert self.write(disk, {5: self.bytes_of[5]}) == [3, 8]
        assert disk.content(NAME) == a_disk().content(NAME)

    def test_no_byte_of_it_is_believed_unchecked(self):
        for op, right in self.bytes_of.items():
            for position in range(len(right)):
                wrong = bytearray(right)
                wrong[position] ^= 1 << position % 8
                disk = MemoryDisk()
                assert self.write(disk, {**self.bytes_of, op: memoryview(wrong)}) == [op]
                assert disk.content(NAME) == a_disk().content(NAME)

    @pytest.mark.parametrize("wrong", [b"", bytes(256), bytes_of[3], bytes_of[5] + b"x"])
    def test_other_bytes_are_none(self, wrong):
        disk = MemoryDisk()
        assert self.write(disk, {**self.bytes_of, 5: wrong}) == [5]
        assert disk.content(NAME) == a_disk().content(NAME)

    def test_if_both_are_wrong_nothing_is_written(self):
        disk = MemoryDisk()
        wrong = an_entry(5, body=b"z" * 64)
        with pytest.raises(CorruptEntry, match="op 5"):
            self.write(disk, {5: self.bytes_of[8]}, {**ENTRIES, 5: wrong})
        assert disk.files() == []

    def test_it_is_asked_for_each_once_in_order_and_for_no_more_than_one_write(self):
        asked = []

        def glance(items):
            asked.append([item.op for item in items])
            return [self.bytes_of[item.op] for item in items]

        write_carry(MemoryDisk().root, SOLO, SEAL, self.items, ENTRIES.__getitem__, glance)
        assert asked == [[3, 5, 8]]


@pytest.mark.usefixtures("small_writes")
class TestFaults:
    """Each effect of a write in turn: the stage that it fails at, and what is on disk."""

    STAGES = ("write", "write", "write", "write", "sync", "rename", "sync-dir")
    KINDS = ("create", "write", "write", "write", "sync", "rename", "sync-dir")
    numbered = pytest.mark.parametrize(
        ("number", "stage"), list(enumerate(STAGES, start=1)), ids=map("-".join, zip(KINDS))
    )

    def failed(self, number, fault):
        disk = MemoryDisk()
        recorder = disk.hook = Recorder(number, fault)
        with pytest.raises((StorageFailed, DiskFull)) as caught:
            written(disk.root)
        disk.hook = None
        assert recorder.landed is not None
        assert recorder.retried_syncs == []
        return disk, caught.value

    def test_these_are_all_the_effects(self):
        disk = MemoryDisk()
        effects = effects_of(disk, lambda: written(disk.root))
        assert tuple(effect.kind for effect in effects) == self.KINDS
        assert disk.pending() == []
        assert is_whole(opened(disk.power_cut()))

    @pytest.mark.parametrize(
        "fault", [Crash(), Crash(done=100), CrashAfter()], ids=["before", "within", "after"]
    )
    @numbered
    def test_a_crash_leaves_no_file_or_a_whole_one(self, number, stage, fault):
        disk = MemoryDisk()
        disk.hook = Recorder(number, fault)
        with pytest.raises(Crashed):
            written(disk.root)
        disk.hook = None
        seen = set()
        after = [disk.kill()]
        after += [disk.power_cut(kept) for kept in choices(disk.pending(), Random(7), bound=6)]
        for one in after:
            found = open_carry(one.root, SOLO, SEAL)
            assert is_whole(found) if NAME in one.files() else isinstance(found, Flaw)
            seen.add(NAME in one.files())
            assert is_whole(written(one.root))
            assert is_whole(opened(one.power_cut()))
        # From the rename until the directory is synced, a power cut decides.
        is_done = isinstance(fault, CrashAfter)
        is_open = stage == ("rename" if is_done else "sync-dir")
        assert seen == ({False, True} if is_open else {stage == "sync-dir"})

    @numbered
    def test_an_error_names_its_stage(self, number, stage):
        disk, error = self.failed(number, Fail(errno.EIO))
        assert type(error) is StorageFailed
        assert (error.path, error.stage) == (NAME, stage)
        self.judge(disk, stage)

    @numbered
    def test_a_full_disk_is_back_pressure_until_the_name_shows(self, number, stage):
        disk, error = self.failed(number, Fail(errno.ENOSPC, done=30))
        assert type(error) is (StorageFailed if stage == "sync-dir" else DiskFull)
        assert (error.path, error.stage) == (NAME, stage)
        self.judge(disk, stage)

    def test_a_sync_that_lost_its_pages_is_never_renamed(self):
        disk, error = self.failed(5, LoseSync(errno.EIO))
        assert error.stage == "sync"
        self.judge(disk, "sync")

    def judge(self, disk, stage):
        left = {"sync-dir": [NAME], "rename": [NAME + ".tmp"]}.get(stage, [])
        assert disk.files() == left
        assert disk.power_cut().files() == []
        if stage == "sync-dir":
            assert is_whole(opened(disk))
            return
        assert flaw(disk) == "file is missing"
        assert is_whole(written(disk.root))
        assert is_whole(opened(disk.power_cut()))

    def test_a_file_that_cannot_be_opened_again_is_durable_all_the_same(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path), create=False) as root:
            before = descriptor_count()
            with pytest.raises(StorageFailed) as caught:
                written(Unopenable(root))
            assert (caught.value.path, caught.value.stage) == (f"{tmp_path}/{NAME}", "open")
            assert descriptor_count() == before
            found = open_carry(root, SOLO, SEAL)
            assert is_whole(found)
            found.close()


class Unopenable:
    """A directory in which files are made and none is opened."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open(self, name):
        raise OSError(errno.EMFILE, "Too many open files")
