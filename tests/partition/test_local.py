"""The local part of a snapshot: what it names, and bytes that are none."""

import msgspec
import pytest
from tests.partition.shards import KEY, Stubborn, a_disk, a_shard, files_in, layered

from headrace.errors import Corrupt, CorruptFile, UnsupportedFormat
from headrace.journal.snapshot import Snapshot, SnapshotFiles
from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.partition.files.placement import (
    FORMAT,
    NOTHING,
    Carried,
    Local,
    PlacedHere,
    UnplacedHere,
    decode,
    encode,
)
from headrace.partition.machine.state import Piece
from headrace_lab.counter.solo import SOLO

LOCAL = Local(
    FORMAT,
    (Carried(Op(7), b"c" * 16, 512),),
    (PlacedHere(Namespace(1), Revision(2), Offset(0), Offset(9), b"r" * 16, b"f" * 16, 99),),
    (
        UnplacedHere(
            Namespace(2**64 - 1),
            Revision(2**63),
            Offset(0),
            Offset(2**63 - 1),
            (Piece(Offset(0), 2, Op(3), 1_000, 64),),
            "why not",
        ),
    ),
)


@pytest.mark.parametrize("local", [NOTHING, LOCAL])
def test_it_comes_back_as_it_was(local):
    assert decode(encode(local)) == local


def test_its_names_are_those_of_files():
    assert LOCAL.names == {
        "00000000000000000007.carry",
        "0000000000000001-2-00000000000000000000-00000000000000000009.parquet",
    }
    assert NOTHING.names == frozenset()


def test_a_snapshot_names_exactly_what_is_on_disk():
    disk = a_disk(layered)
    snapshots = SnapshotFiles(disk.root.child("snapshots"), SOLO)
    newest = snapshots.load(snapshots.ops()[0])
    assert isinstance(newest, Snapshot)
    names = decode(newest.state.local).names
    there = {
        path.split("/")[1] for path in files_in(disk, "segments") + files_in(disk, "carry")
    }
    assert names == there


def test_what_is_unsealed_is_named_with_its_pieces_and_why():
    shard = a_shard(sealer=lambda: Stubborn({0}))
    shard.append_many(14)
    op = shard.checkpoint()
    snapshot = shard.store.group.checkpoints.snapshots.load(op)
    local = decode(snapshot.state.local)
    (one,) = local.unplaced
    assert (one.namespace, one.first, one.end) == (KEY.namespace, 0, 140)
    assert [piece.op for piece in one.pieces] == list(range(2, 16))
    assert one.flaw == "these rows are too beautiful"
    assert (local.placed, len(local.carried)) == ((), 1)


def test_another_format_is_unsupported():
    with pytest.raises(UnsupportedFormat) as caught:
        decode(msgspec.msgpack.encode([FORMAT + 1, "whatever comes then"]))
    assert (caught.value.expected, caught.value.found) == (FORMAT, FORMAT + 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([FORMAT]),
        msgspec.msgpack.encode([FORMAT, [], [], [], []]),
        msgspec.msgpack.encode([FORMAT, [[1, b"c", 5, 6]], [], []]),
        msgspec.msgpack.encode([FORMAT, [], [], [[1, 2, 3, 4, [[1, 2, 3, 4]], ""]]]),
        b"\x94\x01\x90\x90\x91\x96\x01\x02\x03\x04\x90\xa1\xff",  # a flaw that is not UTF-8
        b"\x94\x01" + b"\x91" * 5_000,
        encode(LOCAL) + b"\0",
    ],
)
def test_bytes_that_are_none_are_corrupt(data):
    with pytest.raises(CorruptFile):
        decode(data)


def test_each_byte_cut_or_turned_is_corrupt_or_another_value_never_a_raw_error():
    whole = encode(LOCAL)
    for at in range(len(whole)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            try:
                assert decode(data) != LOCAL
            except Corrupt:
                continue
