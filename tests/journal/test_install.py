"""A snapshot from a peer: put in place of all below it, and a crash anywhere is harmless."""

import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.journal.builders import (
    CLUSTER,
    FILE_SIZE,
    a_group,
    checkpoint,
    effects_of,
    frame_of,
    grow,
    grow_together,
    snapshot_path,
    some_options,
)

from headrace.errors import ChainBroken, DiskFull
from headrace.journal.entry import SEAL, Entry, Flaw
from headrace.journal.recovery.install import install
from headrace.journal.recovery.recover import recover
from headrace.journal.superblock import read_copies
from headrace.model.ids import OP_MAX, Identity, Op, ReplicaId
from headrace.storage.atomic import atomic_replace
from headrace_lab.counter.counter import CounterMachine
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk

PEER = replace(CLUSTER, replica=ReplicaId(1))


def a_source(peer: Identity = PEER) -> tuple[Entry, bytes, bytes, bytes]:
    """What a peer offers: the entry at its checkpoint, the snapshot's name, bytes, digest."""
    disk = MemoryDisk()
    group = a_group(disk, peer)
    grow(group, 20)
    op = checkpoint(group)
    assert op is not None
    entry = group.group.journal.read(op)
    assert entry is not None
    found = group.group.checkpoints.snapshots.load(op)
    assert not isinstance(found, Flaw)
    return entry, found.checksum, disk.content(snapshot_path(op)), group.machine.digest()


def a_late_group(
    disk: MemoryDisk,
    entries: int = 5,
    tail: Sequence[Entry] = (),
    syncing_to: Op | None = Op(21),
    **options: object,
):
    """A group that ran `entries` ops, and holds a tail of which it does not know the fate."""
    group = a_group(disk, CLUSTER, **options)
    grow(group, entries)
    if tail:
        group.group.journal.append(tail)
    group.group.superblock.write(syncing_to=syncing_to)
    return group


def the_log(size: int = 12) -> list[Entry]:
    """The peer's log, up to two ops above its checkpoint; with another size a different one."""
    source = a_group(MemoryDisk(), PEER)
    grow(source, 5)
    grow(source, 15, size)
    grow_together(source, [b""], SEAL)
    grow(source, 2, size)
    return source.sealed


TAILS = {
    "shorter": [],
    "shorter and different": the_log(13)[5:8],
    "different to right below it": the_log(13)[5:20],
    "equal to right below it": the_log()[5:20],
    "equal": the_log()[5:21],
    "equal and longer": the_log()[5:],
    "as long and different": the_log(13)[5:21],
    "longer and different": the_log(13)[5:],
}
any_tail = pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)


def test_the_state_is_the_peers_and_the_log_goes_on_behind_it():
    entry, checksum, data, digest = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk)
    assert install(group.group, entry, checksum, data) is False
    assert group.machine.digest() == digest
    assert (group.group.applied, group.head) == (21, 21)
    grow(group, 3)
    again = a_group(disk.power_cut(), CLUSTER)
    assert again.head == 24
    assert again.report.problem is None


def test_a_journal_that_goes_through_the_snapshot_is_kept():
    entry, checksum, data, _ = a_source()
    late = a_late_group(MemoryDisk(), tail=TAILS["equal and longer"])
    assert install(late.group, entry, checksum, data) is True
    assert (late.head, late.group.applied) == (23, 21)


def test_a_tail_that_does_not_lead_up_to_it_is_cut_as_suspect():
    entry, checksum, data, digest = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk, tail=TAILS["longer and different"])
    assert install(group.group, entry, checksum, data) is False
    assert (group.head, group.group.superblock.current.suspect) == (21, (21, 23))
    again = a_group(disk.power_cut(), CLUSTER)
    assert (again.head, again.machine.digest()) == (21, digest)


@any_tail
def test_the_entry_at_the_snapshot_is_kept_with_its_time_and_can_be_offered(tail):
    entry, checksum, data, _ = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk, tail=tail)
    assert not isinstance(install(group.group, entry, checksum, data), Flaw)
    for one in (group, a_group(disk.power_cut(), CLUSTER)):
        assert one.group.journal.read(Op(21)) == entry


