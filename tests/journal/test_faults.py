"""EIO and ENOSPC at every effect of a group's life: the exact error, and what is left.

Each table lists every effect of one act in order. A row says what is called, and how the act
ends if that call fails with EIO, and with ENOSPC; "-" means that the failure changes nothing.
"""

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.journal.builders import (
    FRAMES_PER_FILE,
    Grown,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    bodies_of,
    checkpoint,
    effects_of,
    everything,
    frame_of,
    grow,
    grow_to_second_checkpoint,
    grow_together,
    rot_body,
    snapshot_path,
    torn_append,
)

from headrace.errors import HeadraceError, StorageFailed, Unavailable
from headrace.journal.entry import SEAL
from headrace.model.ids import Op
from headrace_lab.disk.faults import Effect, Fail, LoseSync
from headrace_lab.disk.memory import MemoryDisk

EIO, ENOSPC, LOST = Fail(errno.EIO), Fail(errno.ENOSPC), LoseSync(errno.EIO)


@dataclass(frozen=True)
class Act:
    """What came before, what is done, and each of its effects with the two outcomes."""

    prepare: Callable[[Grown], object]
    do: Callable[[Grown], object]
    rows: str

    def table(self) -> list[tuple[str, str, str]]:
        lines = [line.split("|") for line in self.rows.strip().splitlines()]
        return [
            (" ".join(what.split()), eio.strip(), full.strip()) for what, eio, full in lines
        ]


def drop_spares(group: Grown) -> None:
    spares = group.group.journal.spares
    for name in spares.names():
        spares.directory.unlink(name)
    spares.directory.sync()


def fill_the_file(group: Grown) -> None:
    grow(group, FRAMES_PER_FILE)


def fill_the_file_and_drop_spares(group: Grown) -> None:
    fill_the_file(group)
    drop_spares(group)


def capture_a_third_checkpoint(group: Grown) -> None:
    for _ in range(2):
        grow(group, 11)
        checkpoint(group)
    grow(group, 3)
    grow_together(group, [b""], SEAL)


def grow_to_a_late_checkpoint(group: Grown) -> None:
    grow(group, 25)
    checkpoint(group)


_SUPERBLOCK = """
    create superblock.a  | StorageFailed write     | DiskFull write
    write superblock.a   | StorageFailed write     | DiskFull write
    sync superblock.a    | StorageFailed sync      | StorageFailed sync
    rename superblock.a  | StorageFailed rename    | DiskFull rename
    sync-dir group       | StorageFailed sync-dir  | StorageFailed sync-dir
    create superblock.b  | StorageFailed write     | DiskFull write
    write superblock.b   | StorageFailed write     | DiskFull write
    sync superblock.b    | StorageFailed sync      | StorageFailed sync
    rename superblock.b  | StorageFailed rename    | DiskFull rename
    sync-dir group       | StorageFailed sync-dir  | StorageFailed sync-dir
"""
_ENLIST = """
    write spare      | StorageFailed roll                | DiskFull roll
    sync spare       | StorageFailed sync of a new file  | StorageFailed sync of a new file
    rename file 11   | StorageFailed roll                | DiskFull roll
    sync-dir journal | StorageFailed sync of a new name  | StorageFailed sync of a new name
    sync-dir spares  | StorageFailed sync of a new name  | StorageFailed sync of a new name
    write file 1     | WriteFailed                       | DiskFull end
    sync file 1      | StorageFailed end                 | StorageFailed end
    write file 11    | WriteFailed                       | DiskFull append
    sync file 11     | StorageFailed append              | StorageFailed append
"""
_RETIRE = """
rename spare     | -                                    | -
sync-dir spares  | StorageFailed sync of a drained name | StorageFailed sync of a drained name
sync-dir journal | StorageFailed sync of a drained name | StorageFailed sync of a drained name
"""

