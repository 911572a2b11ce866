"""The file of the copy of metadata: what is read back, after whatever happened to it."""

import errno
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from xxhash import xxh3_128_digest

from headrace.errors import (
    DiskFull,
    ForeignFile,
    HeadraceError,
    StorageFailed,
    UnsupportedFormat,
    WriteFailed,
)
from headrace.journal.entry import Entry, root
from headrace.model.ids import Op
from headrace.node.doubt.copy_writer import ROOM, CopyFile
from headrace.node.doubt.metadata_copy import HISTORY_MAX, NAME, Base, Copy, read_copy
from headrace_lab.counter.counter import add
from headrace_lab.counter.script import options
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.faults import Crashed, Effect, Fail
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.strikes import StrikeHook, deaths, strikes

GENESIS = Base(Op(0), root(SOLO), b"nothing", None)


class Life:
    """A group whose entries are in a copy, too; each step as the journal's thread takes it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.solo = Solo.open(MemoryDisk().root, options())
        self.file = CopyFile(disk.root, SOLO.cluster, {})
        self.entries: list[Entry] = []
        self.acknowledged = Op(0)

    def begin(self) -> None:
        self.file.begin(GENESIS)

    def append(self, *sizes: int) -> None:
        entries = self.solo.seal([add("a".ljust(size, "a"), 1) for size in sizes])
        self.file.make_room(entries)
        self._take(entries)

    def checkpoint(self, behind: int = 1) -> None:
        """Seal, and renew the copy only when some more entries came."""
        seal = self.solo.seal([b""], 1)
        self.file.make_room(seal)
        self._take(seal)
        captured = self.solo.group.checkpoints.pending[0]
        self.append(*[20] * behind)
        self.solo.group.checkpoints.run()
        self.file.renew(captured, self.solo.group.journal)

    def _take(self, entries: list[Entry]) -> None:
        self.solo.group.append(entries)
        for entry in entries:
            self.solo.group.apply(entry)
        self.entries += entries
        self.file.append(entries)
        self.acknowledged = entries[-1].op


def play(life: Life) -> None:
    life.begin()
    life.append(10)
    life.append(300, 5, 40)
    life.checkpoint()
    life.append(ROOM)
    life.append(7)
    life.checkpoint(2)
    life.append(9)


def check(life: Life, disk: MemoryDisk) -> Copy | None:
    """Everything acknowledged is there, and nothing that group 0 does not have."""
    found = read_copy(disk.root, SOLO)
    known = {entry.op: entry.checksum for entry in life.entries}
    # What was on its way is in group 0's journal, whatever became of it here.
    headers = life.solo.group.journal.headers(Op(1), life.solo.head)
    known |= {header.op: header.checksum for header in headers}
    if found.copy is None:
        assert life.acknowledged == 0
        return None
    assert found.copy.newest.op >= life.acknowledged
    assert all(known[op] == tip for op, tip in found.copy.history.items())
    return found.copy


def lived() -> Life:
    life = Life(MemoryDisk())
    play(life)
    return life


class TestReading:
    def test_it_is_read_as_it_was_written(self):
        life = lived()
        copy = check(life, life.disk)
        assert copy is not None
        assert copy.flaw is None
        assert copy.newest.op == life.solo.head
        assert list(copy.history) == list(range(1, life.solo.head + 1))
        assert copy.base.entry is not None
        assert copy.base.entry.op == copy.base.op == 9
        assert (
            copy.base.image
            == life.solo.group.checkpoints.snapshots.load(Op(9)).state.replicated
        )

    def test_no_single_byte_can_change_unnoticed(self):
        life = Life(MemoryDisk())
        life.begin()
        life.append(10)
        life.checkpoint()
        whole = read_copy(life.disk.root, SOLO)
        content = life.disk.content(NAME)
        for position in range(len(content) - ROOM + 300):
            disk = life.disk.clone()
            disk.flip(NAME, position * 8 + position % 8)
            try:
                found = read_copy(disk.root, SOLO)
            except (ForeignFile, UnsupportedFormat) as error:
                pytest.fail(f"byte {position}: {error}")
            is_padding = found.copy is not None and not content[position] and not found.flaw
            assert is_padding or found.flaw, f"byte {position}"
            if is_padding:  # zeros that fill up an entry are no part of it
                assert found == whole

    @pytest.mark.parametrize("size", [0, 50, 111, 112, 113, 400])
    def test_a_short_file_has_a_flaw(self, size):
        life = lived()
        life.disk.cut(NAME, size)
        assert read_copy(life.disk.root, SOLO).flaw

    def test_it_ends_before_a_bad_entry(self):
        life = Life(MemoryDisk())
        life.begin()
        life.append(10, 20, 30)
        at = life.disk.content(NAME).index(life.entries[1].sealed)
        life.disk.overwrite(NAME, at + 100, b"?")
        found = read_copy(life.disk.root, SOLO)
        assert found.copy is not None
        assert found.copy.newest.op == 1
        assert found.flaw.startswith("after op 1: entry header checksum")

    def test_what_does_not_chain_is_not_read(self):
        life = Life(MemoryDisk())
        life.begin()
        life.append(10, 20)
        at = life.disk.content(NAME).index(life.entries[1].sealed)
        strange = Solo.open(MemoryDisk().root, options())
        strange.append([add("x", 1)])
        (entry,) = strange.seal([add("y", 1)])
        life.disk.overwrite(NAME, at, entry.sealed + bytes(entry.body) + bytes(64))
        found = read_copy(life.disk.root, SOLO).copy
        assert found is not None
        assert found.newest.op == 1
        assert found.flaw is not None

    def test_another_cluster_and_a_newer_release_refuse(self):
        life = lived()
        with pytest.raises(ForeignFile):
            read_copy(life.disk.root, replace(SOLO, cluster=b"other-cluster-id"))
        content = life.disk.content(NAME)
        fields = content[16:26] + b"\x02\0" + content[28:112]
        life.disk.overwrite(NAME, 0, xxh3_128_digest(fields) + fields)
        with pytest.raises(UnsupportedFormat):
            read_copy(life.disk.root, SOLO)

    def test_a_file_that_is_not_there_is_missing(self):
        assert read_copy(MemoryDisk().root, SOLO).is_missing

    def test_an_unreadable_sector_is_a_flaw(self):
        life = lived()
        life.disk.read_fault = lambda *_: errno.EIO
        assert "Input/output error" in read_copy(life.disk.root, SOLO).flaw


class TestWriting:
    def test_an_append_is_one_write_and_one_sync(self):
        life = Life(MemoryDisk())
        life.begin()
        seen: list[Effect] = []
        life.disk.hook = seen.append
        life.append(10)
        assert [effect.kind for effect in seen] == ["write", "sync"]

    def test_the_history_keeps_the_newest(self):
        life = Life(MemoryDisk())
        many = {Op(op): bytes(16) for op in range(1, HISTORY_MAX + 100)}
        life.file.known = many
        life.file.begin(Base(Op(HISTORY_MAX + 50), bytes(16), b"", None))
        copy = read_copy(life.disk.root, SOLO).copy
        assert copy is not None
        assert list(copy.past) == list(range(50, HISTORY_MAX + 50))
        assert len(life.file.known) == HISTORY_MAX + 1

    @pytest.mark.parametrize(
        ("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, WriteFailed)]
    )
    def test_without_room_nothing_happened(self, number, error):
        life = Life(MemoryDisk())
        life.begin()
        life.disk.hook = lambda effect: (
            Fail(number, 100) if effect.kind == "write" and effect.size >= ROOM else None
        )
        with pytest.raises(error):
            life.append(2 * ROOM)
        assert life.solo.head == 0
        life.disk.hook = None
        life.append(2 * ROOM)
        assert check(life, life.disk).newest.op == 1

    @pytest.mark.parametrize("kind", ["write", "sync"])
    def test_after_a_failed_append_nothing_is_acknowledged_and_no_sync_is_tried_again(
        self, kind
    ):
        life = Life(MemoryDisk())
        life.begin()
        life.append(10)
        life.disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == kind else None
        with pytest.raises(StorageFailed):
            life.append(10)
        effects = life.disk.effect_count
        life.disk.hook = None
        for _ in range(3):
            with pytest.raises(StorageFailed):
                life.append(10)
        captured = replace_captured(life)
        life.file.renew(captured, life.solo.group.journal)
        assert life.disk.effect_count == effects
        assert "failed" in str(life.file.describe()["failure"])

    def test_a_start_without_room_is_made_up_for_by_the_first_append(self):
        life = Life(MemoryDisk())
        life.disk.hook = lambda effect: Fail(errno.ENOSPC) if effect.kind == "write" else None
        with pytest.raises(DiskFull):
            life.begin()
        with pytest.raises(DiskFull):
            life.append(10)
        assert life.solo.head == 0
        life.disk.hook = None
        life.append(10)
        assert check(life, life.disk).newest.op == 1

    def test_a_checkpoint_without_room_leaves_the_old_copy(self):
        life = Life(MemoryDisk())
        life.begin()
        life.append(10)
        life.disk.hook = lambda effect: (
            Fail(errno.ENOSPC) if effect.path.endswith(".tmp") else None
        )
        life.checkpoint()
        assert "No space" in life.file.failure or "no space" in life.file.failure
        life.append(10)
        copy = check(life, life.disk)
        assert copy.base.op == 0
        assert copy.newest.op == life.solo.head
        life.disk.hook = None
        life.checkpoint()
        assert life.file.failure == ""
        assert check(life, life.disk).base.op > 0

    def test_seals_that_waited_for_a_change_are_in_it_with_the_change(self):
        """As in doubt, where the file is left as it is: no checkpoint came between."""
        life = Life(MemoryDisk())
        life.begin()
        life.append(10)
        life.file.waits = True
        life.file.begin(Base(life.solo.head, life.entries[-1].checksum, b"state", None))
        seal = life.solo.seal([b""], 1)
        life.file.make_room(seal)
        life._take(seal)
        assert read_copy(life.disk.root, SOLO).copy.newest.op == 1  # left as it was
        life.append(20)
        assert check(life, life.disk).newest.op == life.solo.head == 3


def replace_captured(life: Life):
    life.solo.append([b""], 1)
    return life.solo.group.checkpoints.pending[-1]


@pytest.mark.parametrize("seed", [1])
def test_no_crash_takes_what_was_acknowledged(seed):
    rng = Random(seed)
    whole = Life(MemoryDisk())
    effects: list[Effect] = []
    whole.disk.hook = effects.append
    play(whole)
    cases = 0
    for strike in strikes(effects, rng):
        disk = MemoryDisk()
        disk.hook = StrikeHook(strike)
        life = Life(disk)
        with suppress(Crashed, HeadraceError):
            play(life)
        for _, after in deaths(disk, rng, 24):
            cases += 1
            check(life, after)
    assert cases > 1_000