def test_a_snapshot_below_what_ran_here_is_not_installed():
    entry, checksum, data, _ = a_source()
    group = a_late_group(MemoryDisk(), 25)
    flaw = install(group.group, entry, checksum, data)
    assert flaw == Flaw("op of the snapshot", "above 25, which was applied here", 21)
    assert (group.head, group.group.applied) == (25, 25)


def test_a_full_disk_in_the_middle_is_tried_again():
    entry, checksum, data, digest = a_source()
    base = MemoryDisk()
    a_late_group(base, tail=TAILS["shorter and different"]).group.journal.close()
    for prefix in ("journal/0", "snapshots/0"):
        disk = base.clone()
        group, _ = recover(disk.root, CLUSTER, machine := CounterMachine(), some_options())
        disk.hook = _full_once(prefix)
        with pytest.raises(DiskFull):
            install(group, entry, checksum, data)
        assert install(group, entry, checksum, data) is False
        assert (group.journal.durable, machine.digest()) == (21, digest)


def _full_once(prefix: str):
    """The first append to a file of this kind finds no room."""
    waits = [Fail(errno.ENOSPC)]

    def hook(effect):
        is_append = effect.kind == "write" and 0 < effect.size < 1000
        return waits.pop() if waits and is_append and prefix in effect.path else None

    return hook


def test_bytes_that_are_another_snapshot_are_not_installed():
    entry, checksum, data, _ = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk)
    spoiled = bytes([data[0] ^ 1]) + data[1:]
    assert isinstance(install(group.group, entry, checksum, spoiled), Flaw)
    assert isinstance(install(group.group, entry, b"x" * 16, data), Flaw)
    foreign = a_source(replace(PEER, cluster=bytes(15) + b"x"))
    assert isinstance(install(group.group, *foreign[:3]), Flaw)
    assert group.head == 5
    assert a_group(disk.power_cut(), CLUSTER).head == 5


def test_a_snapshot_that_a_start_relies_on_is_not_touched_by_bad_bytes():
    entry, checksum, data, digest = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk)
    assert install(group.group, entry, checksum, data) is False
    spoiled = bytes([data[0] ^ 1]) + data[1:]
    assert isinstance(install(group.group, entry, checksum, spoiled), Flaw)
    again = a_group(disk.power_cut(), CLUSTER)
    assert (again.head, again.machine.digest()) == (21, digest)


@pytest.mark.campaign(4)
@any_tail
@pytest.mark.parametrize("fault", [Crash(), CrashAfter()], ids=["before", "after"])
def test_after_a_crash_at_any_effect_it_can_be_installed_again(fault, tail):
    base = MemoryDisk()
    a_late_group(base, tail=tail).group.journal.close()
    assert _ends_of(base, fault) in ({4, 21}, {5, 21})  # the old state, or the new one


@pytest.mark.campaign(8)
@pytest.mark.parametrize("rotten", [(20,), (21,), (20, 21), (19, 20), (19, 20, 21)], ids=str)
@pytest.mark.parametrize("tail", ["equal and longer", "longer and different"])
@pytest.mark.parametrize("file_size", [FILE_SIZE, 4 * FILE_SIZE], ids=["files", "one file"])
@pytest.mark.parametrize("syncing_to", [None, Op(21)], ids=["rot", "rot in an install"])
@pytest.mark.parametrize("fault", [Crash(), CrashAfter()], ids=["before", "after"])
def test_after_a_crash_at_any_effect_no_frame_is_left_behind_rotten_ones(
    fault, syncing_to, file_size, tail, rotten
):
    base = MemoryDisk()
    group = a_late_group(base, 5, TAILS[tail], syncing_to, file_size=file_size)
    group.group.journal.mark()
    for op in rotten:
        place = frame_of(group, op)
        base.overwrite(place.path, place.position, b"\7" * place.size)
    assert _ends_of(base.kill(), fault) == {5, 21}


