"""Checking every byte of segments and carry files, in processes of their own.

A damaged file is parsed where no digest vouches for it. Should a parser die of that, it dies in
a child, and only the file that it was reading counts as unreadable.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import assert_never

from headrace.doctor.look.orphan_segment import LoneState, LoneTask, check_lone
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.segments import SegmentState, SegmentTask, check_segment
from headrace.errors import HeadraceError
from headrace.journal.entry import Entry
from headrace.model.ids import Identity, Op
from headrace.partition.files.carry import CarryFile, load_carry

WORKER_SIZE_MIN = 64 * 1024 * 1024  # to read less takes no longer than to start one more
_DIED = "the process that read it died"


@dataclass(frozen=True, slots=True)
class CarryTask:
    """One carry file to be checked, entry by entry."""

    directory: str
    name: str
    identity: Identity
    op: Op


@dataclass(frozen=True, slots=True)
class BadEntry:
    """An entry of a carry file that is not what its index says."""

    op: Op
    name: str  # of the file that it is in: the carry file, or one that is kept
    position: int
    flaw: str
    is_gone: bool = False  # with all of the file


@dataclass(frozen=True, slots=True)
class CarryState:
    """What became of checking a carry file."""

    name: str
    flaw: str = ""  # of the file as a whole
    bad: tuple[BadEntry, ...] = ()
    entry_count: int = 0


Task = SegmentTask | CarryTask | LoneTask
State = SegmentState | CarryState | LoneState


def check(task: Task) -> State:
    """Check one file. A child process runs it."""
    match task:
        case SegmentTask():
            return check_segment(task)
        case CarryTask():
            return check_carry(task)
        case LoneTask():
            return check_lone(task)
        case _:
            assert_never(task)


def check_carry(task: CarryTask) -> CarryState:
    """Check every entry of a carry file."""
    try:
        file = ReadonlyDirectory(task.directory).open(task.name)
    except OSError as error:
        return CarryState(task.name, f"cannot be opened: {error.strerror}")
    try:
        found = load_carry(file, task.identity, task.op, ReadonlyDirectory(task.directory))
        if not isinstance(found, CarryFile):
            return CarryState(task.name, found.what)
        bad, names = [], ReadonlyDirectory(task.directory).names()
        for op in found.ops:
            entry = found.read(op)
            if not isinstance(entry, Entry):
                row = found.row(op)
                source = found.source_of(row)
                name = task.name if source is None else source.name
                is_gone = source is not None and source.name not in names
                bad.append(BadEntry(op, name, row.position, entry.what, is_gone))
        return CarryState(task.name, "", tuple(bad), len(found.ops))
    except (OSError, HeadraceError) as error:
        return CarryState(task.name, str(error))
    finally:
        file.close()


def check_all(
    tasks: Sequence[Task], stage: str, tell: Callable[[str, int, int], None]
) -> Iterator[tuple[Task, State]]:
    """Check files side by side, and give each as it is done. `tell` hears of the bytes."""
    if not tasks:
        return
    total, done = sum(map(size_of, tasks)), 0
    workers = min(os.cpu_count() or 1, len(tasks), -(-total // WORKER_SIZE_MIN) or 1)
    unsure: list[Task] = []
    with _pool(workers) as pool:
        waiting: dict[Future[State], Task] = {}
        for task in tasks:
            waiting[pool.submit(check, task)] = task
        for future in as_completed(waiting):
            task = waiting[future]
            try:
                state = future.result()
            except BrokenProcessPool:  # one of them was fatal: ask for each alone
                unsure.append(task)
                continue
            done += size_of(task)
            tell(stage, done, total)
            yield task, state
    for task in unsure:
        yield task, _alone(task)
        done += size_of(task)
        tell(stage, done, total)


def _alone(task: Task) -> State:
    with _pool(1) as pool:
        try:
            return pool.submit(check, task).result()
        except BrokenProcessPool:
            return _died(task)


def _died(task: Task) -> State:
    match task:
        case SegmentTask():
            return SegmentState(task.name, _DIED)
        case CarryTask():
            return CarryState(task.name, _DIED)
        case LoneTask():
            return LoneState(task.name, _DIED)
        case _:
            assert_never(task)


def _pool(worker_count: int) -> ProcessPoolExecutor:
    # Not forked: a process with threads must not be copied.
    return ProcessPoolExecutor(worker_count, mp_context=get_context("spawn"))


def size_of(task: Task) -> int:
    """Return how many bytes there are to check."""
    return ReadonlyDirectory(task.directory).size_of(task.name)