ACTS = {
    "append": Act(
        lambda group: grow(group, 3),
        lambda group: grow(group, 1),
        """
        write file 1 | WriteFailed          | DiskFull append
        sync file 1  | StorageFailed append | StorageFailed append
        """,
    ),
    "mark": Act(
        lambda group: grow(group, 3),
        lambda group: group.group.idle(),
        """
        write file 1 | WriteFailed        | DiskFull mark
        sync file 1  | StorageFailed mark | StorageFailed mark
        """,
    ),
    "roll": Act(fill_the_file, lambda group: grow(group, 1), _ENLIST),
    "roll without a spare": Act(
        fill_the_file_and_drop_spares,
        lambda group: grow(group, 1),
        """
        create spare    | StorageFailed roll                | DiskFull roll
        truncate spare    | StorageFailed roll                | DiskFull roll
        sync spare      | StorageFailed roll                | DiskFull roll
        rename spare    | StorageFailed roll                | DiskFull roll
        sync-dir spares | StorageFailed sync of a new spare | StorageFailed sync of a new spare
        """
        + _ENLIST.strip(),
    ),
    "drain": Act(
        grow_to_a_late_checkpoint,
        lambda group: group.group.journal.drain(Op(20)),
        _RETIRE + _RETIRE.strip(),
    ),
    "checkpoint": Act(
        capture_a_third_checkpoint,
        lambda group: group.group.checkpoints.run(),
        """
        create snapshot 28 | StorageFailed write    | DiskFull write
        write snapshot 28  | StorageFailed write    | DiskFull write
        sync snapshot 28   | StorageFailed sync     | StorageFailed sync
        rename snapshot 28 | StorageFailed rename   | DiskFull rename
        sync-dir snapshots | StorageFailed sync-dir | StorageFailed sync-dir
        """
        + _SUPERBLOCK.strip()
        + """
        unlink snapshot 12 | -                   | -
        sync-dir snapshots | StorageFailed prune | StorageFailed prune
        """
        + _RETIRE.strip(),
    ),
    "stop": Act(
        lambda group: grow(group, 3),
        lambda group: group.group.stop(),
        """
        write file 1 | WriteFailed        | DiskFull mark
        sync file 1  | StorageFailed mark | StorageFailed mark
        """
        + _SUPERBLOCK.strip(),
    ),
}


def label(effect: Effect) -> str:
    """Name an effect as the tables do: what happens to which kind of file."""
    rules = [
        (r"\.", "group"),
        (r"journal/spare", "spares"),
        (r"journal/spare/.*", "spare"),
        (r"journal/0*(\d+)\.wal", r"file \1"),
        (r"snapshots/0*(\d+)\.snap(\.tmp)?", r"snapshot \1"),
        (r"(superblock\..)(\.tmp)?", r"\1"),
        (r"(\w+)", r"\1"),
    ]
    for pattern, name in rules:
        if found := re.fullmatch(pattern, effect.path):
            return f"{effect.kind} {found.expand(name)}"
    raise AssertionError(effect.path)


def outcome(error: HeadraceError | None) -> str:
    if error is None:
        return "-"
    return f"{type(error).__name__} {getattr(error, 'stage', '')}".strip()


def prepared(act: Act) -> tuple[MemoryDisk, Grown]:
    disk = MemoryDisk()
    group = a_group(disk)
    act.prepare(group)
    return disk, group


def attempt(act: Callable[[Grown], object], group: Grown) -> HeadraceError | None:
    try:
        act(group)
    except HeadraceError as error:
        return error
    return None


def cases(pattern: str = ".*"):
    """Parametrize with every failing effect whose outcome matches."""
    found = [
        pytest.param(name, number, fault, id=f"{name}-{number}-{what}-{kind}")
        for name, act in ACTS.items()
        for number, (what, eio, full) in enumerate(act.table(), 1)
        for kind, fault in (("EIO", EIO), ("ENOSPC", ENOSPC), ("lost", LOST))
        if fault is not LOST or what.startswith("sync")
        if re.fullmatch(pattern, full if fault is ENOSPC else eio)
    ]
    return pytest.mark.parametrize(("name", "number", "fault"), found)


_OF_SMALL_FILES = "write|sync|rename|sync-dir|prune"


@pytest.mark.parametrize("name", ACTS)
def test_the_table_lists_every_effect(name):
    disk, group = prepared(ACTS[name])
    effects = effects_of(disk, lambda: ACTS[name].do(group))
    assert [label(effect) for effect in effects] == [row[0] for row in ACTS[name].table()]


@cases()
def test_each_failing_effect_has_its_own_error(name, number, fault):
    disk, group = prepared(ACTS[name])
    recorder = disk.hook = Recorder(number, fault)
    error = attempt(ACTS[name].do, group)
    what, eio, full = ACTS[name].table()[number - 1]
    assert recorder.landed is not None
    assert label(recorder.landed) == what
    assert outcome(error) == (full if fault is ENOSPC else eio)
    if isinstance(error, StorageFailed):
        assert error.cause.errno == fault.errno
        assert error.path


