"""The crash points of chaos: who is killed, and when."""

from enum import StrEnum
from itertools import chain, cycle, islice
from random import Random
from typing import Final


class Point(StrEnum):
    """Who is killed with SIGKILL, and at which moment; or what else happens to a commit."""

    DRIVER_BEFORE_FILES = "driver before files"
    DRIVER_AFTER_FILES = "driver after files, before the commit"
    DRIVER_AFTER_COMMIT = "driver after the commit, before the cursor"
    DRIVER_IN_COMPACTION = "driver inside a compaction, before its commit"
    DRIVER_AFTER_COMPACTION = "driver after the commit of a compaction"
    DRIVER_AFTER_OPTIMIZE = "driver after somebody else's compaction"
    DRIVER_BEFORE_PUBLISH = "driver between stage and publish"
    DRIVER_AFTER_PUBLISH = "driver after publish, before its answer"
    DRIVER_OVERTAKEN = "driver that another has overtaken"
    DRIVER_BEFORE_ENTRY = "driver in a commit, before its entry"
    DRIVER_AFTER_ENTRY = "driver in a commit, after its entry"
    DRIVER_AFTER_COLUMNS = "driver after new columns, before their rows"
    ANSWER_LOST = "nobody, a commit's answer is lost"
    ANSWER_FAILED = "nobody, a commit that stands is answered with an error"
    FOREIGN_FIRST = "nobody, a foreign append is faster"
    STORE_AWAY = "nobody, the store is away before a commit"
    WORKER_IN_FILE = "worker inside a new file"
    NODE_IN_SEGMENT = "node while it sends a segment"
    LEASE_LOST = "nobody, a lease ends while a segment is sent"
    WORKER_IN_READ = "worker while it reads"
    WORKER_IN_STAGE = "worker inside a stage"
    NODE_IN_READ = "node while a driver reads"
    NODE_BEFORE_PUBLISH = "node before it publishes"
    NODE_AFTER_PUBLISH = "node after publish, before its answer"
    EXECUTOR_IN_READ = "executor while it reads"
    EXECUTOR_IN_STAGE = "executor inside a stage"
    RANDOM_DRIVER = "driver at any moment"
    RANDOM_WORKER = "worker at any moment"
    RANDOM_NODE = "node at any moment"
    RANDOM_EXECUTOR = "executor at any moment"


OF_DRIVERS: Final = (
    Point.DRIVER_BEFORE_FILES,
    Point.DRIVER_AFTER_FILES,
    Point.DRIVER_AFTER_COMMIT,
    Point.DRIVER_BEFORE_PUBLISH,
    Point.DRIVER_AFTER_PUBLISH,
    Point.DRIVER_IN_COMPACTION,
    Point.DRIVER_OVERTAKEN,
    Point.DRIVER_AFTER_COMPACTION,
    Point.DRIVER_AFTER_OPTIMIZE,
)
OF_COMMITS: Final = (
    Point.DRIVER_BEFORE_ENTRY,
    Point.ANSWER_LOST,
    Point.DRIVER_AFTER_ENTRY,
    Point.FOREIGN_FIRST,
    Point.WORKER_IN_FILE,
)
# Of pipelines that copy segments as the files that they are.
OF_COPIES: Final = (Point.NODE_IN_SEGMENT, Point.DRIVER_AFTER_COLUMNS, Point.LEASE_LOST)
OF_BUCKETS: Final = (Point.ANSWER_FAILED, Point.STORE_AWAY)
OF_OTHERS: Final = (
    Point.WORKER_IN_STAGE,
    Point.NODE_AFTER_PUBLISH,
    Point.WORKER_IN_READ,
    Point.NODE_IN_READ,
    Point.NODE_BEFORE_PUBLISH,
)
AT_ANY_MOMENT: Final = (Point.RANDOM_NODE, Point.RANDOM_DRIVER, Point.RANDOM_WORKER)
OF_EXECUTORS: Final = (
    Point.EXECUTOR_IN_READ,
    Point.EXECUTOR_IN_STAGE,
    Point.RANDOM_EXECUTOR,
)
KILLS_DRIVER: Final = frozenset(
    {
        *OF_DRIVERS,
        Point.RANDOM_DRIVER,
        Point.DRIVER_BEFORE_ENTRY,
        Point.DRIVER_AFTER_ENTRY,
        Point.DRIVER_AFTER_COLUMNS,
    }
)
LOCAL: Final = OF_DRIVERS + OF_COMMITS + OF_COPIES + OF_OTHERS + AT_ANY_MOMENT

Shares = tuple[tuple[tuple[Point, ...], int], ...]
# In one run: two kills of drivers, one of others, two strikes beside a commit, and one of a
# copy or at any moment. A run with one of a copy copies.
_SHARES: Final[Shares] = (
    (OF_DRIVERS, 2),
    (OF_OTHERS, 1),
    (OF_COMMITS, 2),
    (tuple(chain.from_iterable(zip(OF_COPIES, AT_ANY_MOMENT, strict=True))), 1),
)
# Into a bucket, what can happen to a request comes on top.
_BUCKET_SHARES: Final[Shares] = (*_SHARES, (OF_BUCKETS, 1))
# On a cluster one of each, beside an executor: its drivers are the dearest to start.
_CLUSTER_SHARES: Final[Shares] = (
    ((Point.EXECUTOR_IN_READ,), 1),
    (OF_DRIVERS, 1),
    ((Point.EXECUTOR_IN_STAGE, *OF_OTHERS), 1),
    ((Point.RANDOM_EXECUTOR, *AT_ANY_MOMENT), 1),
)
ON_CLUSTER: Final = tuple(point for points, _ in _CLUSTER_SHARES for point in points)


def plan(
    runs: int, chance: Random, *, cluster: bool, bucket: bool = False
) -> list[list[Point]]:
    """Return the points of each run: all in turn, in an order of chance within a run."""
    own = _BUCKET_SHARES if bucket else _SHARES
    shares = [(cycle(points), count) for points, count in (_CLUSTER_SHARES if cluster else own)]
    found = []
    for _ in range(runs):
        points = [point for turns, count in shares for point in islice(turns, count)]
        chance.shuffle(points)
        found.append(points)
    return found


def point_named(text: str) -> Point:
    """Return the point that a person means: its whole name, or the only one that has this."""
    found = [point for point in Point if text.lower() in point]
    exact = [point for point in found if point == text]
    if len(exact or found) != 1:
        raise ValueError("; ".join(found or Point))
    return (exact or found)[0]
