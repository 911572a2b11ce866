"""From a directory to a running group: snapshots, replay, durability, and doing it twice."""

import pytest
from tests.journal.builders import (
    CLUSTER,
    FILE_1,
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
    contents,
    crash,
    either,
    everything,
    frame_of,
    grow,
    grow_to_second_checkpoint,
    grow_together,
    numbered_ids,
    position_of,
    refused_start,
    rot_body,
    snapshot_path,
    some_options,
    superblock_of,
    torn_append,
)
from xxhash import xxh3_128_digest

from headrace.errors import (
    ApplyFailed,
    CorruptEntry,
    CorruptFile,
    CorruptSnapshot,
    DiskFull,
    MissingFile,
    TooFewSlots,
)
from headrace.journal.checkpoint import NoFiles
from headrace.journal.entry import HEADER_SIZE, SEAL
from headrace.journal.frame import PREFIX_SIZE, entry_frame_size
from headrace.journal.group import SEAL_SLOTS
from headrace.journal.recovery.judge import judge
from headrace.journal.recovery.recover import recover
from headrace.journal.recovery.recovery_report import TailCut
from headrace.journal.snapshot import SnapshotFiles
from headrace.model.ids import Op
from headrace.storage.file import FileDirectory
from headrace_lab.counter.counter import ADD, CounterMachine
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import CrashAfter, LoseSync
from headrace_lab.disk.memory import MemoryDisk


class TestNewDirectory:
    def test_an_empty_directory_becomes_a_group(self):
        disk = MemoryDisk()
        group = a_group(disk)
        assert group.report.is_new
        assert group.report.lines() == ["created a new group"]
        assert group.head == 0

    def test_a_new_group_survives_a_power_cut_at_once(self):
        disk = MemoryDisk()
        a_group(disk)
        again = a_group(disk.power_cut())
        assert not again.report.is_new
        assert again.head == 0

    def test_without_create_an_empty_directory_is_not_a_group(self):
        with pytest.raises(MissingFile, match="not a group"):
            a_group(MemoryDisk(), create=False)

    def test_a_crash_while_it_is_made_leaves_a_group_or_nothing(self):
        recorder = Recorder()
        a_group(MemoryDisk(hook=recorder))
        for number in range(1, len(recorder.effects) + 1):
            disk = MemoryDisk(hook=Recorder(number, CrashAfter()))
            with crash():
                a_group(disk)
            for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                again = a_group(after)
                assert again.head == 0
                assert grow(again, 1) == 1