def test_the_file_of_an_unfinished_install_is_cut_away_however_far_above_it_stands():
    entry, checksum, data, digest = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk, tail=TAILS["shorter and different"])
    disk.hook = lambda effect: Crash() if effect.path.startswith("snapshots/") else None
    with pytest.raises(Crashed):
        install(group.group, entry, checksum, data)
    again = a_group(disk.power_cut(), CLUSTER, slots=16)
    assert (again.head, again.report.suspect) == (8, (9, 21))
    assert "an install was interrupted, and op 20 is missing" in again.report.problem
    assert again.report.faulty == ()
    assert install(again.group, entry, checksum, data) is False
    assert again.machine.digest() == digest


def test_a_journal_that_contradicts_the_snapshot_refuses_the_start():
    _, _, data, _ = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk, tail=TAILS["longer and different"])
    assert group.head == 23
    atomic_replace(disk.root.child("snapshots"), "00000000000000000021.snap", [data])
    with pytest.raises(ChainBroken, match="op 21 does not belong to the snapshot at op 21"):
        a_group(disk.power_cut(), CLUSTER)


def _ends_of(base: MemoryDisk, fault: Crash | CrashAfter) -> set[int]:
    """Crash an install at each of its effects, go on, and return what had been applied."""
    entry, checksum, data, digest = a_source()
    disk = base.clone()
    count = len(effects_of(disk, lambda: _installed(disk, entry, checksum, data)))
    ends = set()
    for number in range(1, count + 1):
        trial = base.clone()
        trial.hook = lambda effect, n=number: fault if effect.number == n else None
        with pytest.raises(Crashed):
            _installed(trial, entry, checksum, data)
        for after in (trial.power_cut(), trial.kill()):
            ends.add(_went_on(after, entry, checksum, data, digest))
    return ends


def _went_on(
    disk: MemoryDisk, entry: Entry, checksum: bytes, data: bytes, digest: bytes
) -> int:
    """Start from what a crash left, install if that is still to be done, and go on."""
    group = a_group(disk, CLUSTER)
    applied = int(group.group.applied)
    assert applied < 21 or group.group.superblock.current.syncing_to == 21
    if applied < 21:
        group.group.superblock.write(syncing_to=Op(21))
        assert not isinstance(install(group.group, entry, checksum, data), Flaw)
    assert group.machine.digest() == digest
    assert group.group.journal.read(Op(21)) == entry
    head = grow(group, 3)
    again = a_group(disk.power_cut(), CLUSTER)
    assert (again.head, again.report.problem) == (head, None)
    return applied


def _installed(disk: MemoryDisk, entry: Entry, checksum: bytes, data: bytes) -> None:
    group, _ = recover(disk.root, CLUSTER, CounterMachine(), some_options())
    if group.superblock.current.syncing_to is None:
        group.superblock.write(syncing_to=Op(21))
    install(group, entry, checksum, data)


def test_a_group_made_again_says_that_it_has_forgotten():
    disk = MemoryDisk()
    recover(disk.root, CLUSTER, CounterMachine(), some_options(forgotten=True))
    block = read_copies(disk.root, CLUSTER).best
    assert block is not None
    assert block.recovering
    assert block.suspect is None


def test_a_group_that_takes_the_place_of_a_lost_one_says_that_something_was_there():
    disk = MemoryDisk()
    recover(disk.root, CLUSTER, CounterMachine(), some_options(lost=True))
    block = read_copies(disk.root, CLUSTER).best
    assert block is not None
    assert block.recovering
    assert block.suspect == (1, OP_MAX)


def test_a_cut_of_what_was_lost_is_finished_though_it_was_committed():
    disk = MemoryDisk()
    group = a_group(disk, CLUSTER)
    grow(group, 8)
    group.group.superblock.write(commit=Op(8), cut_from=Op(6), suspect=(Op(6), Op(8)))
    again, report = recover(disk.power_cut().root, CLUSTER, CounterMachine(), some_options())
    assert again.journal.durable == 5
    assert report.suspect == (6, 8)
