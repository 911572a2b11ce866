"""Storages as file objects: what Arrow reads and writes through them, counted and hashed."""

import errno
import io
import os

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from headrace.storage import stream
from headrace.storage.stream import ReadStream, WriteStream, sums_of, whole_digest
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk

DATA = bytes(range(256)) * 8


@pytest.fixture
def file(root):
    with root.create("file") as storage:
        yield storage


@pytest.fixture
def full(file):
    file.append([DATA])
    return file


class TestReading:
    def test_reads_and_seeks_as_a_python_file_does(self, full):
        ours, theirs = ReadStream(full), io.BytesIO(DATA)
        steps = [
            ("read", 10),
            ("seek", 100),
            ("read", 7),
            ("seek", -5, os.SEEK_CUR),
            ("read", 5),
            ("tell",),
            ("seek", -8, os.SEEK_END),
            ("read", 100),
            ("read", 1),
            ("seek", 5000),
            ("read", 3),
            ("seek", 2000),
            ("read",),
            ("tell",),
        ]
        for name, *arguments in steps:
            assert getattr(ours, name)(*arguments) == getattr(theirs, name)(*arguments)

    def test_counts_the_bytes_that_were_read_and_not_those_asked_for(self, full):
        reading = ReadStream(full)
        reading.read(10)
        reading.seek(len(DATA) - 4)
        reading.read(100)
        assert reading.byte_count == 14

    @pytest.mark.parametrize("seek", [(-1,), (-1, os.SEEK_CUR), (-5000, os.SEEK_END), (0, 9)])
    def test_a_place_before_the_file_is_an_error_and_changes_nothing(self, full, seek):
        reading = ReadStream(full)
        with pytest.raises(OSError, match="Invalid argument") as caught:
            reading.seek(*seek)
        assert caught.value.errno == errno.EINVAL
        assert reading.tell() == 0

    def test_closing_leaves_the_storage_open(self, full):
        reading = ReadStream(full)
        pa.PythonFile(reading, mode="r").close()
        assert reading.closed
        assert full.read(0, 4) == DATA[:4]

    def test_arrow_reads_through_it(self, full):
        file = pa.PythonFile(ReadStream(full), mode="r")
        assert file.size() == len(DATA)
        assert file.read_at(6, 300) == DATA[300:306]
        file.seek(9)
        assert file.read(5) == DATA[9:14]

    def test_a_failed_read_is_the_storages_own_error(self):
        disk = MemoryDisk()
        disk.put("file", DATA)
        disk.read_fault = lambda path, at, size: errno.EIO
        file = pa.PythonFile(ReadStream(disk.root.open("file")), mode="r")
        with pytest.raises(OSError, match="Input/output error") as caught:
            file.read(1)
        assert caught.value.errno == errno.EIO

    def test_the_whole_digest_spans_its_blocks(self, full, monkeypatch):
        for size in (1, 100, len(DATA) - 1, len(DATA), len(DATA) + 1):
            monkeypatch.setattr(stream, "READ_SIZE", size)
            assert whole_digest(full) == xxh3_128_digest(DATA)


class TestSums:
    """What is read later must be what it was; blocks of 100 bytes, the last one shorter."""

    @pytest.fixture
    def sums(self, full, monkeypatch):
        monkeypatch.setattr(stream, "BLOCK_SIZE", 100)
        monkeypatch.setattr(stream, "READ_SIZE", 500)
        return sums_of(full)

    def test_they_know_the_whole_and_its_blocks(self, sums):
        assert (sums.digest, sums.size) == (xxh3_128_digest(DATA), len(DATA))
        starts = range(0, len(DATA), 100)
        assert list(sums.blocks) == [xxh3_64_intdigest(DATA[at : at + 100]) for at in starts]

    def test_every_part_is_read_as_it_is(self, full, sums):
        for start in (0, 1, 99, 100, 101, 1999, 2000, 2047, 2048, 5000):
            for size in (0, 1, 99, 100, 101, 250, 2048, 9999):
                reading = ReadStream(full, sums)
                reading.seek(start)
                assert reading.read(size) == DATA[start : start + size]
                assert reading.byte_count == len(DATA[start : start + size])

    def test_a_changed_byte_is_an_error_wherever_its_block_is_read(self, full, sums):
        full.write(1234, [b"!"])
        for start, size in ((1200, 1), (1299, 1), (1100, 200), (0, 2048), (1234, 1)):
            reading = ReadStream(full, sums)
            reading.seek(start)
            with pytest.raises(OSError, match="have changed") as caught:
                reading.read(size)
            assert (caught.value.errno, reading.tell()) == (errno.EIO, start)
        for start, size in ((0, 1200), (1300, 748)):
            reading = ReadStream(full, sums)
            reading.seek(start)
            assert reading.read(size) == DATA[start : start + size]

    def test_a_file_cut_short_is_an_error_and_one_that_grew_ends_where_it_did(self, full, sums):
        full.append([b"more"])
        assert ReadStream(full, sums).read(9999) == DATA
        full.truncate(2040)
        with pytest.raises(OSError, match="have changed"):
            ReadStream(full, sums).read(9999)

    def test_an_empty_file_has_sums(self, file):
        sums = sums_of(file)
        assert (sums.size, list(sums.blocks)) == (0, [])
        assert ReadStream(file, sums).read(10) == b""


