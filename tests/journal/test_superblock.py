"""Two copies of the few words that must survive."""

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.builders import Recorder, crash, everything
from xxhash import xxh3_128_digest

from headrace.errors import CorruptFile, DiskFull, ForeignFile, StorageFailed, UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.superblock import (
    FORMAT,
    MAGIC,
    NAMES,
    SEQUENCE_MAX,
    Checkpoint,
    Superblock,
    SuperblockFile,
    decode,
    encode,
    read_copies,
)
from headrace.model.ids import GroupId, Identity, Op, ReplicaId, View
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import CrashAfter, Fail
from headrace_lab.disk.memory import MemoryDisk

u32 = st.integers(0, 2**32 - 1)
u63 = st.integers(0, 2**63 - 1)
sixteen = st.binary(min_size=16, max_size=16)
maybe = st.none() | st.integers(1, 2**63 - 1)

identities = st.builds(
    lambda cluster, group, replica, more, bits: Identity(
        cluster, GroupId(group), ReplicaId(replica), replica + more, bits
    ),
    sixteen,
    u32,
    st.integers(0, 8),
    st.integers(1, 5),
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 24)),
)
lives = st.integers(1, SEQUENCE_MAX)
pairs_of_replica_0 = st.lists(st.tuples(st.just(0), lives), max_size=5).map(tuple)
records = st.builds(
    Superblock,
    identity=identities,
    sequence=u63,
    view=st.integers(100, 200),
    log_view=st.integers(0, 100),
    commit=u63,
    checkpoint=st.builds(Checkpoint, st.integers(1000, 2**63 - 1), sixteen, sixteen),
    previous_op=st.integers(0, 1000),
    suspect=st.none() | st.tuples(u63, u63),
    cut_from=maybe,
    syncing_to=maybe,
    clean_head=maybe,
    peers=pairs_of_replica_0,
    starts=st.lists(st.tuples(lives, lives), max_size=5).map(tuple),
    peer_boots=pairs_of_replica_0,
    gave_up=st.none() | st.tuples(u63, u63),
)


def a_record(**changes):
    return replace(Superblock(SOLO, sequence=7, view=View(2), commit=Op(5)), **changes)


def enveloped(record: bytes, magic=MAGIC, reader_min=FORMAT) -> bytes:
    """Wrap `record` as if it had been written like this."""
    rest = magic + FORMAT.to_bytes(2, "little") + reader_min.to_bytes(2, "little")
    rest += len(record).to_bytes(4, "little") + record
    return xxh3_128_digest(rest) + rest


class TestBytes:
    @given(records)
    def test_every_field_comes_back(self, record):
        assert decode(encode(record), "x") == record

    @pytest.mark.parametrize(
        "odd",
        [
            {"peers": ((7, 5),), "peer_boots": ((7, 5),)},
            {"peers": ((1, 2**63 - 1),)},
            {"peer_boots": ((1, -5),)},
            {"starts": ((0, 5),)},
            {"starts": ((1, 0),)},
            {"gave_up": (-1, 2)},
        ],
    )
    def test_lives_that_cannot_be_are_a_flaw(self, odd):
        assert isinstance(decode(encode(a_record(**odd)), "x"), Flaw)

    @given(st.binary(max_size=400))
    def test_arbitrary_bytes_are_a_flaw(self, data):
        assert isinstance(decode(data, "x"), Flaw)

    @given(st.binary(max_size=200))
    def test_arbitrary_records_under_a_good_checksum_are_a_flaw(self, record):
        assert isinstance(decode(enveloped(record), "x"), Flaw)

    @given(st.data())
    def test_no_single_byte_can_change_unnoticed(self, data):
        whole = bytearray(encode(a_record()))
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
        assert isinstance(decode(bytes(whole), "x"), Flaw)

    def test_a_log_view_above_the_view_is_a_flaw(self):
        found = decode(encode(a_record(view=View(2), log_view=View(3))), "x")
        assert found == Flaw("superblock log view", "at most 2", 3)

    @pytest.mark.parametrize(
        "change",
        [
            {"commit": Op(2**63)},
            {"clean_head": Op(-1)},
            {"cut_from": Op(0)},
            {"suspect": (Op(1), Op(2**63))},
            {"previous_op": Op(6), "checkpoint": Checkpoint(Op(5))},
            {"checkpoint": Checkpoint(Op(5), b"short")},
        ],
        ids=str,
    )
    def test_numbers_that_make_no_sense_together_are_a_flaw(self, change):
        assert isinstance(decode(encode(a_record(**change)), "x"), Flaw)

    def test_another_magic_is_a_flaw(self):
        found = decode(enveloped(b"", magic=b"HRother!"), "x")
        assert isinstance(found, Flaw)

    def test_one_of_a_newer_release_says_so(self):
        with pytest.raises(UnsupportedFormat) as caught:
            decode(enveloped(b"", reader_min=4), "superblock.a")
        assert (caught.value.path, caught.value.found) == ("superblock.a", 4)

    def test_what_a_release_must_understand_stays_with_the_record(self):
        disk = MemoryDisk()
        raised = SuperblockFile(disk.root, a_record()).write(reader_min=2)
        (found, _) = (decode(disk.content(name), name) for name in NAMES)
        assert found == raised
        assert SuperblockFile(disk.root, found).write(commit=Op(9)).reader_min == 2


