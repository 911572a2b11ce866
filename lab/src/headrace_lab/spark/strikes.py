"""Crash points: how to reach each, which process to kill, and what shows the recovery.

A strike waits for its moment, kills with SIGKILL, and waits for the work to continue.
`is_landed` means that the kill hit its moment; `evidence` describes the observed recovery,
empty if none was.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from headrace.cli.demo.child_process import Silent
from headrace.model.results import PublishResult, StageResult
from headrace.spark.tables.leftovers import removable, remove
from headrace.spark.tables.table_record import table_at
from headrace.wire.messages import Message
from headrace.wire.read_messages import Fetch
from headrace.wire.write_messages import PublishRequest, StageRequest
from headrace_lab.spark import commit_strikes
from headrace_lab.spark.check import entries
from headrace_lab.spark.driver import FEW_FILES
from headrace_lab.spark.names import Point
from headrace_lab.spark.process import executor_of, holder_of, kill
from headrace_lab.spark.proxy import Asked, Proxy
from headrace_lab.spark.scene import ChaosScene, again, is_publish

RANDOM_SECONDS_MAX: Final = 2.0
OTHER_BATCHES: Final = 3  # a query that publishes so many others does not come back to one
HOLD_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what came of it."""

    point: Point
    pid: int
    is_landed: bool
    evidence: str  # of the recovery; empty: none was seen


Act = Callable[
    [ChaosScene, Random], tuple[int, str]
]  # the process that was killed, and evidence
Victim = Callable[[int], int]  # who is killed, by the worker whose connection is held


def strike(scene: ChaosScene, point: Point, chance: Random) -> Kill:
    """Reach the point, kill, and wait for the recovery. Silent: it does not come."""
    pid, evidence = _ACTS[point](scene, chance)
    return Kill(point, pid, bool(pid), evidence)


