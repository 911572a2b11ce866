"""Carry files that are written again, mended, or carried on."""

from itertools import count

import msgspec
import pyarrow as pa
import pytest
from tests.partition.shards import (
    KEY,
    WRITER,
    ApartAndStubborn,
    Stubborn,
    a_shard,
    carry_path,
    files_in,
    sealed,
    some_rows,
)

from headrace.errors import DiskFull
from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.results import Receipt
from headrace.model.schema import canonical
from headrace.partition import checkpoint_files as keeper_module
from headrace.partition.files.carry import open_carry
from headrace.partition.files.carry_table import encode
from headrace.partition.files.placement import UnplacedHere
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Piece, Unplaced
from headrace.partition.reader import Key
from headrace.partition.scrub import scrub
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import appending, opening, publishing, purging, staging

NEVER = SegmentSizes(size_min=10**9, size_target=10**9, waited_max=10**9)


def a_first_try(disk, shard, room):
    """Begin a checkpoint that finds no space where `room` is written."""
    disk.hook = lambda effect: Fail(28) if effect.path.startswith(room) else None
    with pytest.raises(DiskFull):
        shard.checkpoint()
    disk.hook = None


def rot_is_found(disk, shard, *paths):
    """Have the last entry of carry files rot, and the scrub find it."""
    for path in paths:
        disk.flip(path, (len(disk.content(path)) - 200) * 8)
    assert [one for one in scrub(shard.store.keeper) if one]


def test_a_retry_that_mends_an_older_file_keeps_all_of_its_own():
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=NEVER)
    shard.append_many(3)
    older = carry_path(shard.checkpoint())
    shard.append_many(3)
    a_first_try(disk, shard, "snapshots/")
    rot_is_found(disk, shard, older)
    seal_op = shard.run()
    held = set(shard.store.keeper.files.carry[seal_op].ops)
    assert {6, 7, 8} <= held
    shard.append()
    newest = shard.checkpoint()
    dead = disk.kill()
    dead.flip(f"snapshots/{newest:020}.snap", 999)
    again = a_shard(dead, sizes=NEVER)
    assert again.store.report.fell_back
    assert again.ids() == list(range(70))


@pytest.mark.parametrize("cut", [False, True])
def test_a_crash_anywhere_in_a_retry_that_mends_an_older_file_loses_nothing_else(
    monkeypatch, cut
):
    """The first try carried the oldest file on, and is whole but for the superblock."""
    monkeypatch.setattr(keeper_module, "CARRY_COUNT_MAX", 2)
    for struck in count():
        disk = MemoryDisk()
        shard = a_shard(disk, sizes=NEVER)
        for _ in range(3):
            shard.append_many(3)
            older = carry_path(shard.checkpoint())
        shard.append_many(3)
        a_first_try(disk, shard, "superblock")
        rot_is_found(disk, shard, older)
        effects = count()
        disk.hook = lambda effect, n=struck, c=effects: Crash() if next(c) == n else None
        try:
            shard.run()
        except Crashed:
            again = a_shard(disk.power_cut() if cut else disk.kill(), sizes=NEVER)
        else:
            break
        # All but the entry that rotted: a start does not know what the scrub found.
        assert again.ids(0, 80) == list(range(80)), struck
        assert again.ids(90) == list(range(90, 120)), struck
    assert struck > 10
    assert shard.ids() == list(range(120))
    assert a_shard(disk.kill(), sizes=NEVER).ids() == list(range(120))


def test_a_retry_that_finds_the_disk_full_keeps_the_snapshot_of_the_first_try():
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=NEVER)
    shard.append_many(3)
    older = carry_path(shard.checkpoint())
    shard.append_many(3)
    a_first_try(disk, shard, "superblock")
    rot_is_found(disk, shard, older)
    disk.hook = lambda effect: Fail(28) if effect.path.startswith("carry") else None
    with pytest.raises(DiskFull):
        shard.run()
    assert f"snapshots/{shard.pending[0]:020}.snap" in disk.files()


@pytest.mark.parametrize("kind", [Stubborn, ApartAndStubborn])
def test_a_retry_drops_nothing_that_the_first_try_carried(monkeypatch, kind):
    """It has the only whole copy of an entry whose segment cannot be written."""
    monkeypatch.setattr(keeper_module, "CARRY_COUNT_MAX", 2)
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=SegmentSizes(1, 10**9, 10**9), sealer=lambda: kind({0}))
    shard.append_many(3)
    carries = [shard.checkpoint()]
    shard.store.machine.sizes = NEVER
    for _ in range(2):
        shard.append_many(3)
        carries.append(shard.checkpoint())
    shard.append_many(3)
    a_first_try(disk, shard, "superblock")
    rot_is_found(disk, shard, carry_path(carries[0]), carry_path(carries[-1]))
    assert shard.unsealed
    shard.run()
    assert shard.ids() == list(range(120))
    assert a_shard(disk.kill(), sizes=NEVER).ids() == list(range(120))