def a_file(disk=None, **changes):
    disk = disk or MemoryDisk()
    file = SuperblockFile(disk.root, a_record(**changes))
    file.write()
    return disk, file


def best(disk):
    return read_copies(disk.root, SOLO).best


class TestWrite:
    def test_both_copies_are_durable_and_equal(self):
        disk, file = a_file()
        after = disk.power_cut()
        assert after.content(NAMES[0]) == after.content(NAMES[1])
        assert best(after) == file.current

    def test_each_write_raises_the_sequence(self):
        _, file = a_file()
        before = file.current.sequence
        assert file.write(commit=Op(9)).sequence == before + 1

    def test_a_crash_anywhere_leaves_the_old_or_the_new_record(self):
        recorder = Recorder()
        disk, file = a_file()
        disk.hook = recorder
        file.write(commit=Op(9))
        for number in range(1, len(recorder.effects) + 1):
            disk, file = a_file()
            old = file.current
            new = replace(old, sequence=old.sequence + 1, commit=Op(9))
            disk.hook = Recorder(number, CrashAfter())
            with crash():
                file.write(commit=Op(9))
            for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                copies = read_copies(after.root, SOLO)
                assert copies.best in (old, new)
                assert copies.flaws == (None, None)
                later = recorder.effects[number - 1].path.endswith("b.tmp")
                if later:  # the first copy was durable before the second was begun
                    assert copies.best == new

    def test_after_a_full_disk_the_record_is_what_it_was_and_the_next_number_is_new(self):
        for number in (1, 2, 4, 6, 7, 9):
            disk, file = a_file()
            old = file.current
            disk.hook = Recorder(number, Fail(errno.ENOSPC))
            with pytest.raises(DiskFull):
                file.write(commit=Op(9))
            assert file.current.commit == old.commit
            disk.hook = None
            written = file.write(commit=Op(8))
            assert written.sequence == old.sequence + 2
            assert best(disk.power_cut()) == written

    def test_a_failure_of_the_disk_poisons_it_for_good(self):
        disk, file = a_file()
        disk.hook = Recorder(3, Fail(errno.EIO))
        with pytest.raises(StorageFailed) as first:
            file.write()
        with pytest.raises(StorageFailed) as second:
            file.write()
        assert first.value is second.value
        assert first.value.stage == "sync"


class TestReadCopies:
    def test_none_is_two_flaws(self):
        copies = read_copies(MemoryDisk().root, SOLO)
        assert copies.best is None
        assert [flaw.what for flaw in copies.flaws] == ["superblock is missing"] * 2

    @pytest.mark.parametrize("newer", [0, 1])
    def test_the_higher_sequence_wins(self, newer):
        disk = MemoryDisk()
        disk.put(NAMES[newer], encode(a_record(sequence=9)))
        disk.put(NAMES[1 - newer], encode(a_record(sequence=8)))
        assert best(disk).sequence == 9

    @pytest.mark.parametrize("bad", [0, 1])
    def test_one_good_copy_is_enough(self, bad):
        disk, file = a_file()
        disk.flip(NAMES[bad], 300)
        copies = read_copies(disk.root, SOLO)
        assert copies.best == file.current
        assert [flaw is not None for flaw in copies.flaws] == [bad == 0, bad == 1]

    def test_a_huge_file_is_not_read(self):
        disk, _ = a_file()
        disk.put(NAMES[0], bytes(65 * 1024))
        flaw, none = read_copies(disk.root, SOLO).flaws
        assert flaw.what == "superblock size"
        assert none is None

    def test_an_unreadable_copy_is_a_flaw(self):
        disk, file = a_file()
        disk.read_fault = lambda path, at, size: errno.EIO if path == NAMES[0] else None
        copies = read_copies(disk.root, SOLO)
        assert copies.best == file.current
        assert copies.flaws[0].what == "superblock is unreadable"

    def test_two_different_records_of_one_sequence_are_refused(self):
        disk = MemoryDisk()
        disk.put(NAMES[0], encode(a_record(commit=Op(1))))
        disk.put(NAMES[1], encode(a_record(commit=Op(2))))
        with pytest.raises(CorruptFile, match="both copies have sequence 7"):
            read_copies(disk.root, SOLO)

    def test_a_foreign_copy_is_refused_even_beside_a_good_one(self):
        disk, _ = a_file()
        stranger = replace(SOLO, group=GroupId(3))
        disk.put(NAMES[1], encode(a_record(identity=stranger, sequence=1)))
        with pytest.raises(ForeignFile) as caught:
            read_copies(disk.root, SOLO)
        assert (caught.value.field, caught.value.expected, caught.value.found) == (
            "group",
            1,
            3,
        )