def _at_step(step: str, scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the driver at a step of a round; the next one goes on from the table's record."""
    scene.tell_at("halt", step)
    pid = scene.kill_driver()
    cursor, left = scene.cursor(), scene.leftovers(newest_number=True)
    place, told = scene.went_on()
    if not told:
        return pid, ""
    match step:
        case "after files":
            still = left & scene.leftovers()
            return pid, f"{len(still)} files in no version; {told}" if still else ""
        case "after commit":
            behind = place - sum(cursor.values())
            caught_up = sum(scene.cursor().values()) >= place
            is_shown = behind > 0 and caught_up
            return pid, f"the cursor was {behind:,} rows behind, and was told" * is_shown
        case _:
            return pid, told


def _in_compaction(step: str, scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the driver beside the commit of its own compaction; the next one compacts, too.

    A file that it left behind is removed, as `headrace pipeline clean` does: nobody needs it.
    """
    before = scene.leftovers()
    scene.tell_at("halt", step, lambda: scene.driver.tell("compact"))
    pid = scene.kill_driver()
    left, (added, removed) = scene.leftovers() - before, _newest(scene)
    is_committed = not left and added == 1 and removed >= FEW_FILES
    is_landed = is_committed if step == "new version" else len(left) == 1
    told = scene.went_on()[1]
    scene.driver.tell("compact")
    scene.await_that("a compaction", lambda: scene.driver.testimony.all("compacted"))
    if not (is_landed and told and left <= scene.leftovers()):
        return pid * is_landed, ""
    record = scene.record()
    remove(record, removable(record))
    if left & scene.leftovers():
        return pid, ""
    after = scene.driver.testimony.all("compacted")[0]["removed"]
    done = f"one file came for {removed}" if is_committed else "one file in no version"
    return pid, f"{done}; {told}, and put {after} files together"


def _newest(scene: ChaosScene) -> tuple[int, int]:
    """Return how many files the newest version added and removed, if no row changed."""
    actions = entries(scene.location)[-1]
    found = []
    for kind in ("add", "remove"):
        own = [action[kind] for action in actions if kind in action]
        found.append(sum(not each["dataChange"] for each in own))
    return found[0], found[1]


def _after_optimize(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill a driver after somebody else has compacted: how far it was is still known."""
    scene.await_that("some files", lambda: len(scene.record().table.file_uris()) >= FEW_FILES)
    scene.tell_at("halt", "before files")
    found = table_at(scene.location).optimize.compact(max_concurrent_tasks=1)
    removed = int(found["numFilesRemoved"])
    pid = scene.kill_driver()
    told = scene.went_on()[1]
    return pid * bool(removed), f"{removed} files were put together; {told}" if told else ""


def _overtaken(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Let a driver sleep before its commit, have another commit the same rows, and wake it."""
    sleeper = scene.driver
    scene.tell_at("sleep", "after files")
    rounds = sleeper.testimony.rounds
    scene.begin(None)
    scene.await_that("a round", lambda: scene.driver.testimony.rounds)
    sleeper.tell("wake")
    sleeper.until("its commit", lambda found: found.lost > 0 or found.rounds > rounds)
    has_lost = sleeper.testimony.lost == 1
    if not sleeper.kill_tree():
        raise Silent("the driver ended before it was killed")
    return sleeper.pid, "it lost the race at the commit" * has_lost


def _driver_at_publish(scene: ChaosScene, _: Random, *, answer: bool) -> tuple[int, str]:
    """Kill the driver while its Publish, or the answer to it, is on its way."""
    hold = scene.to_copy.hold(is_publish, answer=answer)
    held = scene.await_held(scene.to_copy, hold)
    pid = scene.kill_driver()
    hold.drop()
    scene.begin(None)
    return pid, _published_again(scene, held, answer=answer, is_same_driver=False)


def _node_at_publish(scene: ChaosScene, _: Random, *, answer: bool) -> tuple[int, str]:
    """Kill the node while a Publish, or the answer to it, is on its way."""
    hold = scene.to_copy.hold(is_publish, answer=answer)
    held = scene.await_held(scene.to_copy, hold)
    pid = scene.kill_node()
    hold.drop()
    return pid, _published_again(scene, held, answer=answer, is_same_driver=True)


def _published_again(
    scene: ChaosScene, held: Asked, *, answer: bool, is_same_driver: bool
) -> str:
    """Wait until the same batch is published again, and say what became of it."""

    def others() -> int:
        return sum(isinstance(one.answer, PublishResult) for one in scene.to_copy.since(held))

    def repeated() -> Asked | None:
        return again(scene.to_copy.since(held), held.request)

    scene.await_that("the same batch", lambda: repeated() or others() >= OTHER_BATCHES)
    repeat = repeated()
    if repeat is None:
        return ""
    assert isinstance(repeat.request, PublishRequest)
    assert isinstance(held.request, PublishRequest)
    assert isinstance(repeat.answer, PublishResult)
    batch = f"batch {held.request.version - 1}"
    if repeat.answer.repeated != answer:
        return ""
    if answer:
        return f"{batch} was published again, and answered as a repeat"
    before = {one.stage_id for one in held.request.stages}
    after = {one.stage_id for one in repeat.request.stages}
    if is_same_driver:
        return f"{batch} was published from the stages of before" * (before == after)
    return f"{batch} was staged anew, and published once" * before.isdisjoint(after)


def _in_stage(who: Victim, scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill whoever is at a second Stage; the task's next attempt stages anew."""
    counts: Counter[int] = Counter()

    def is_second(asked: Asked) -> bool:
        if not isinstance(asked.request, StageRequest):
            return False
        counts[id(asked.line)] += 1
        return counts[id(asked.line)] == 2

    pid, held = _kill_holder(scene, scene.to_copy, is_second, who)
    assert isinstance(held.request, StageRequest)
    own = (held.request.writer, held.request.version)
    staged = {
        each.request.stage_id
        for each in scene.to_copy.asked
        if each.line is held.line
        and isinstance(each.request, StageRequest)
        and isinstance(each.answer, StageResult)
    }
    named: set[bytes] = set()

    def look() -> bool:
        for each in scene.to_copy.since(held):
            request = each.request
            if (
                isinstance(request, PublishRequest)
                and (request.writer, request.version) == own
                and isinstance(each.answer, PublishResult)
            ):
                named.update(one.stage_id for one in request.stages)
                return True
        return False

    scene.await_that("the batch of the task", look)
    is_shown = bool(staged) and bool(named) and staged.isdisjoint(named)
    batch = f"batch {held.request.version - 1}"
    evidence = f"{batch} was published without the dead attempt's stages: {len(staged)}"
    return pid, evidence * is_shown


def _worker_in_read(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill a Python worker that waits for rows; the task's next attempt asks again."""
    pid, held = _kill_holder(scene, scene.to_table, _is_fetch, _worker)
    return pid, _fetched_again(scene, held, pid)


def _node_in_read(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the node while a worker waits for rows; it asks the next one."""
    hold = scene.to_table.hold(_is_fetch)
    held = scene.await_held(scene.to_table, hold)
    pid = scene.kill_node()
    hold.drop()
    return pid, _fetched_again(scene, held, None)


def _executor_in_read(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill an executor's Java while its worker waits for rows, and another has read, too."""
    scene.await_that("two executors that read", lambda: len(scene.reading()) > 1)
    scene.pair = tuple(scene.reading())
    names = {pid: name for name, pid in scene.driver.executors().items()}
    pid, held = _kill_holder(scene, scene.to_table, _is_fetch, _executor)
    found = _fetched_again(scene, held, pid, by_executor=True)
    return pid, f"executor {names.get(pid, '')}: {found}" if found else ""


def _fetched_again(
    scene: ChaosScene, held: Asked, killed: int | None, *, by_executor: bool = False
) -> str:
    """Wait until the same rows are asked for again, and given: maybe to one that lives."""
    first = held.request
    assert isinstance(first, Fetch)
    found: list[Asked] = []

    def look() -> bool:
        found[:] = [
            each
            for each in scene.to_table.since(held)
            if _is_same_fetch(each.request, first)
            and each.answer is not None
            and (not by_executor or scene.askers.get(each.line.ports))
        ]
        return bool(found)

    scene.await_that("the same rows", look)
    rows = f"rows from {first.start:,} on were asked for again"
    if killed is None:
        return f"{rows}, of the new node"
    return f"{rows}, by another attempt" * (found[0].line is not held.line)


def _is_fetch(asked: Asked) -> bool:
    return isinstance(asked.request, Fetch)


def _is_same_fetch(request: Message, first: Fetch) -> bool:
    return isinstance(request, Fetch) and (
        (request.namespace, request.start, request.end)
        == (first.namespace, first.start, first.end)
    )


def _worker(holder: int) -> int:
    return holder


def _executor(holder: int) -> int:
    return executor_of(holder)[0]


def _kill_holder(
    scene: ChaosScene, proxy: Proxy, matches: Callable[[Asked], bool], who: Victim
) -> tuple[int, Asked]:
    """Hold a request and kill the one who waits for its answer, or its Java; return both.

    A task that ended meanwhile has left its connection: then the next request is held.
    """
    for _ in range(HOLD_TRIES):
        hold = proxy.hold(matches)
        held = scene.await_held(proxy, hold)
        holder = holder_of(held.line.ports)
        pid = 0 if holder is None else who(holder)
        is_killed = bool(pid) and kill(pid)
        hold.drop()
        if is_killed:
            return pid, held
    raise Silent("nobody has a connection that is held")


def _at_any_moment(who: str, scene: ChaosScene, chance: Random) -> tuple[int, str]:
    """Kill somebody at a moment of chance, and see the work go on."""
    scene.driver.listen(chance.uniform(0, RANDOM_SECONDS_MAX))
    match who:
        case "driver":
            pid = scene.kill_driver()
            scene.begin(None)
        case "node":
            pid = scene.kill_node()
        case _:
            driver = scene.driver
            own = driver.workers() if who == "worker" else driver.executors().values()
            pid = chance.choice(sorted(own)) if own else 0
            pid *= bool(pid) and kill(pid)
    scene.await_work()
    return pid, "rows came into table and copy again"


_ACTS: Final[dict[Point, Act]] = {
    Point.DRIVER_BEFORE_FILES: partial(_at_step, "before files"),
    Point.DRIVER_AFTER_FILES: partial(_at_step, "after files"),
    Point.DRIVER_AFTER_COMMIT: partial(_at_step, "after commit"),
    Point.DRIVER_IN_COMPACTION: partial(_in_compaction, "new file"),
    Point.DRIVER_AFTER_COMPACTION: partial(_in_compaction, "new version"),
    Point.DRIVER_AFTER_OPTIMIZE: _after_optimize,
    Point.DRIVER_OVERTAKEN: _overtaken,
    Point.DRIVER_BEFORE_ENTRY: commit_strikes.before_entry,
    Point.DRIVER_AFTER_ENTRY: commit_strikes.after_entry,
    Point.DRIVER_AFTER_COLUMNS: commit_strikes.after_columns,
    Point.ANSWER_LOST: commit_strikes.answer_lost,
    Point.ANSWER_FAILED: commit_strikes.answer_failed,
    Point.FOREIGN_FIRST: commit_strikes.foreign_first,
    Point.STORE_AWAY: commit_strikes.store_away,
    Point.WORKER_IN_FILE: commit_strikes.worker_in_file,
    Point.NODE_IN_SEGMENT: commit_strikes.node_in_segment,
    Point.LEASE_LOST: commit_strikes.lease_lost,
    Point.DRIVER_BEFORE_PUBLISH: partial(_driver_at_publish, answer=False),
    Point.DRIVER_AFTER_PUBLISH: partial(_driver_at_publish, answer=True),
    Point.WORKER_IN_READ: _worker_in_read,
    Point.WORKER_IN_STAGE: partial(_in_stage, _worker),
    Point.NODE_IN_READ: _node_in_read,
    Point.NODE_BEFORE_PUBLISH: partial(_node_at_publish, answer=False),
    Point.NODE_AFTER_PUBLISH: partial(_node_at_publish, answer=True),
    Point.EXECUTOR_IN_READ: _executor_in_read,
    Point.EXECUTOR_IN_STAGE: partial(_in_stage, _executor),
    Point.RANDOM_DRIVER: partial(_at_any_moment, "driver"),
    Point.RANDOM_NODE: partial(_at_any_moment, "node"),
    Point.RANDOM_WORKER: partial(_at_any_moment, "worker"),
    Point.RANDOM_EXECUTOR: partial(_at_any_moment, "executor"),
}
