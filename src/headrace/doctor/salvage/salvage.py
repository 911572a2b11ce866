"""Make a new, healthy log of every row that can be read and proven in a damaged one.

    look        the damaged log, as the doctor does; nothing in it is changed
    check       every segment, byte by byte and row by row, in processes of their own
    write       topics, then rows in order, then cursors, into NEW_DIR/unfinished-salvage
    read back   every row of the new log, compared by digest with what was taken over
    move        the new log into its place, which it gets only when it is whole

A salvage that was interrupted is begun again by the same command: what it had made is removed
first. Nothing else in NEW_DIR is ever removed.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from headrace.doctor.examine import Tell, look_at_log, say_nothing, segment_tasks
from headrace.doctor.findings.layout import REPORT_NAME, strangers
from headrace.doctor.findings.log_findings import LogSight, metadata_findings, uncounted
from headrace.doctor.findings.ownership import identities, who_is
from headrace.doctor.look.deep_check import Task, check_all
from headrace.doctor.look.orphan_segment import LoneState
from headrace.doctor.look.readonly import ReadonlyDirectory, kept_still, refuse_if_barred
from headrace.doctor.look.row_sources import located
from headrace.doctor.look.segments import SegmentState
from headrace.doctor.rebuild.rebuild import lone_tasks, rebuild
from headrace.doctor.salvage.new_log import make
from headrace.doctor.salvage.row_transfer import RowTransfer, States
from headrace.doctor.salvage.salvage_report import Account
from headrace.doctor.salvage.topic_plans import plan_topics
from headrace.errors import (
    BadRequest,
    DirectoryHeld,
    DiskFull,
    HeadraceError,
    StorageFailed,
)
from headrace.model.ids import GroupId
from headrace.node.identity import GROUPS, METADATA, look
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.storage.seam import is_full

UNFINISHED: Final = "unfinished-salvage"


def salvage(source: str, target: str, *, tell: Tell = say_nothing) -> Account:
    """Bring every provable row of the log in `source` into a new log in `target`.

    BadRequest if `target` is not new or empty, DirectoryHeld if a process has `source`,
    StorageFailed if this user may not read all of it.
    """
    root = ReadonlyDirectory.of(source)
    refuse_if_barred(root)
    with _still(root, source):
        who = who_is(root)
        if who.cluster is None:
            raise BadRequest(f"{source} holds no log", hint="Name a node's data directory")
        place = _prepared(source, target)
        log = look_at_log(root, who, tell)
        try:
            _rebuild(log, tell)
            states = _checked(log, tell)
            account = _written(log, states, (source, target), tell)
        except DiskFull as error:
            raise _full(target) from error
        except OSError as error:
            if is_full(error):
                raise _full(target) from error
            raise StorageFailed(str(error.filename or target), "salvage", error) from error
        finally:
            log.close()
        _move(place)
    return account


def _full(target: str) -> DiskFull:
    error = DiskFull(target, "salvage")
    error.hint = "Free some space, or name a directory elsewhere, and run it again"
    return error


class _still:  # noqa: N801 - used as a function
    """Keep nodes from starting in the source meanwhile."""

    def __init__(self, root: ReadonlyDirectory, source: str) -> None:
        try:
            self._descriptor = kept_still(root)
        except BlockingIOError as error:
            raise DirectoryHeld(source, who_is(root).holder.pid) from error

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _prepared(source: str, target: str) -> Path:
    """Return the directory to write into, empty but for a place for what is unfinished."""
    place = Path(target)
    if Path(source).resolve() in (place.resolve(), *place.resolve().parents):
        raise BadRequest(
            f"{target} is in {source}",
            hint="Name a directory elsewhere: that one stays as it is",
        )
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {one.name for one in place.iterdir()}
        if names and not _is_unfinished(place, names):
            raise BadRequest(f"{target} is not empty", hint="Name a new or an empty directory")
        for name in sorted(names):
            _remove(place / name)
        (place / UNFINISHED).mkdir(mode=0o700)
    except OSError as error:
        raise StorageFailed(target, "make", error) from error
    return place


def _is_unfinished(place: Path, names: set[str]) -> bool:
    """Say whether all that is here is what an interrupted salvage left.

    While it moves, the identity of the new log is still in the unfinished part: what is beside
    it must be of that very cluster, and nobody else's.
    """
    if UNFINISHED not in names or not names <= {UNFINISHED, GROUPS, REPORT_NAME}:
        return False
    if names == {UNFINISHED}:
        return True
    try:
        made = look(ReadonlyDirectory.of(str(place / UNFINISHED))).cluster
    except HeadraceError:
        return False
    root = ReadonlyDirectory.of(str(place))
    if made is None or any(strangers(root, [METADATA, *made.shards], {UNFINISHED})):
        return False
    home = root.within(GROUPS)
    found = [one for name in home.rooms() for one in identities(home.within(name))]
    return bool(found) and all(one.cluster == made.identity.cluster for one in found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _move(place: Path) -> None:
    """Give a whole log its place. Where this ends half way, the next salvage begins anew."""
    made = place / UNFINISHED
    with suppress(FileNotFoundError):
        (made / "LOCK").unlink()
    for name in (GROUPS, REPORT_NAME, CLUSTER_NAME):
        (made / name).rename(place / name)
    made.rmdir()
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rebuild(log: LogSight, tell: Tell) -> None:
    """Give each shard without a usable snapshot the state that its files still tell."""
    lost = [shard for shard in log.shards.values() if shard.replayed is None]
    tasks = {number: lone_tasks(shard) for number, shard in enumerate(lost)}
    wanted: list[Task] = [task for some in tasks.values() for task in some]
    found = dict(check_all(wanted, "reading segments", tell))
    is_complete = log.metadata is not None and not any(uncounted(metadata_findings(log)))
    for number, shard in enumerate(lost):
        states = [found[task] for task in tasks[number]]
        own = [one for one in states if isinstance(one, LoneState)]
        rebuild(shard, log.names.metadata, is_complete, own)


def _checked(log: LogSight, tell: Tell) -> States:
    """Check every segment, and find those that are not where they should be."""
    tasks: dict[tuple[str, str], GroupId] = {}
    wanted: list[Task] = []
    for number, shard in log.shards.items():
        for task in segment_tasks(shard):
            tasks[task.directory, task.name] = number
            wanted.append(task)
    found: dict[GroupId, dict[str, SegmentState]] = {number: {} for number in log.shards}
    for checked, state in check_all(wanted, "checking segments", tell):
        assert isinstance(state, SegmentState)
        found[tasks[checked.directory, checked.name]][checked.name] = state
    return {number: located(shard, found[number]) for number, shard in log.shards.items()}


def _written(log: LogSight, states: States, places: tuple[str, str], tell: Tell) -> Account:
    plans, made = plan_topics(log), Path(places[1]) / UNFINISHED
    assert log.who.cluster is not None
    new = make(str(made), log.who.cluster, log.who.config.journal.file_size)
    try:
        account = RowTransfer(log, states, plans, new, *places, tell).run()
    except BaseException:
        new.abandon()
        raise
    new.stop()
    (made / REPORT_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(account)) + b"\n")
    return account