@cases()
def test_after_each_failing_effect_nothing_acknowledged_is_lost(name, number, fault):
    disk, group = prepared(ACTS[name])
    acknowledged, head = bodies_of(group), group.head
    disk.hook = Recorder(number, fault)
    error = attempt(ACTS[name].do, group)
    disk.hook = None
    for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.clone().kill()):
        again = a_group(after)
        if isinstance(error, Unavailable):
            assert again.head == group.head
        drained = max(one.group.journal.ring.watermark for one in (group, again))
        kept = {op: body for op, body in acknowledged.items() if op > drained}
        assert kept.items() <= bodies_of(again).items()
        assert again.head - head in (0, 1)
        assert again.machine.counters["k..."] == sum(
            entry.header.operation != SEAL for entry in group.sealed if entry.op <= again.head
        )


@cases("DiskFull.*|WriteFailed")
def test_unavailable_means_that_the_next_try_works(name, number, fault):
    disk, group = prepared(ACTS[name])
    disk.hook = Recorder(number, fault)
    assert isinstance(attempt(ACTS[name].do, group), Unavailable)
    assert group.group.journal.poisoned is None
    assert group.group.superblock.poisoned is None
    disk.hook = None
    ACTS[name].do(group)
    expected = group.head
    again = a_group(disk.power_cut())
    assert again.head == expected
    assert again.machine.digest() == group.machine.digest()


@cases(f"StorageFailed (?!({_OF_SMALL_FILES})$).*")
def test_a_poisoned_journal_stays_poisoned_and_touches_no_disk(name, number, fault):
    disk, group = prepared(ACTS[name])
    disk.hook = Recorder(number, fault)
    error = attempt(ACTS[name].do, group)
    journal = group.group.journal
    assert error is journal.poisoned
    assert isinstance(error, StorageFailed)
    assert error.hint
    disk.hook = recorder = Recorder()
    for call in (
        lambda: group.append([a_body()]),
        lambda: journal.append([]),
        lambda: journal.read(group.head),
        journal.mark,
        lambda: journal.drain(Op(1)),
        group.group.stop,
    ):
        with pytest.raises(StorageFailed) as caught:
            call()
        assert caught.value is error
    assert recorder.effects == []


@cases(f"StorageFailed ({_OF_SMALL_FILES})")
def test_a_superblock_that_failed_is_never_written_again(name, number, fault):
    disk, group = prepared(ACTS[name])
    hook = disk.hook = Recorder(number, fault)
    error = attempt(ACTS[name].do, group)
    of_superblock = "superblock" in hook.landed.path or hook.landed.path == "."
    assert group.group.superblock.poisoned is (error if of_superblock else None)
    if not of_superblock:
        return
    disk.hook = recorder = Recorder()
    with pytest.raises(StorageFailed) as caught:
        group.group.superblock.write()
    assert caught.value is error
    assert recorder.effects == []


@cases()
def test_no_failed_sync_is_tried_again(name, number, fault):
    disk, group = prepared(ACTS[name])
    recorder = disk.hook = Recorder(number, fault)
    for _ in range(3):
        attempt(ACTS[name].do, group)
        attempt(lambda group: grow(group, 1), group)
        attempt(lambda group: group.group.checkpoints.run(), group)
    assert recorder.landed is not None
    assert recorder.retried_syncs == []


@pytest.mark.parametrize("number", [2, 3], ids=["write", "sync"])
@pytest.mark.parametrize(
    ("name", "first", "stage"),
    [("append", 1, "append"), ("mark", 1, "mark"), ("roll", 6, "end")],
)
def test_a_write_that_cannot_be_undone_poisons(name, first, stage, number):
    disk, group = prepared(ACTS[name])
    acknowledged = bodies_of(group)
    seen = []

    def hook(effect):
        seen.append(effect)
        if len(seen) == first:
            return Fail(errno.EIO, done=100)
        return EIO if len(seen) == first + number - 1 else None

    disk.hook = hook
    error = attempt(ACTS[name].do, group)
    assert outcome(error) == f"StorageFailed undo of {stage}"
    assert group.group.journal.poisoned is error
    disk.hook = None
    for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
        assert bodies_of(a_group(after)) == acknowledged


