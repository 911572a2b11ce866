"""The file of heads: what is read back, after whatever happened to it."""

import errno
from dataclasses import replace
from random import Random

import pytest
from xxhash import xxh3_128_digest

from headrace.errors import (
    ChainBroken,
    CorruptEntry,
    CorruptFile,
    ForeignFile,
    MissingFile,
    StorageFailed,
    UnsupportedFormat,
)
from headrace.journal.entry import Flaw
from headrace.journal.heads import (
    HEADS_MAX,
    MAGIC,
    NAME,
    SLOT_SIZE,
    Head,
    HeadsFile,
    HeadSlot,
    decode,
    encode,
    read_heads,
)
from headrace.journal.superblock import SuperblockFile
from headrace.model.ids import GroupId, Op
from headrace_lab.counter.counter import ADD, add
from headrace_lab.counter.script import options
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk

CLUSTER = b"headrace-cluster"


def head(op: int) -> Head:
    return Head(Op(op), op.to_bytes(16, "little"))


def opened(disk: MemoryDisk) -> HeadsFile:
    return HeadsFile.of(disk.root, CLUSTER, read_heads(disk.root, CLUSTER))


def ops(disk: MemoryDisk) -> dict[int, int]:
    found = read_heads(disk.root, CLUSTER).heads
    assert all(one.tip == head(one.op).tip for one in found.values())
    return {group: one.op for group, one in found.items()}


def written(*states: dict[int, int]) -> MemoryDisk:
    disk = MemoryDisk()
    file = opened(disk)
    for now, state in enumerate(states):
        file.write({GroupId(group): head(op) for group, op in state.items()}, now)
    return disk


def sealed(rest: bytes) -> bytes:
    return xxh3_128_digest(rest) + rest


class TestBytes:
    def test_a_slot_is_read_as_it_was_written(self):
        slot = HeadSlot(CLUSTER, 7, 9, {GroupId(0): head(3), GroupId(200): head(2**62)})
        assert decode(encode(slot), "x") == slot

    def test_all_groups_that_a_cluster_may_have_fit(self):
        heads = {GroupId(group): head(group + 1) for group in range(257)}
        assert decode(encode(HeadSlot(CLUSTER, 1, 1, heads)), "x").heads == heads

    def test_more_groups_than_fit_cost_only_those(self):
        heads = {GroupId(group): head(group + 1) for group in range(HEADS_MAX + 5)}
        assert list(decode(encode(HeadSlot(CLUSTER, 1, 1, heads)), "x").heads) == list(
            range(HEADS_MAX)
        )

    def test_no_flipped_bit_is_believed(self):
        data = encode(HeadSlot(CLUSTER, 7, 9, {GroupId(1): head(3)}))
        for bit in Random(3).sample(range(SLOT_SIZE * 8), 500):
            place = bit // 8
            bad = data[:place] + bytes([data[place] ^ 1 << bit % 8]) + data[place + 1 :]
            assert isinstance(decode(bad, "x"), Flaw)

    @pytest.mark.parametrize(("at", "size", "value"), [(28, 4, HEADS_MAX + 1), (56, 8, 2**63)])
    def test_numbers_that_cannot_be_are_a_flaw(self, at, size, value):
        data = encode(HeadSlot(CLUSTER, 7, 9, {GroupId(1): head(3)}))
        bad = data[16:at] + value.to_bytes(size, "little") + data[at + size :]
        assert isinstance(decode(sealed(bad), "x"), Flaw)

    @pytest.mark.parametrize("op", [0, 2**63])
    def test_an_op_that_cannot_be_is_a_flaw(self, op):
        data = encode(HeadSlot(CLUSTER, 7, 9, {GroupId(1): head(3)}))
        bad = data[16:68] + op.to_bytes(8, "little") + data[76:]
        assert isinstance(decode(sealed(bad), "x"), Flaw)

    def test_a_newer_format_is_refused_by_name(self):
        data = encode(HeadSlot(CLUSTER, 7, 9, {}))
        newer = data[16:26] + b"\2\0" + data[28:]
        assert MAGIC in newer
        with pytest.raises(UnsupportedFormat):
            decode(sealed(newer), "heads")


