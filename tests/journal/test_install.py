"""A snapshot from a peer: put in place of all below it, and a crash anywhere is harmless."""

from dataclasses import replace

import pytest
from tests.journal.builders import (
    CLUSTER,
    a_group,
    checkpoint,
    effects_of,
    grow,
    grow_together,
    snapshot_path,
    some_options,
)

from headrace.journal.entry import SEAL, Entry, Flaw
from headrace.journal.install import install
from headrace.journal.recovery import recover
from headrace.journal.superblock import read_copies
from headrace.model.ids import OP_MAX, Identity, Op, ReplicaId
from headrace.sim.counter import CounterMachine
from headrace.storage.faults import Crash, CrashAfter, Crashed
from headrace.storage.memory import MemoryDisk

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


def a_late_group(disk: MemoryDisk, entries: int = 5):
    group = a_group(disk, CLUSTER)
    grow(group, entries)
    group.group.superblock.write(syncing_to=Op(21))
    return group


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
    disk = MemoryDisk()
    source = a_group(disk, CLUSTER)
    grow(source, 20)
    grow_together(source, [b""], SEAL)
    grow(source, 2)
    late = a_group(disk.clone(), CLUSTER)
    assert source.group.checkpoints.run() == 21
    entry = source.group.journal.read(Op(21))
    found = source.group.checkpoints.snapshots.load(Op(21))
    assert entry is not None
    assert not isinstance(found, Flaw)
    data = disk.content(snapshot_path(21))
    assert install(late.group, entry, found.checksum, data) is True
    assert (late.head, late.group.applied) == (23, 21)


def test_a_tail_that_does_not_lead_up_to_it_is_cut_as_suspect():
    entry, checksum, data, digest = a_source()
    disk = MemoryDisk()
    group = a_late_group(disk, 25)
    assert install(group.group, entry, checksum, data) is False
    assert (group.head, group.group.superblock.current.suspect) == (21, (22, 25))
    again = a_group(disk.power_cut(), CLUSTER)
    assert (again.head, again.machine.digest()) == (21, digest)


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


@pytest.mark.parametrize("fault", [Crash(), CrashAfter()], ids=["before", "after"])
def test_a_crash_at_any_effect_leaves_the_old_state_or_the_new_one(fault):
    entry, checksum, data, digest = a_source()
    base = MemoryDisk()
    a_late_group(base).group.journal.close()
    disk = base.clone()
    count = len(effects_of(disk, lambda: _installed(disk, entry, checksum, data)))
    ends = set()
    for number in range(1, count + 1):
        trial = base.clone()
        trial.hook = lambda effect, n=number: fault if effect.number == n else None
        with pytest.raises(Crashed):
            _installed(trial, entry, checksum, data)
        for after in (trial.power_cut(), trial.kill()):
            machine = CounterMachine()
            group, report = recover(after.root, CLUSTER, machine, some_options())
            assert group.journal.durable in (5, 21)
            assert report.problem is None
            assert read_copies(after.root, CLUSTER).best.syncing_to == 21
            if group.journal.durable == 21:
                assert machine.digest() == digest
            ends.add(int(group.journal.durable))
    assert ends == {5, 21}


def _installed(disk: MemoryDisk, entry: Entry, checksum: bytes, data: bytes) -> None:
    group, _ = recover(disk.root, CLUSTER, CounterMachine(), some_options())
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
