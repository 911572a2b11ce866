"""A journal that is asked to goes on in a file that never held anything, without spares."""

import itertools

import pytest
from tests.journal.builders import (
    Recorder,
    a_group,
    bodies_of,
    checkpoint,
    everything,
    grow,
    grow_together,
)
from tests.journal.test_spare import spare_names

from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk

SECRET = b"of a topic that is deleted"
BODY = SECRET.ljust(40, b".")


def holding(disk) -> list[str]:
    return [path for path in disk.files() if SECRET in disk.content(path)]


def a_used_group(disk=None, secrets=25):
    """Entries with a secret in three files, two of which are spares, and one is used again."""
    disk = MemoryDisk() if disk is None else disk
    group = a_group(disk)
    for _ in range(secrets):
        grow_together(group, [BODY], 99)
    checkpoint(group)
    checkpoint(group)
    grow(group, 3)
    return disk, group


def renew(group):
    group.group.journal.erase_through = group.group.applied


def test_nothing_of_before_is_in_any_file_after_two_checkpoints():
    disk, group = a_used_group()
    assert {path.partition("/")[2][:5] for path in holding(disk)} == {"spare", "00000"}
    renew(group)
    grow(group, 1)
    journal = group.group.journal
    assert spare_names(disk) == []
    assert set(disk.content(journal.newest.path)[journal.newest.end :]) == {0}
    assert journal.newest.header.first_op == journal.fresh_from == 31
    for _ in range(2):
        assert holding(disk)
        checkpoint(group)
    assert holding(disk) == []
    grow(group, 20)
    checkpoint(group)
    checkpoint(group)
    assert spare_names(disk), "what came later may be used again"


def test_one_without_an_entry_is_replaced():
    disk, group = a_used_group()
    journal = group.group.journal
    grow(group, 2)
    journal._roll(0)  # as a roll whose append then fails leaves it
    assert journal.newest.header.first_op == journal.durable + 1
    renew(group)
    grow(group, 1)
    assert journal.renewed_through == journal.erase_through
    assert a_group(disk.kill()).head == group.head


def test_a_full_disk_only_means_later():
    disk, group = a_used_group(secrets=23)
    spares = spare_names(disk)
    renew(group)
    disk.hook = lambda effect: Fail(28) if effect.kind in ("create", "truncate") else None
    head = grow(group, 1)
    journal = group.group.journal
    assert journal.renewed_through == 0
    assert journal.fresh_from == 0
    assert spare_names(disk) == spares, "the next roll may need one"
    disk.hook = None
    assert grow(group, 1) == head + 1
    assert journal.renewed_through == journal.erase_through
    assert journal.fresh_from == head + 1


def test_a_spare_that_cannot_be_removed_is_never_used_again():
    disk, group = a_used_group()
    (stuck, *_) = [path for path in holding(disk) if "spare" in path]
    renew(group)
    disk.hook = lambda effect: (
        Fail(1) if effect.kind == "unlink" and effect.path == stuck else None
    )
    grow(group, 25)  # three more files
    assert stuck in holding(disk)
    assert group.group.journal.spares.condemned == {stuck.rpartition("/")[2]}
    checkpoint(group)
    assert stuck in disk.files()
    disk.hook = None
    checkpoint(group)  # a journal that is written to all the time is never idle
    assert stuck not in disk.files()
    assert group.group.journal.spares.condemned == set()


@pytest.mark.parametrize("landed", ["nothing", "everything"])
def test_a_crash_anywhere_loses_nothing(landed):
    for reached in itertools.count(1):
        disk, group = a_used_group()
        before = bodies_of(group)
        renew(group)
        recorder = disk.hook = Recorder(reached, Crash())
        try:
            grow(group, 1)
        except Crashed:
            kept = [] if landed == "nothing" else everything(disk)
            again = a_group(disk.power_cut(kept))
            found = bodies_of(again)
            assert {op: found[op] for op in before if op in found} == {
                op: body for op, body in before.items() if op in found
            }
            assert again.head >= group.head
            assert grow(again, 30) >= group.head + 30
        else:
            assert len(recorder.effects) < reached
            assert reached > 8
            return