class TestWrites:
    def test_the_newest_counts(self):
        assert ops(written({1: 5}, {1: 8, 0: 2}, {1: 9})) == {0: 2, 1: 9}

    def test_a_head_never_falls(self):
        assert ops(written({0: 4, 1: 9}, {1: 5})) == {0: 4, 1: 9}

    def test_a_head_of_a_group_that_does_not_run_is_carried_over(self):
        disk = written({0: 4, 1: 9, 2: 3})
        file = opened(disk)
        for op in (10, 11, 12):
            file.write({GroupId(1): head(op)}, op)
        assert ops(disk) == {0: 4, 1: 12, 2: 3}

    def test_slots_are_written_in_turn_also_after_a_start(self):
        disk = written({1: 1}, {1: 2}, {1: 3})
        before = disk.content(NAME)
        opened(disk).write({GroupId(1): head(4)}, 4)
        after = disk.content(NAME)
        assert after[:SLOT_SIZE] == before[:SLOT_SIZE]
        assert after[SLOT_SIZE:] != before[SLOT_SIZE:]

    def test_after_a_failure_the_same_slot_is_written_again(self):
        disk = written({1: 1}, {1: 2})
        file = opened(disk)
        before = disk.content(NAME)
        for kind in ("write", "sync", "write"):
            disk.hook = lambda effect, kind=kind: (
                Fail(errno.EIO, 100) if effect.kind == kind == "write"
                else Fail(errno.EIO) if effect.kind == kind else None
            )  # fmt: skip
            with pytest.raises(OSError, match="Input/output"):
                file.write({GroupId(1): head(3)}, 3)
            assert disk.content(NAME)[SLOT_SIZE:] == before[SLOT_SIZE:]
        disk.hook = None
        file.write({GroupId(1): head(3)}, 3)
        assert ops(disk) == {1: 3}
        assert disk.content(NAME)[SLOT_SIZE:] == before[SLOT_SIZE:]

    @pytest.mark.parametrize("harm", ["missing", "empty", "short", "long", "noise"])
    def test_what_is_no_file_of_two_slots_is_made_again(self, harm):
        disk = written({1: 1}, {1: 2})
        data = disk.content(NAME)
        harmed = {
            "empty": b"",
            "short": data[:100],
            "long": data + b"?",
            "noise": Random(1).randbytes(len(data)),
        }
        disk.remove(NAME) if harm == "missing" else disk.put(NAME, harmed[harm])
        file = opened(disk)
        for op in (5, 6, 7):
            file.write({GroupId(1): head(op)}, op)
            assert ops(disk) == {1: op}
            assert len(disk.content(NAME)) == 2 * SLOT_SIZE

    def test_a_directory_that_cannot_be_synced_is_an_error_once(self):
        disk = MemoryDisk()
        file = opened(disk)
        disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "sync-dir" else None
        with pytest.raises(StorageFailed):
            file.write({GroupId(1): head(1)}, 1)
        file.write({GroupId(1): head(2)}, 2)
        assert ops(disk) == {1: 2}


class TestPowerCuts:
    def test_at_every_effect_the_heads_are_those_of_before_or_after(self):
        whole = self._life(MemoryDisk(), [])
        for number in range(1, whole.effect_count + 1):
            done: list[int] = []
            disk = MemoryDisk()
            disk.hook = lambda effect, number=number: (
                Crash() if effect.number == number else None
            )
            with pytest.raises(Crashed):
                self._life(disk, done)
            for after in (disk.kill(), disk.power_cut()):
                found = ops(after).get(1, 0)
                last = done[-1] if done else 0
                assert last <= found <= last + 1
                file = opened(after)
                file.write({GroupId(1): head(99)}, 99)
                assert ops(after) == {1: 99}

    @staticmethod
    def _life(disk: MemoryDisk, done: list[int]) -> MemoryDisk:
        file = opened(disk)
        for op in range(1, 6):
            file.write({GroupId(1): head(op)}, op)
            done.append(op)
        return disk


