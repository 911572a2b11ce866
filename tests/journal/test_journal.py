"""The journal: what append refuses, what it makes durable, and what a reader gets."""

import threading
import time
from dataclasses import replace

import pytest
from tests.journal.builders import (
    FRAME_SIZE,
    FRAMES_PER_FILE,
    Grown,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    an_entry,
    bodies_of,
    checkpoint,
    effects_of,
    everything,
    forge,
    frame_of,
    grow,
    grow_together,
    journal_path,
    rot_body,
    some_options,
    wipe,
)

from headrace.errors import BodyTooLarge, CorruptEntry, NotNext, RingFull
from headrace.journal.entry import BODY_SIZE_MAX, Entry
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix, decode_prefix
from headrace.journal.journal_file import FIRST_POSITION
from headrace.model.ids import GroupId, Op
from headrace.storage.file import FileDirectory
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk


def refused(disk, group, entries, error):
    """The group of entries must be refused before a byte is written."""
    recorder = disk.hook = Recorder()
    with pytest.raises(error) as caught:
        group.group.journal.append(entries)
    assert recorder.effects == []
    disk.hook = None
    return caught.value


class TestRefusals:
    """All are made before a byte is written, and the journal goes on."""

    def test_another_op_than_the_next(self):
        disk, group = a_disk_with(3)
        for op in (1, 3, 5):
            error = refused(disk, group, [an_entry(op, group.group.journal.tip)], NotNext)
            assert (error.field, error.expected, error.found) == ("op", 4, op)
        assert grow(group, 1) == 4

    def test_an_entry_that_does_not_chain(self):
        disk, group = a_disk_with(3)
        error = refused(disk, group, [an_entry(4, bytes(16))], NotNext)
        assert error.field == "parent"
        assert error.expected == group.group.journal.tip.hex()

    @pytest.mark.parametrize(
        "identity", [replace(SOLO, cluster=bytes(16)), replace(SOLO, group=GroupId(2))]
    )
    def test_an_entry_of_another_group(self, identity):
        disk, group = a_disk_with(3)
        stranger = an_entry(4, group.group.journal.tip, identity=identity)
        refused(disk, group, [stranger], NotNext)

    def test_a_body_that_is_not_as_long_as_its_header_says(self):
        disk, group = a_disk_with(3)
        entry = an_entry(4, group.group.journal.tip, b"four")
        error = refused(disk, group, [Entry(entry.header, entry.sealed, b"five!")], NotNext)
        assert (error.field, error.expected, error.found) == ("body size", 4, 5)

    def test_a_body_over_the_limit(self):
        disk, group = a_disk_with(3)
        entry = an_entry(4, group.group.journal.tip)
        large = Entry(entry.header, entry.sealed, bytes(BODY_SIZE_MAX + 1))
        error = refused(disk, group, [large], BodyTooLarge)
        assert (error.size, error.limit) == (BODY_SIZE_MAX + 1, BODY_SIZE_MAX)

    def test_a_good_entry_before_a_bad_one_is_refused_with_it(self):
        disk, group = a_disk_with(3)
        good, *_ = group.seal([a_body()])
        refused(disk, group, [good, an_entry(6, good.checksum)], NotNext)
        assert group.head == 3

    def test_an_op_whose_slot_is_taken(self):
        disk, group = a_disk_with(0, slots=8)
        group.group.journal.append(group.seal([a_body()] * 8))
        error = refused(disk, group, group.seal([a_body()]), RingFull)
        assert (error.op, error.watermark, error.slots) == (9, 0, 8)
        assert sorted(bodies_of(group)) == list(range(1, 9))

    def test_a_group_of_which_only_the_last_collides(self):
        disk, group = a_disk_with(0, slots=8)
        group.group.journal.append(group.seal([a_body()] * 6))
        refused(disk, group, group.seal([a_body()] * 3), RingFull)
        assert group.group.journal.append(group.seal([a_body()] * 2)) == 8