def test_a_carry_file_without_rows_holds_nothing():
    """Nobody writes one, but its checksums can be right."""
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=NEVER)
    shard.append_many(3)
    seal_op = shard.checkpoint()
    files = shard.store.keeper.files
    data, _ = encode(SOLO, seal_op, [])
    disk.put(carry_path(seal_op), data)
    forged = open_carry(files.carries, SOLO, seal_op)
    assert not forged.ops
    files.add_carry(forged)
    assert files.carry_of(Op(2)) is None


def test_a_retry_with_nothing_new_writes_no_second_file():
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=NEVER)
    shard.append_many(3)
    a_first_try(disk, shard, "snapshots/")
    seen = []
    disk.hook = lambda effect: seen.append(effect.path)
    shard.run()
    assert not any(path.startswith("carry/") for path in seen)
    assert a_shard(disk.kill(), sizes=NEVER).ids() == list(range(30))


def test_one_staged_entry_does_not_hold_a_file_for_ever(monkeypatch):
    monkeypatch.setattr(keeper_module, "CARRY_COUNT_MAX", 4)
    disk = MemoryDisk()
    shard = a_shard(disk)
    receipts = []
    for number in range(20):
        stage = b"%016d" % number
        rows = some_rows(10 * number, 10)
        staged = shard.one(staging(KEY, rows, WRITER, 1, (stage, 0)))
        receipts.append(staged.receipt)
        shard.checkpoint()
        assert len(shard.store.keeper.files.carry_ops) <= 6
        assert len(files_in(disk, "carry")) <= 7
    disk = disk.kill()
    shard = a_shard(disk)
    assert isinstance(receipts[0], Receipt)
    shard.one(publishing(KEY, WRITER, 1, receipts))
    assert shard.ids() == list(range(200))
    for _ in range(3):
        shard.checkpoint()
        assert shard.ids() == list(range(200))
    assert a_shard(disk.kill()).ids() == list(range(200))


def test_a_rotten_entry_stays_where_it_is_when_the_others_are_carried_on(monkeypatch):
    monkeypatch.setattr(keeper_module, "CARRY_COUNT_MAX", 2)
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=NEVER)
    shard.append_many(2)
    path = carry_path(shard.checkpoint())
    for _ in range(2):
        shard.append()
        shard.checkpoint()
    disk.flip(path, (len(disk.content(path)) - 200) * 8)
    for _ in range(6):
        shard.append()
        shard.checkpoint()
    assert path in disk.files()
    assert shard.ids(0, 10) == list(range(10))
    assert shard.ids(20, 100) == list(range(20, 100))


def test_our_own_orphan_is_known_by_its_footer_however_wide_it_is():
    disk = MemoryDisk()
    shard = a_shard(disk)
    path = sealed(shard)
    assert shard.store.keeper.files._is_ours(path.split("/")[1])
    disk.put("segments/short", b"PAR1")
    assert not shard.store.keeper.files._is_ours("short")
    shard.one(purging(KEY))
    assert shard.store.reader.bounds(KEY) == (Offset(140), Offset(140))


MAP = pa.field("m", pa.map_(pa.string(), pa.int64()))
NESTED = pa.schema(
    [pa.field("c", pa.struct([pa.field("a", pa.struct([MAP]), nullable=False)]))]
)


def test_nulls_inside_a_null_struct_are_sealed_and_read_as_they_were():
    disk = MemoryDisk()
    shard = a_shard(disk, sizes=SegmentSizes(1, 10**6, 1))
    key = Key(Namespace(1 << 40), Revision(3))
    schema = canonical(NESTED)
    shard.one(opening(key, [schema], Revision(3), Revision(3)))
    rows = pa.record_batch([pa.array([{"a": {"m": [("k", 1)]}}, None], schema[0].type)], schema)
    shard.one(appending(key, rows, WRITER, 1))
    before = shard.rows(key=key)
    shard.checkpoint()
    assert shard.store.findings == []
    after = shard.rows(key=key)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.to_pylist() == before.to_pylist()


@pytest.mark.parametrize(("first", "row_count"), [(5, 10), (0, 9), (0, -1)])
def test_pieces_that_are_not_all_of_their_segment_are_not_believed(first, row_count):
    pieces = (Piece(first, row_count, 3, 0, 1),)
    one = UnplacedHere(Namespace(0), Revision(1), Offset(0), Offset(10), pieces, "no space")
    assert keeper_module._unplaced(one).pieces == ()
    whole = (Piece(0, 4, 3, 0, 1), Piece(4, 6, 4, 0, 1))
    fine = msgspec.structs.replace(one, pieces=whole)
    assert keeper_module._unplaced(fine) == Unplaced(whole, "no space")