@pytest.mark.parametrize("done", [0, 1, 63, 64, 320, 332, 383])
def test_a_short_write_is_undone_durably(done):
    disk, group = a_disk_with(3)
    disk.hook = Recorder(1, Fail(errno.EIO, done))
    assert outcome(attempt(lambda group: grow(group, 1), group)) == "WriteFailed"
    disk.hook = None
    assert disk.pending() == []
    place = frame_of(group, 3)
    assert not any(disk.content(place.path)[place.end :])
    again = a_group(disk.power_cut())
    assert again.head == 3
    assert again.report.cut is None


def test_a_roll_that_is_undone_leaves_the_old_file_to_go_on_in():
    disk, group = a_disk_with(FRAMES_PER_FILE - 2)
    disk.hook = Recorder(6, EIO)
    error = attempt(lambda group: grow(group, 1, 3000), group)
    disk.hook = None
    assert outcome(error) == "WriteFailed"
    assert grow(group, 1) == 9
    assert len(group.group.journal.files) == 1
    again = a_group(disk.power_cut())
    assert again.head == 9
    assert again.report.notes == ()


def test_a_failing_sync_of_one_group_leaves_the_others_readable_after_a_reopen():
    disk, group = a_disk_with(3)
    disk.hook = Recorder(2, LOST)
    assert outcome(attempt(lambda group: grow(group, 1), group)) == "StorageFailed append"
    assert sorted(bodies_of(a_group(disk.kill()))) == [1, 2, 3]


# Recovery itself, on disks that give each of its steps something to do.


def after_a_torn_append() -> MemoryDisk:
    disk, group = a_disk_with(3)
    return torn_append(disk, group, [a_body(), a_body()], 500)


def after_frames_that_no_sync_reached() -> MemoryDisk:
    disk, group = a_disk_with(FRAMES_PER_FILE)
    disk.hook = lambda effect: (
        LOST if effect.path.endswith("11.wal") and effect.kind == "sync" else None
    )
    attempt(lambda group: grow(group, 1), group)
    return disk.kill()


def after_rot_of_the_newest_snapshot() -> MemoryDisk:
    disk = MemoryDisk()
    grow_to_second_checkpoint(a_group(disk))
    disk = disk.kill()
    disk.flip(snapshot_path(10), 900)
    return disk


def after_rot_below_the_snapshot() -> MemoryDisk:
    disk = MemoryDisk()
    group = a_group(disk)
    grow_to_second_checkpoint(group)
    place = frame_of(group, 7)
    disk = disk.kill()
    rot_body(disk, place)
    disk.overwrite(place.path, 0, bytes(512))
    return disk


def after_a_crash_inside_a_checkpoint() -> MemoryDisk:
    disk = MemoryDisk()
    group = a_group(disk)
    capture_a_third_checkpoint(group)
    disk.hook = Recorder(6, EIO)
    attempt(lambda group: group.group.checkpoints.run(), group)
    return disk.power_cut()


def after_nothing() -> MemoryDisk:
    return MemoryDisk()


DISKS = [
    after_nothing,
    after_a_torn_append,
    after_frames_that_no_sync_reached,
    after_rot_of_the_newest_snapshot,
    after_rot_below_the_snapshot,
    after_a_crash_inside_a_checkpoint,
]


@pytest.mark.parametrize("fault", [EIO, ENOSPC, LOST], ids=["EIO", "ENOSPC", "lost"])
@pytest.mark.parametrize("make", DISKS, ids=lambda make: make.__name__)
def test_a_recovery_that_fails_anywhere_is_repeated_to_the_same_end(make, fault):
    disk = make()
    whole = disk.clone()
    recorder = whole.hook = Recorder()
    expected = a_group(whole)
    landed = 0
    for effect in recorder.effects:
        if fault is LOST and not effect.kind.startswith("sync"):
            continue
        failing = disk.clone()
        failing.hook = hook = Recorder(effect.number, fault)
        try:
            report = a_group(failing).report
        except StorageFailed:
            pass
        except Unavailable:
            assert fault is ENOSPC
        else:  # a spare can be done without; a checkpoint that found no room is noted
            of_spare = hook.landed.path.startswith("journal/spare")
            stays = hook.landed.kind == "unlink" or hook.landed.path.startswith("quarantine/")
            assert of_spare or stays or "no space left" in report.notes[-1].what
        failing.hook = None
        for after in (
            failing.power_cut(),
            failing.power_cut(everything(failing)),
            failing.kill(),
        ):
            again = a_group(after)
            assert again.head == expected.head
            assert again.machine.digest() == expected.machine.digest()
        landed += 1
    assert landed >= 6