class TestLimits:
    def test_a_body_at_the_limit_is_written_and_read_back(self):
        disk = MemoryDisk()
        group = a_group(disk)
        body = bytes(BODY_SIZE_MAX - 1) + b"!"
        grow_together(group, [body])
        again = a_group(disk.power_cut())
        entry = again.group.journal.read(Op(1))
        assert entry is not None
        assert entry.body == body

    def test_an_empty_body_is_a_body(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow_together(group, [b""])
        assert bodies_of(a_group(disk.power_cut())) == {1: b""}

    def test_no_entries_are_no_effects(self):
        disk, group = a_disk_with(3)
        assert effects_of(disk, lambda: group.group.append([])) == []


class TestSlots:
    def test_are_counted_from_the_previous_checkpoint(self):
        disk = MemoryDisk()
        group = a_group(disk, slots=12)
        grow(group, 3)
        checkpoint(group)
        assert group.group.journal.free_slots == 8
        grow(group, 3)
        checkpoint(group)
        assert group.group.journal.ring.watermark == 3
        assert group.group.journal.free_slots == 12 - (8 - 3)
        refused(disk, group, group.seal([a_body()] * 8), RingFull)
        assert group.group.journal.append(group.seal([a_body()] * 7)) == 15


class TestAppend:
    def test_one_group_is_one_write_and_one_sync(self):
        disk, group = a_disk_with(1)
        effects = effects_of(disk, lambda: grow_together(group, [a_body()] * 5))
        assert [effect.kind for effect in effects] == ["write", "sync"]

    def test_an_entry_is_readable_only_once_it_is_durable(self):
        disk, group = a_disk_with(1)
        seen = []

        def hook(effect):
            seen.append((effect.kind, group.group.journal.read(Op(2)), group.head))

        disk.hook = hook
        grow(group, 1)
        assert seen == [("write", None, 1), ("sync", None, 1)]

    def test_what_was_returned_survives_a_power_cut_that_keeps_nothing(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for count in (1, 3, 14, 2):
            head = grow_together(group, [a_body()] * count)
            assert a_group(disk.power_cut()).head == head

    def test_a_group_that_spans_files_is_whole_again_after_a_power_cut(self):
        disk, group = a_disk_with(7)
        bodies = [a_body(12 + number) for number in range(30)]
        grow_together(group, bodies)
        assert len(group.group.journal.files) == 4
        found = bodies_of(a_group(disk.power_cut()))
        assert [found[8 + number] for number in range(30)] == bodies

    def test_each_frame_says_what_was_durable_before_it(self):
        disk, group = a_disk_with(2)
        grow_together(group, [a_body()] * 2)
        file = group.group.journal.newest
        data = disk.content(file.path)
        durable = []
        for op in range(1, 5):
            at = frame_of(group, op).position
            prefix = decode_prefix(data[at:], file.header.file_id, at)
            assert isinstance(prefix, Prefix)
            durable.append(prefix.durable)
        assert durable == [0, 1, 2, 2]


class TestRoll:
    def test_the_old_file_ends_with_an_end_frame_that_names_its_last_entry(self):
        disk, group = a_disk_with(FRAMES_PER_FILE + 1)
        old = group.group.journal.files[0]
        at = FIRST_POSITION + FRAMES_PER_FILE * FRAME_SIZE
        prefix = decode_prefix(disk.content(old.path)[at:], old.header.file_id, at)
        assert isinstance(prefix, Prefix)
        assert (prefix.kind, prefix.op) == (FrameKind.END, 10)
        assert prefix.tip == group.sealed[9].checksum

    def test_the_new_file_names_the_entry_before_it(self):
        _, group = a_disk_with(FRAMES_PER_FILE + 1)
        header = group.group.journal.newest.header
        assert header.first_op == 11
        assert header.parent == group.sealed[9].checksum

    def test_an_entry_that_no_empty_file_can_hold_replaces_the_empty_file(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 1, 100_000)
        names = [file.name for file in group.group.journal.files]
        assert names == sorted(set(names))
        grow(group, 3)
        group.group.journal.drain(Op(0))
        assert bodies_of(a_group(disk.power_cut())) == bodies_of(group)

    def test_files_are_dense(self):
        _, group = a_disk_with(35)
        assert [file.header.first_op for file in group.group.journal.files] == [1, 11, 21, 31]


class TestMark:
    def test_is_written_once_when_idle(self):
        disk, group = a_disk_with(3)
        effects = effects_of(disk, group.group.idle)
        assert [(effect.kind, effect.size) for effect in effects] == [
            ("write", PREFIX_SIZE),
            ("sync", 0),
        ]
        assert effects_of(disk, group.group.idle) == []

    def test_of_an_empty_journal_is_not_needed(self):
        disk = MemoryDisk()
        group = a_group(disk)
        assert effects_of(disk, group.group.idle) == []

    def test_is_not_written_again_after_a_reopen(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        disk = disk.kill()
        again = a_group(disk)
        assert effects_of(disk, again.group.idle) == []

    @pytest.mark.parametrize("count", range(1, 2 * FRAMES_PER_FILE + 1))
    def test_always_fits(self, count):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(count):
            grow(group, 1)
            files = len(group.group.journal.files)
            group.group.idle()
            assert len(group.group.journal.files) == files
            assert group.group.journal.newest.end <= group.group.journal.newest.header.size
        again = a_group(disk.power_cut())
        assert again.head == count
        assert again.report.cut is None

    def test_proves_the_last_entry(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        place = frame_of(group, 3)
        disk = disk.kill()
        rot_body(disk, place)
        with pytest.raises(CorruptEntry):
            a_group(disk)

    def test_without_it_the_last_entry_may_be_a_torn_tail(self):
        disk, group = a_disk_with(3)
        place = frame_of(group, 3)
        disk = disk.kill()
        rot_body(disk, place)
        assert a_group(disk).head == 2


class TestRead:
    def test_returns_every_entry_as_it_was_sealed(self):
        _, group = a_disk_with(25)
        for entry in group.sealed:
            assert group.group.journal.read(entry.op) == entry

    @pytest.mark.parametrize("op", [0, 4, 99])
    def test_of_what_is_not_here_is_none(self, op):
        _, group = a_disk_with(3)
        assert group.group.journal.read(Op(op)) is None

    def test_of_a_drained_op_is_none(self):
        _, group = a_disk_with(25)
        group.group.journal.drain(Op(22))
        journal = group.group.journal
        assert [op for op in range(1, 26) if journal.read(Op(op))] == [23, 24, 25]
        assert journal.first == 21

    @pytest.mark.parametrize("damage", [rot_body, wipe], ids=lambda one: one.__name__)
    def test_of_damaged_bytes_raises_by_name(self, damage):
        disk, group = a_disk_with(5)
        place = frame_of(group, 3)
        damage(disk, place)
        with pytest.raises(CorruptEntry) as caught:
            group.group.journal.read(Op(3))
        assert (caught.value.path, caught.value.position) == (place.path, place.position)
        assert group.group.journal.read(Op(4)) is not None

    def test_of_an_unreadable_sector_raises_by_name(self):
        disk, group = a_disk_with(5)
        disk.read_fault = lambda path, at, size: 5
        with pytest.raises(CorruptEntry, match="unreadable"):
            group.group.journal.read(Op(3))

    def test_of_another_whole_entry_in_its_place_raises(self):
        disk, group = a_disk_with(5)
        stranger = an_entry(3, group.sealed[1].checksum, b"of equal len")
        forge(disk, group, frame_of(group, 3), stranger)
        with pytest.raises(CorruptEntry) as caught:
            group.group.journal.read(Op(3))
        assert caught.value.expected == group.sealed[2].checksum.hex()
        assert caught.value.found == stranger.checksum.hex()

    def test_of_a_frame_that_was_written_to_the_wrong_place_raises(self):
        disk, group = a_disk_with(5)
        two, three = frame_of(group, 2), frame_of(group, 3)
        data = disk.content(two.path)
        disk.overwrite(three.path, three.position, data[two.position : two.end])
        with pytest.raises(CorruptEntry):
            group.group.journal.read(Op(3))


class TestHeaders:
    def test_are_answered_without_the_disk(self):
        disk, group = a_disk_with(5)
        disk.read_fault = lambda path, at, size: 5
        found = group.group.journal.headers(Op(2), Op(4))
        assert found == [entry.header for entry in group.sealed[1:4]]

    def test_beyond_both_ends_are_left_out(self):
        _, group = a_disk_with(25)
        group.group.journal.drain(Op(20))
        found = group.group.journal.headers(Op(0), Op(99))
        assert [header.op for header in found] == [21, 22, 23, 24, 25]


class TestDrain:
    @pytest.mark.parametrize(
        ("through", "first"), [(1, 1), (9, 1), (10, 11), (19, 11), (20, 21), (25, 21)]
    )
    def test_retires_whole_files_and_never_the_newest(self, through, first):
        _, group = a_disk_with(25)
        group.group.journal.drain(Op(through))
        assert group.group.journal.first == first
        assert group.group.journal.ring.watermark == through

    def test_each_name_is_gone_durably_before_the_next(self):
        disk, group = a_disk_with(35)
        effects = effects_of(disk, lambda: group.group.journal.drain(Op(30)))
        kinds = [effect.kind for effect in effects]
        assert kinds == ["rename", "sync-dir", "sync-dir"] * 3

    def test_of_nothing_is_no_effect(self):
        disk, group = a_disk_with(25)
        assert effects_of(disk, lambda: group.group.journal.drain(Op(3))) == []


class TestReadersDuringDrain:
    def race(self, group: Grown, rounds: int) -> int:
        """Read from threads while the writer appends, drains and recycles."""
        journal = group.group.journal
        failures: list[BaseException] = []
        done = threading.Event()
        reads = [0, 0]

        def read(index: int) -> None:
            try:
                while not done.is_set():
                    head = journal.durable
                    for op in range(max(1, head - 40), head + 1):
                        entry = journal.read(Op(op))
                        if entry is not None:
                            assert entry.op == op
                            assert bytes(entry.body) == f"body of {op}".encode()
                            reads[index] += 1
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 60
            while rounds > 0 or (not min(reads) and time.monotonic() < end):
                rounds -= 1
                bodies = [f"body of {journal.durable + 1 + k}".encode() for k in range(3)]
                grow_together(group, bodies)
                journal.drain(Op(max(0, journal.durable - 15)))
        finally:
            done.set()
            for thread in threads:
                thread.join(timeout=60)
        assert failures == []
        return min(reads)

    def test_a_reader_gets_the_entry_or_none_on_memory(self):
        assert self.race(a_group(MemoryDisk()), 150) > 0

    def test_a_reader_gets_the_entry_or_none_on_real_files(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            assert self.race(group, 60) > 0
            group.group.journal.close()


class TestRealFiles:
    def test_a_body_in_many_pieces_and_files_comes_back(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options(slots=4096, file_size=1024 * 1024))
            bodies = [a_body(12 + number % 50) for number in range(700)]
            grow_together(group, bodies)
            group.group.stop()
        with FileDirectory.open_root(str(tmp_path / "g"), create=False) as root:
            again = Grown.open(root, some_options(slots=4096, file_size=1024 * 1024))
            assert list(bodies_of(again).values()) == bodies
            again.group.journal.close()

    def test_its_files_are_full_from_the_start(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            path = tmp_path / "g" / journal_path(1)
            size = path.stat().st_size
            grow(group, 5)
            assert path.stat().st_size == size == group.group.journal.newest.header.size
            group.group.journal.close()


class TestUnsynced:
    def test_nothing_is_pending_when_append_returns(self):
        disk, group = a_disk_with(15)
        assert disk.pending() == []
        assert everything(disk) == []
        assert group.head == 15