class TestSnapshots:
    def two_checkpoints(self, identity=SOLO):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        grow_to_second_checkpoint(group)
        group.group.idle()
        return disk.kill(), group

    @either
    def test_a_rotten_newest_one_falls_back_and_is_written_again(self, identity):
        disk, group = self.two_checkpoints(identity)
        whole = disk.content(snapshot_path(10))
        disk.flip(snapshot_path(10), 8 * (len(whole) - 1))
        again = a_group(disk, identity)
        assert again.report.fell_back
        assert again.report.snapshot_op == 5
        assert again.report.replayed == 7
        assert again.report.quarantined == (snapshot_path(10),)
        assert disk.power_cut().content(snapshot_path(10)) == whole
        assert again.machine.digest() == group.machine.digest()
        assert superblock_of(disk, identity).previous_op == 5
        last = a_group(disk.power_cut(), identity)
        assert last.report.snapshot_op == 10
        assert not last.report.fell_back

    @either
    def test_a_missing_newest_one_is_no_different(self, identity):
        disk, group = self.two_checkpoints(identity)
        whole = disk.content(snapshot_path(10))
        disk.remove(snapshot_path(10))
        again = a_group(disk, identity)
        assert again.report.fell_back
        assert disk.power_cut().content(snapshot_path(10)) == whole
        assert again.machine.digest() == group.machine.digest()

    def test_a_stale_newest_one_is_not_the_paired_one(self):
        disk, group = self.two_checkpoints()
        other = MemoryDisk()
        SnapshotFiles(other.root, SOLO).persist(Op(10), bytes(16), group.machine.snapshot())
        disk.put(snapshot_path(10), other.content(f"{10:020}.snap"))
        again = a_group(disk)
        assert again.report.fell_back
        assert again.report.snapshot_op == 5
        assert again.report.quarantined == (snapshot_path(10),)
        assert again.machine.digest() == group.machine.digest()

    def test_an_older_one_is_refused_if_the_journal_does_not_chain_through_the_pair(self):
        disk, group = self.two_checkpoints()
        disk.flip(snapshot_path(10), 900)
        rot_body(disk, frame_of(group, 8))
        error = refused_start(disk, CorruptSnapshot)
        assert error.expected == "a snapshot at op 10"
        assert error.found == [5]

    def test_with_both_bad_a_journal_from_op_1_replays_everything(self):
        disk, group = self.two_checkpoints()
        for op in (5, 10):
            disk.flip(snapshot_path(op), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 0
        assert again.report.fell_back
        assert again.report.replayed == 12
        assert again.report.quarantined == (snapshot_path(10), snapshot_path(5))
        assert again.machine.digest() == group.machine.digest()

    @either
    def test_with_both_bad_and_the_beginning_drained_it_is_refused(self, identity):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        for _ in range(3):
            grow(group, 11)
            checkpoint(group)
        disk = disk.kill()
        for op in (24, 36):
            disk.flip(snapshot_path(op), 900)
        error = refused_start(disk, CorruptSnapshot, identity)
        assert error.expected == "a snapshot at op 36"

    def test_a_rotten_previous_one_is_set_aside_and_the_newest_used(self):
        disk, group = self.two_checkpoints()
        disk.flip(snapshot_path(5), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 10
        assert not again.report.fell_back
        assert again.report.quarantined == (snapshot_path(5),)
        assert again.machine.digest() == group.machine.digest()

    def test_one_newer_than_the_pairing_is_accepted_and_becomes_the_pair(self):
        disk, group = a_disk_with(4)
        checkpoint(group)
        grow(group, 4)
        grow_together(group, [b""], SEAL)
        disk.hook = lambda effect: CrashAfter() if effect.path == "snapshots" else None
        with crash():
            group.group.checkpoints.run()
        disk = disk.power_cut()
        assert superblock_of(disk).checkpoint.op == 5
        again = a_group(disk)
        assert again.report.snapshot_op == 10
        assert again.report.replayed == 0
        assert superblock_of(disk).checkpoint.op == 10
        assert superblock_of(disk).previous_op == 5

    def test_one_newer_than_the_pairing_and_rotten_costs_nothing(self):
        disk, group = a_disk_with(4)
        checkpoint(group)
        grow(group, 4)
        grow_together(group, [b""], SEAL)
        disk.hook = lambda effect: CrashAfter() if effect.path == "snapshots" else None
        with crash():
            group.group.checkpoints.run()
        disk = disk.power_cut()
        disk.flip(snapshot_path(10), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 5
        assert again.report.replayed == 5
        assert superblock_of(disk).checkpoint.op == 10
        assert again.machine.digest() == group.machine.digest()


class TestSlots:
    def test_fewer_than_the_live_ops_are_refused(self):
        disk, _ = a_disk_with(12)
        error = refused_start(disk.kill(), TooFewSlots, slots=11)
        assert (error.slots, error.live) == (11, 12)
        assert a_group(disk.kill(), slots=12).head == 12

    def test_live_ops_are_counted_from_the_previous_checkpoint(self):
        disk = MemoryDisk()
        grow_to_second_checkpoint(a_group(disk))
        error = refused_start(disk.kill(), TooFewSlots, slots=7)
        assert error.live == 12 - 4
        assert a_group(disk.kill(), slots=8).head == 12


class TestReplay:
    @either
    def test_goes_through_the_same_apply_and_ends_in_the_same_state(self, identity):
        disk, group = a_disk_with(7, identity)
        group.group.superblock.write(commit=group.head)
        again = a_group(disk.power_cut(), identity)
        assert again.report.replayed == 7
        assert again.machine.digest() == group.machine.digest()

    def test_in_a_cluster_only_what_is_known_committed_is_run(self):
        disk = MemoryDisk()
        group = a_group(disk, CLUSTER)
        grow(group, 3)
        group.group.journal.append(group.seal([a_body()] * 2))
        again = a_group(disk.kill(), CLUSTER)
        assert again.head == 5
        assert again.report.replayed == 3
        assert again.group.journal.commit == 3

    def test_alone_what_is_durable_is_committed(self):
        disk = MemoryDisk()
        group = a_group(disk)
        group.group.append(group.seal([a_body()] * 5))
        again = a_group(disk.power_cut())
        assert again.report.replayed == 5

    def test_a_machine_that_raises_halts_the_group_by_name(self):
        class Stubborn(CounterMachine):
            def apply(self, entry):
                if entry.op == 3:
                    raise ZeroDivisionError
                return CounterMachine.apply(self, entry)

        disk, _ = a_disk_with(5)
        with pytest.raises(ApplyFailed, match="op 3: ZeroDivisionError") as caught:
            recover(disk.kill().root, SOLO, Stubborn(), some_options())
        assert caught.value.found == "ZeroDivisionError"
        assert a_group(disk.kill()).head == 5


class TestScannedIsNotDurable:
    def test_frames_that_only_the_cache_has_are_written_again(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()] * 2)
        disk = disk.kill()
        assert disk.pending()
        again = a_group(disk)
        assert again.head == 5
        assert again.report.rewritten == 2
        assert sorted(bodies_of(a_group(disk.power_cut()))) == [1, 2, 3, 4, 5]

    def test_a_lost_sync_is_seen_once_the_cache_is_dropped(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: LoseSync() if effect.kind == "sync" else None
        with pytest.raises(Exception, match="append failed"):
            group.append([a_body()])
        disk = disk.kill()
        assert any(disk.content(FILE_1)[position_of(4) :])
        again = a_group(disk)
        assert again.head == 3
        assert again.report.cut is None
        assert grow(again, 1) == 4
        assert a_group(disk.power_cut()).head == 4

    def test_a_lost_sync_of_the_end_frame_reaches_back_to_the_file_before(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        seen = []

        def hook(effect):
            seen.append(effect)
            ends = effect.kind == "sync" and effect.path == FILE_1
            return LoseSync() if ends else None

        disk.hook = hook
        with pytest.raises(Exception, match="end failed"):
            group.append([a_body()])
        disk = disk.kill()
        again = a_group(disk)
        assert again.head == 10
        assert [note.what for note in again.report.notes] == ["end frame"]
        assert grow(again, 1) == 11
        assert a_group(disk.power_cut()).head == 11

    def test_nothing_is_rewritten_after_a_clean_stop(self):
        disk, group = a_disk_with(3)
        group.group.stop()
        again = a_group(disk.power_cut())
        assert again.report.was_clean
        assert again.report.rewritten == 0

    def test_nothing_is_replayed_before_the_rewrite_is_durable(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()])
        disk = disk.kill()
        machine = Watching(disk)
        recover(disk.root, SOLO, machine, some_options())
        assert machine.applied == 4
        assert machine.pending_at_first_apply == []


class Watching(CounterMachine):
    """Looks at what the disk has pending when the first entry is applied."""

    def __init__(self, disk):
        super().__init__()
        self.disk = disk
        self.pending_at_first_apply = None

    def apply(self, entry):
        if self.pending_at_first_apply is None:
            pending = self.disk.pending()
            self.pending_at_first_apply = [one for one in pending if one.path == FILE_1]
        return super().apply(entry)


class TestCleanStop:
    @either
    def test_leaves_its_head_and_is_recognised(self, identity):
        disk, group = a_disk_with(3, identity)
        group.group.stop()
        assert superblock_of(disk.power_cut(), identity).clean_head == 3
        report = a_group(disk.power_cut(), identity).report
        assert report.was_clean
        assert (report.cut, report.notes) == (None, ())

    def test_its_mark_is_cleared_before_the_first_append(self):
        disk, group = a_disk_with(3)
        group.group.stop()
        disk = disk.power_cut()
        a_group(disk)
        assert superblock_of(disk.power_cut()).clean_head is None

    def test_an_empty_group_can_stop_cleanly(self):
        disk = MemoryDisk()
        a_group(disk).group.stop()
        assert a_group(disk.power_cut()).report.was_clean


class TestTwiceEqualsOnce:
    def torn(self):
        disk, group = a_disk_with(3)
        return torn_append(disk, group, [a_body()] * 2, 500)

    def fallen_back(self):
        disk = MemoryDisk()
        grow_to_second_checkpoint(a_group(disk))
        disk = disk.kill()
        disk.flip(snapshot_path(10), 900)
        return disk

    def healed(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.flip(FILE_1, 900)
        disk.overwrite(FILE_1, position_of(10) + FRAME_SIZE, bytes(PREFIX_SIZE))
        return disk

    def drained(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(3):
            grow(group, 14)
            checkpoint(group)
        return disk.kill()

    @pytest.mark.parametrize("make", ["torn", "fallen_back", "healed", "drained"])
    def test_one_disk_gives_one_report_and_one_state(self, make):
        disk = getattr(self, make)()
        one, other = disk.clone(), disk.clone()
        first = Grown.open(one.root, some_options(new_id=numbered_ids()))
        second = Grown.open(other.root, some_options(new_id=numbered_ids()))
        assert first.report == second.report
        assert first.machine.digest() == second.machine.digest()
        assert contents(one) == contents(other)

    @pytest.mark.parametrize("make", ["torn", "fallen_back", "healed", "drained"])
    def test_a_second_recovery_finds_nothing_to_do(self, make):
        disk = getattr(self, make)()
        first = a_group(disk)
        once = contents(disk, but="superblock")
        disk = disk.power_cut()
        second = a_group(disk)
        assert contents(disk, but="superblock") == once
        assert second.machine.digest() == first.machine.digest()
        assert (second.head, second.report.cut, second.report.rewritten) == (
            first.head,
            None,
            0,
        )
        assert (second.report.notes, second.report.quarantined) == ((), ())
        disk = disk.power_cut()
        third = a_group(disk)
        assert third.report == second.report
        assert contents(disk, but="superblock") == once


class TestLeftovers:
    def test_unfinished_files_are_dropped_wherever_they_are(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        names = ["superblock.a.tmp", "journal/x.wal.tmp", "journal/spare/y.wal.tmp"]
        names.append(snapshot_path(9) + ".tmp")
        for name in names:
            disk.put(name, b"half")
        assert a_group(disk).head == 3
        assert not [path for path in disk.files() if path.endswith(".tmp")]

    def test_names_that_are_no_journal_files_are_left_alone(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        disk.put("journal/notes.txt", b"mine")
        assert a_group(disk).head == 3
        assert disk.content("journal/notes.txt") == b"mine"


class TestOnRealFiles:
    def test_a_life_with_rolls_checkpoints_a_torn_tail_and_a_fall_back(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            grow_to_second_checkpoint(group)
            digest = group.machine.digest()
            path = tmp_path / "g" / "journal" / f"{11:020}.wal"
            place = frame_of(group, 12)
            group.group.journal.close()
        with open(path, "r+b") as file:
            file.seek(place.end)
            file.write(path.read_bytes()[place.position :][:200])
        snapshot = tmp_path / "g" / snapshot_path(10)
        data = bytearray(snapshot.read_bytes())
        data[-1] ^= 1
        snapshot.write_bytes(bytes(data))
        with FileDirectory.open_root(str(tmp_path / "g"), create=False) as root:
            again = Grown.open(root, some_options())
            assert again.head == 12
            assert again.report.fell_back
            assert again.report.cut == TailCut(Op(13), Op(13), str(path))
            assert again.machine.digest() == digest
            grow(again, 1)
            again.group.stop()
        with FileDirectory.open_root(str(tmp_path / "g"), create=False) as root:
            last = Grown.open(root, some_options())
            assert last.report.was_clean
            assert last.head == 13
            last.group.journal.close()

    def test_refusal_changes_no_byte(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            grow(group, 12)
            group.group.stop()
        path = tmp_path / "g" / FILE_1
        data = bytearray(path.read_bytes())
        data[position_of(3) + 330] ^= 1
        path.write_bytes(bytes(data))
        before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        with (
            FileDirectory.open_root(str(tmp_path / "g"), create=False) as root,
            pytest.raises(CorruptEntry) as caught,
        ):
            Grown.open(root, some_options())
        assert caught.value.position == position_of(3)
        after = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        assert after == before


class TestLostPromises:
    def test_a_cluster_replica_without_a_superblock_says_so_until_it_has_caught_up(self):
        disk, _ = a_disk_with(5, CLUSTER)
        disk.remove("superblock.a")
        disk.remove("superblock.b")
        first = a_group(disk, CLUSTER)
        assert first.report.superblock_rebuilt
        assert first.report.is_recovering
        second = a_group(disk.kill(), CLUSTER)
        assert not second.report.superblock_rebuilt
        assert second.report.is_recovering

    def test_alone_there_is_nobody_to_have_promised_anything(self):
        disk, _ = a_disk_with(5)
        disk.remove("superblock.a")
        disk.remove("superblock.b")
        assert not a_group(disk).report.is_recovering


class TestThingsInTheWay:
    def test_a_link_in_place_of_one_superblock_copy_is_a_bad_copy(self, tmp_path):
        root = FileDirectory.open_root(str(tmp_path / "group"), create=True)
        group = Grown.open(root, some_options(), SOLO)
        grow(group, 3)
        group.group.stop()
        copy = tmp_path / "group" / "superblock.a"
        copy.unlink()
        copy.symlink_to("superblock.b")
        again = Grown.open(root, some_options(), SOLO)
        assert again.head == 3
        assert [note.path for note in again.report.notes] == [str(copy)]
        again.group.stop()

    def test_a_link_in_place_of_a_journal_file_is_refused_by_its_name(self, tmp_path):
        root = FileDirectory.open_root(str(tmp_path / "group"), create=True)
        group = Grown.open(root, some_options(), SOLO)
        grow(group, 3)
        group.group.stop()
        live = tmp_path / "group" / FILE_1
        live.rename(live.with_name("elsewhere"))
        live.symlink_to("elsewhere")
        with pytest.raises(CorruptFile, match=live.name):
            Grown.open(root, some_options(), SOLO)


class TestSizesThatLie:
    def test_a_journal_file_longer_than_its_header_says_is_read_only_so_far(self):
        disk, _ = a_disk_with(3)
        size = len(disk.content(FILE_1))
        frame = disk.content(FILE_1)[position_of(1) :][:FRAME_SIZE]
        disk.put(FILE_1, disk.content(FILE_1) + frame + bytes(10_000))
        again = a_group(disk)
        assert again.head == 3
        assert again.report.cut is None
        assert [(note.position, note.what) for note in again.report.notes] == [
            (size, "file size")
        ]

    def test_a_snapshot_longer_than_its_header_says_is_not_read_at_all(self):
        disk, group = a_disk_with(3)
        checkpoint(group)
        path = snapshot_path(4)
        disk.put(path, disk.content(path) + bytes(10_000))
        reads = []
        disk.read_fault = lambda name, position, size: (
            reads.append(size) if name == path else None
        )
        found = group.group.checkpoints.snapshots.load(Op(4))
        assert found.what == "snapshot size"
        assert sum(reads) < 1_000

    def test_no_group_is_made_where_one_must_be(self):
        disk = MemoryDisk()
        for name in ("journal", "snapshots", "quarantine"):
            disk.root.child(name, make=True)
        disk.root.child("journal").child("spare", make=True)
        with pytest.raises(MissingFile, match="no group here"):
            a_group(disk, create=False)
        assert disk.files() == []

    def test_a_header_that_a_client_hid_in_a_body_stretches_nothing(self):
        disk, group = a_disk_with(1, CLUSTER)
        forged = an_entry(2**62, identity=CLUSTER).sealed
        torn = torn_append(disk, group, [bytes(64) + forged + b"x" * 900], 800)
        # Without the frame's own prefix the scan must search, and finds what lies in the body.
        torn.overwrite(FILE_1, position_of(2), bytes(8))
        again = a_group(torn, CLUSTER)
        assert again.report.suspect == (2, 12)  # what the rest of the file has room for

    def test_a_ring_without_room_for_its_seals_is_refused(self):
        with pytest.raises(TooFewSlots):
            a_group(MemoryDisk(), slots=SEAL_SLOTS + 2)

    @pytest.mark.parametrize("file_size", [1, 8192, 12345])
    def test_an_odd_file_size_is_rounded_up_so_that_spares_fit(self, file_size):
        disk = MemoryDisk()
        group = a_group(disk, file_size=file_size)
        grow(group, 3)
        sizes = {len(disk.content(path)) for path in disk.files() if path.endswith(".wal")}
        assert sizes == {12288 if file_size < 12345 else 16384}


class Headers(CounterMachine):
    """Counts entries by their headers: it has no use for the body of an ADD."""

    def __init__(self, bodiless):
        super().__init__()
        self.bodiless = bodiless
        self.bodies = []

    def apply(self, entry):
        self.bodies.append(bytes(entry.body))
        assert len(entry.sealed) == HEADER_SIZE
        assert entry.header.operation in (ADD, SEAL)
        self.applied += 1
        self.chain = xxh3_128_digest(self.chain + entry.checksum)
        return self.applied


class TestBodiless:
    """What a machine says that it does not look at is not read again by a replay."""

    def replayed(self, disk, bodiless):
        """Return the machine after a replay, and the reads of whole frames that it took."""
        machine = Headers(bodiless)
        whole = []
        disk.read_fault = lambda path, at, size: whole.append(size)
        recover(disk.root, SOLO, machine, some_options())
        disk.read_fault = None
        return machine, whole.count(entry_frame_size(100))

    def test_a_replay_reads_no_body_of_them(self):
        disk, group = a_disk_with(0)
        grow(group, 20, 100)
        group.group.stop()
        with_bodies, reads = self.replayed(disk.clone(), frozenset())
        without, fewer = self.replayed(disk.clone(), frozenset({ADD}))
        assert reads - fewer == 20
        assert fewer == 0
        assert with_bodies.bodies == [a_body(100)] * 20
        assert without.bodies == [b""] * 20
        assert without.digest() == with_bodies.digest()

    def test_other_operations_come_with_their_bodies(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b"of a seal"], SEAL)
        disk = disk.kill()
        machine, _ = self.replayed(disk, frozenset({ADD}))
        assert machine.bodies == [b"", b"", b"", b"of a seal"]

    def test_damage_is_found_though_no_replay_reads_it(self):
        disk, group = a_disk_with(5)
        place = frame_of(group, 3)
        disk = disk.kill()
        rot_body(disk, place)
        with pytest.raises(CorruptEntry, match="op 3"):
            recover(disk.root, SOLO, Headers(frozenset({ADD})), some_options())


class TestFar:
    """A replay from far below the ring: what it passed stays in reach until the next drain."""

    def far_group(self):
        """Checkpoints at ops 25, 50 and 75, all snapshots lost, one file with all entries."""
        disk = MemoryDisk()
        group = a_group(disk, file_size=64 * 1024)
        for _ in range(3):
            grow(group, 24)
            checkpoint(group)
        grow(group, 2)
        disk = disk.kill()
        for op in (50, 75):
            disk.remove(snapshot_path(op))
        return disk, group

    def test_more_is_replayed_than_the_ring_holds(self):
        disk, group = self.far_group()
        again = a_group(disk, file_size=64 * 1024)
        assert (again.report.snapshot_op, again.report.replayed) == (0, 77)
        assert again.machine.digest() == group.machine.digest()

    def test_they_are_there_when_the_checkpoint_is_made_again_and_gone_after_its_drain(self):
        disk, _ = self.far_group()
        found = {}

        class Reading(NoFiles):
            def seal(self, captured, journal, snapshots):
                found[captured.op] = [journal.read(Op(op)) for op in range(1, captured.op)]
                return captured.state

        again = a_group(disk, file_size=64 * 1024, keeper=Reading())
        assert list(found) == [75]
        assert [entry.op for entry in found[75]] == list(range(1, 75))
        # The pair is made again, and the journal reaches back to the previous one.
        assert again.group.journal.far == {}
        assert again.group.journal.read(Op(49)) is None
        assert again.group.journal.read(Op(50)).op == 50
        superblock = superblock_of(disk)
        assert (superblock.checkpoint.op, superblock.previous_op) == (75, 50)

    def test_a_checkpoint_that_cannot_be_made_keeps_them_in_reach(self):
        disk, _ = self.far_group()

        class Full(NoFiles):
            def seal(self, captured, journal, snapshots):
                raise DiskFull("segments", "seal")

        again = a_group(disk, file_size=64 * 1024, keeper=Full())
        journal = again.group.journal
        assert set(journal.far) == set(range(1, 50))
        assert [journal.read(Op(op)).op for op in range(1, 78)] == list(range(1, 78))
        # A second start, with the same entries and a willing disk, makes it good.
        last = a_group(disk.kill(), file_size=64 * 1024)
        assert last.group.journal.far == {}
        assert last.machine.digest() == again.machine.digest()


class TestWhatWasJudgedToBeThere:
    """Judging and replaying look at the same scan: were they to differ, it is said by name."""

    @pytest.mark.parametrize("lost", [4, 9], ids=["in between", "at the end"])
    def test_an_op_that_is_not_found_is_an_error_with_its_file(self, monkeypatch, lost):
        disk, _ = a_disk_with(9)

        def judged(found, *arguments):
            plan = judge(found, *arguments)
            found.scan.entries[:] = [one for one in found.scan.entries if one.op != lost]
            return plan

        monkeypatch.setattr("headrace.journal.recovery.recover.judge", judged)
        with pytest.raises(MissingFile, match=f"op {lost} is in no file") as caught:
            a_group(disk.kill())
        assert caught.value.path == FILE_1
        monkeypatch.undo()
        assert a_group(disk.kill()).head == 9