class TestForeign:
    def test_heads_of_another_cluster_are_refused_by_name(self):
        disk = written({1: 3})
        with pytest.raises(ForeignFile) as caught:
            read_heads(disk.root, b"another cluster!")
        assert caught.value.path.endswith(NAME)

    def test_a_slot_that_is_not_whole_is_nobodys(self):
        disk = written({1: 3})
        data = disk.content(NAME)
        disk.put(NAME, data[:40] + b"?" + data[41:])
        found = read_heads(disk.root, b"another cluster!")
        assert found.newest is None
        assert found.flaws

    def test_a_file_that_cannot_be_read_is_weak_and_no_error(self):
        disk = written({1: 3})
        disk.read_fault = lambda path, position, size: errno.EIO
        found = read_heads(disk.root, CLUSTER)
        assert (found.newest, len(found.flaws)) == (None, 2)
        assert replace(found, flaws=()).heads == {}


class TestEvidence:
    """What a recovery asks of a head."""

    def _grown(self) -> tuple[MemoryDisk, Solo]:
        disk = MemoryDisk()
        solo = Solo.open(disk.root, options())
        for number in range(6):
            solo.append([add(f"{number}".ljust(500), 1)], ADD)
            if number == 2:
                solo.checkpoint()
        return disk, solo

    def _open(self, disk: MemoryDisk, head: Head | None, identity=SOLO) -> Solo:
        fresh = options()
        for _ in range(50):
            fresh.new_id()
        return Solo.open(disk.kill().root, replace(fresh, head=head), identity)

    def _without_end(self, disk: MemoryDisk, solo: Solo) -> MemoryDisk:
        slot = solo.group.journal.slot(solo.head)
        path = slot.file.path.removeprefix("./")
        hurt = disk.clone()
        content = hurt.content(path)
        noise = Random(1).randbytes(700)
        hurt.put(path, content[: slot.position] + noise + content[slot.position + 700 :])
        return hurt

    def test_without_a_head_a_damaged_end_is_cut(self):
        disk, solo = self._grown()
        assert self._open(self._without_end(disk, solo), None).head == solo.head - 1

    def test_a_damaged_end_below_its_head_is_refused_with_the_time(self):
        disk, solo = self._grown()
        known = Head(solo.head, solo.group.journal.tip, 1_700_000_000_000_000)
        with pytest.raises(CorruptEntry, match=r"records op \d+ here at 2023-11-14T22:13:20Z"):
            self._open(self._without_end(disk, solo), known)

    def test_a_damaged_end_above_its_head_is_cut(self):
        disk, solo = self._grown()
        (newest,) = solo.group.journal.headers(solo.head, solo.head)
        known = Head(Op(newest.op - 1), newest.parent)
        assert self._open(self._without_end(disk, solo), known).head == known.op

    def test_another_entry_at_the_head_is_refused(self):
        disk, solo = self._grown()
        with pytest.raises(ChainBroken, match="is not the entry that was acknowledged"):
            self._open(disk, Head(solo.head, bytes(16)))

    def test_at_the_base_the_tip_is_compared_and_below_it_nothing(self):
        disk, solo = self._grown()
        base = solo.group.superblock.current.checkpoint
        assert self._open(disk, Head(base.op, base.tip)).head == solo.head
        assert self._open(disk, Head(Op(base.op - 1), bytes(16))).head == solo.head
        with pytest.raises(ChainBroken):
            self._open(disk, Head(base.op, bytes(16)))

    def test_a_group_whose_files_are_gone_is_not_made_again(self):
        with pytest.raises(MissingFile, match="its head was op 3"):
            self._open(MemoryDisk(), head(3))

    def test_an_intent_to_cut_below_the_head_is_refused(self):
        disk, solo = self._grown()
        known = Head(solo.head, solo.group.journal.tip)
        block = SuperblockFile(disk.root, solo.group.superblock.current)
        block.write(cut_from=known.op)
        with pytest.raises(CorruptFile, match="an unfinished cut from op"):
            self._open(disk, known)
        assert self._open(disk, None).head == known.op - 1

    def test_a_replica_with_peers_recovers_and_is_never_refused(self):
        identity = replace(SOLO, replica_count=3)
        disk = MemoryDisk()
        solo = Solo.open(disk.root, options(), identity)
        solo.group.journal.append(solo.seal([add("one", 1), add("two", 1)]))
        tip, op = solo.group.journal.tip, solo.head
        assert not self._open(disk, Head(op, tip), identity).report.is_recovering
        assert self._open(disk, Head(Op(op + 1), bytes(16)), identity).report.is_recovering
        assert self._open(disk, Head(op, bytes(16)), identity).report.is_recovering