class TestWriting:
    def test_pieces_of_any_kind_arrive_in_order_once_flushed(self, file):
        writing = WriteStream(file)
        pieces = [b"one", bytearray(b"two"), memoryview(b"three"), pa.py_buffer(b"four"), b""]
        assert [writing.write(piece) for piece in pieces] == [3, 3, 5, 4, 0]
        writing.flush()
        writing.write(b"five")
        writing.flush()
        assert file.read(0, 99) == b"onetwothreefourfive"
        assert writing.tell() == writing.byte_count == file.size() == 19
        assert writing.digest() == whole_digest(file)

    def test_a_buffer_that_its_owner_reuses_is_written_as_it_was(self, file):
        writing = WriteStream(file)
        reused = bytearray(b"before")
        writing.write(reused)
        reused[:] = b"after!"
        writing.flush()
        assert file.read(0, 99) == b"before"

    def test_small_pieces_are_gathered_into_few_writes(self, monkeypatch):
        monkeypatch.setattr(stream, "GATHER_SIZE", 100)
        disk = MemoryDisk()
        sizes = []
        storage = disk.root.create("file")
        disk.hook = lambda effect: sizes.append(effect.size)
        writing = WriteStream(storage)
        for _ in range(25):
            writing.write(b"ten bytes.")
        writing.flush()
        writing.flush()
        assert sizes == [100, 100, 50]

    def test_arrow_writes_through_it(self, file):
        writing = WriteStream(file)
        with pa.PythonFile(writing, mode="w") as sink:
            sink.write(DATA)
            sink.write(pa.py_buffer(DATA))
        writing.flush()
        assert writing.closed
        assert file.read(0, 9999) == DATA + DATA

    def test_dropped_unflushed_it_writes_nothing(self, file):
        writing = WriteStream(file)
        pa.PythonFile(writing, mode="w").write(DATA)
        del writing
        assert file.size() == 0


class TestFailing:
    def failing(self, fault):
        disk = MemoryDisk()
        writing = WriteStream(disk.root.create("file"))
        disk.hook = lambda effect: fault
        writing.write(DATA)
        return disk, writing

    def test_after_a_failure_every_write_fails_alike_and_nothing_more_is_written(self):
        disk, writing = self.failing(Fail(errno.ENOSPC, done=5))
        with pytest.raises(OSError, match="No space") as caught:
            writing.flush()
        assert writing.failure is caught.value
        disk.hook = None
        for again in (lambda: writing.write(b"x"), writing.flush):
            with pytest.raises(OSError, match="No space"):
                again()
        assert disk.content("file") == DATA[:5]

    def test_arrow_hands_on_the_very_error(self):
        _, writing = self.failing(Fail(errno.EIO))
        sink = pa.PythonFile(writing, mode="w")
        with pytest.raises(OSError, match="Input/output") as caught:
            sink.write(bytes(stream.GATHER_SIZE))
        assert caught.value is writing.failure

    def test_a_crash_passes_through_arrow(self):
        _, writing = self.failing(Crash())
        with pytest.raises(Crashed):
            pa.PythonFile(writing, mode="w").write(bytes(stream.GATHER_SIZE))
        assert writing.failure is None

    def test_abandoned_it_swallows_everything(self):
        disk, writing = self.failing(Fail(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            writing.flush()
        disk.hook = None
        writing.abandon()
        assert writing.write(DATA) == len(DATA)
        writing.flush()
        assert disk.content("file") == b""
