"""From findings to a plan: a judgement writes nothing and needs no running group."""

import pytest
from tests.journal.builders import (
    CLUSTER,
    SLOTS,
    a_body,
    a_disk_with,
    a_group,
    either,
    frame_of,
    grow_to_second_checkpoint,
    journal_path,
    rot_body,
    snapshot_path,
    torn_append,
    wipe,
)

from headrace.errors import CorruptEntry, CorruptSnapshot, MissingFile, TooFewSlots
from headrace.journal.recovery.judge import judge
from headrace.journal.recovery.survey import survey
from headrace.journal.snapshot import SnapshotFiles
from headrace.journal.superblock import NAMES
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk


def judged(disk, identity=SOLO, slots=SLOTS):
    before = disk.effect_count
    snapshots = SnapshotFiles(disk.root.child("snapshots"), identity)
    found = survey(disk.root, disk.root.child("journal"), snapshots)
    try:
        return judge(found, identity, slots, ".")
    finally:
        assert disk.effect_count == before


def two_checkpoints(identity=SOLO):
    disk = MemoryDisk()
    group = a_group(disk, identity)
    grow_to_second_checkpoint(group)
    group.group.idle()
    return disk, group


@either
def test_a_whole_group_is_replayed_above_its_newest_snapshot(identity):
    disk, group = two_checkpoints(identity)
    plan = judged(disk, identity)
    assert (plan.base, plan.head, plan.watermark, plan.previous_op) == (10, 12, 4, 5)
    assert (plan.commit, plan.replay_to) == (12, 12)
    assert plan.tip == group.sealed[-1].checksum
    assert (plan.fell_back, plan.problem, plan.cut_from, plan.suspect) == (
        False,
        None,
        None,
        None,
    )


def test_alone_the_head_is_committed_and_in_a_cluster_only_what_is_known_to_be():
    for identity, commit in ((SOLO, 5), (CLUSTER, 3)):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        group.group.append(group.seal([a_body()] * 3))
        group.group.journal.commit = group.head
        group.group.append(group.seal([a_body()] * 2))
        assert judged(disk, identity).commit == commit


@either
def test_a_torn_tail_is_cut_and_only_a_cluster_suspects_it(identity):
    disk, group = a_disk_with(3, identity)
    plan = judged(torn_append(disk, group, [a_body()], 200), identity)
    assert (plan.cut_from, plan.cut_last, plan.head) == (4, 4, 3)
    assert plan.suspect == (None if identity is SOLO else (4, 4))


def test_alone_damage_is_an_error_and_in_a_cluster_a_value():
    for identity in (SOLO, CLUSTER):
        disk, group = a_disk_with(5, identity)
        group.group.idle()
        rot_body(disk, frame_of(group, 3))
        if identity is SOLO:
            with pytest.raises(CorruptEntry):
                judged(disk)
        else:
            assert [one.op for one in judged(disk, CLUSTER).faulty] == [3]


def test_in_a_cluster_a_lost_file_is_a_problem_that_is_named():
    disk, group = a_disk_with(25, CLUSTER)
    group.group.idle()
    disk.remove(journal_path(11))
    plan = judged(disk, CLUSTER)
    assert isinstance(plan.problem, MissingFile)
    assert (plan.head, plan.suspect) == (10, (11, 25))


def test_a_snapshot_above_its_pairing_becomes_the_pair():
    disk, group = a_disk_with(6)
    journal = group.group.journal
    files = SnapshotFiles(disk.root.child("snapshots"), SOLO)
    snapshot = files.persist(journal.durable, journal.tip, group.machine.snapshot())
    plan = judged(disk)
    assert (plan.checkpoint.op, plan.checkpoint.snapshot) == (6, snapshot.checksum)
    assert plan.previous_op == 0


def test_without_a_superblock_the_older_snapshot_is_the_previous_one():
    disk, _ = two_checkpoints()
    for name in NAMES:
        disk.remove(name)
    plan = judged(disk)
    assert (plan.checkpoint.op, plan.previous_op) == (10, 5)


def test_the_older_snapshot_serves_only_if_the_journal_leads_to_the_pair():
    disk, group = two_checkpoints()
    disk.remove(snapshot_path(10))
    plan = judged(disk)
    assert (plan.base, plan.fell_back, plan.checkpoint.op) == (5, True, 10)
    rot_body(disk, frame_of(group, 7))
    with pytest.raises(CorruptSnapshot):
        judged(disk)


def test_slots_are_counted_from_the_previous_checkpoint():
    disk, _ = two_checkpoints()
    assert judged(disk, slots=8).head == 12
    with pytest.raises(TooFewSlots):
        judged(disk, slots=7)


def test_slots_are_never_counted_from_before_the_oldest_file():
    disk = MemoryDisk()
    group = a_group(disk)
    for _ in range(4):
        grow_to_second_checkpoint(group)
    disk.remove(snapshot_path(group.group.superblock.current.checkpoint.op))
    for name in NAMES:
        disk.remove(name)
    first = group.group.journal.first
    assert first > 1
    assert judged(disk, slots=group.head - first + 1).head == group.head


def test_a_new_file_is_needed_where_the_newest_ends_below_the_snapshot():
    disk, group = a_disk_with(4)
    journal = group.group.journal
    files = SnapshotFiles(disk.root.child("snapshots"), SOLO)
    files.persist(journal.durable, journal.tip, group.machine.snapshot())
    assert not judged(disk).needs_file
    for op in (3, 4):
        wipe(disk, frame_of(group, op))
    assert judged(disk).needs_file
