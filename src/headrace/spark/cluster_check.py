"""What the executors of a session see, before anything is built on it.

A job of short tasks reaches each executor that is there now and has room; one that Spark adds
later is not looked at. The tasks need only Python, so a bare executor is described, too.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyspark
from pyspark import cloudpickle

import headrace
from headrace.errors import BadRequest, StorageFailed, Unavailable
from headrace.spark import executor_look
from headrace.spark.executor_look import Node, looking
from headrace.spark.friendly_errors import told_in_words
from headrace.spark.spark_session import described, unlogged
from headrace.spark.topic_source import PLAN_TIMEOUT, release
from headrace.spark.worker.link import token_here
from headrace.spark.worker.read import LogAddress
from headrace.wire.ticket import Ticket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_SECONDS: Final = 60.0  # that a cluster has to start the first executor
SETTLED_SECONDS: Final = 2.0  # without another one: they start at about the same time
MASTER_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.2  # of a task, so that each executor gets one
_ROUNDS_MAX: Final = 5
_LOOK_SECONDS: Final = 0.2
_TRY: Final = ".headrace-try-"
_NEXT: Final = "Run `headrace spark check --master URL` to see what each executor has"


_one_at_a_time: Final = threading.Lock()  # how modules are pickled is a setting of the process


class TableUnseen(BadRequest):
    """Driver and executors do not share the path of a table."""

    hint = (
        "Give a path on a disk that the driver and all executors mount, such as NFS, or an "
        "object store. With local files run Spark on one machine: --master 'local[*]'"
    )


class ExecutorLook(msgspec.Struct, frozen=True, kw_only=True):
    """One executor as it describes itself. A flaw is what is wrong, or empty."""

    host: str
    process: int
    python: str
    python_version: str
    headrace: str  # version that tasks of this session import, or empty
    installed: str  # version of the executor's own, or empty
    pyarrow: str
    pyspark: str
    node_flaw: str
    table_flaw: str
    store_flaw: str
    answer: str

    def flaws(self) -> list[str]:
        """Return a sentence with the next step for each thing that would fail a query."""
        where, found = f"the executor on {self.host}", []
        if not self.pyarrow:
            command = f"{self.python} -m pip install 'pyarrow=={pa.__version__}'"
            found.append(f"{where} has no pyarrow in {self.python}. Run there: {command}")
        if self.pyspark != pyspark.__version__:
            found.append(
                f"{where} has Spark {self.pyspark}, but the driver has "
                f"{pyspark.__version__}. Install the same version on both"
            )
        if not self.headrace:
            found.append(
                f"{where} has no headrace in {self.python}. Start the session with "
                "headrace.spark.session, which sends it, or install it there"
            )
        if self.pyarrow and self.node_flaw:
            found.append(f"{where} cannot use the node: {self.node_flaw}")
        if self.table_flaw:
            found.append(f"{where} does not share the path: {self.table_flaw}")
        if self.store_flaw:
            found.append(f"{where} cannot use the store: {self.store_flaw}")
        return found


@dataclass(frozen=True, slots=True)
class Look:
    """What to look at, besides the packages."""

    node: LogAddress | None = None
    table: Path | None = None
    store: Callable[[], str] | None = None  # called on executors: what is wrong, or ""


def refuse_unseen(spark: "SparkSession", table: str) -> None:
    """Raise TableUnseen if an executor and the driver do not see each other's files there.

    Call it once before the first files of a driver are written. On one machine it does nothing.
    """
    if is_local(spark) or "://" in table:
        return
    for each in look(spark, Look(table=Path(table))):
        if each.table_flaw:
            raise TableUnseen(
                f"the path {table} is not shared with the executor on {each.host}: "
                f"{each.table_flaw}"
            )


def is_local(spark: "SparkSession") -> bool:
    """Return whether tasks run on the driver's machine, and see its files."""
    return str(spark.sparkContext.master).startswith("local")


def look(spark: "SparkSession", what: Look) -> list[ExecutorLook]:
    """Return what each executor sees, once for each."""
    count = executor_count(spark)
    with _try_file(what.table) as tried, described(spark, "headrace: look at executors"):
        task = looking(_plain(what.node), tried, what.store, _PAUSE_SECONDS)
        found: dict[tuple[str, int], ExecutorLook] = {}
        for _ in range(_ROUNDS_MAX):
            with told_in_words(Unavailable, _NEXT), unlogged(spark):
                said = _run(spark, task, 2 * max(count, spark.sparkContext.defaultParallelism))
            for text in said:
                each = _parsed(text, tried)
                found.setdefault((each.host, each.process), each)
            if is_local(spark) or len(found) >= count:
                break
    if is_local(spark):  # Python workers of one machine may have several parents
        return list(found.values())[:1]
    return sorted(found.values(), key=lambda each: (each.host, each.process))


def executor_count(spark: "SparkSession") -> int:
    """Return how many executors there are. Raises Unavailable if none starts."""
    if is_local(spark):
        return 1
    status: Any = spark.sparkContext._jsc.sc()
    began = changed = time.monotonic()
    count = 0
    while not count or time.monotonic() - changed < SETTLED_SECONDS:
        before, count = count, int(status.getExecutorMemoryStatus().size()) - 1
        if count != before:
            changed = time.monotonic()
        if not count and time.monotonic() - began > EXECUTOR_SECONDS:
            conf = spark.sparkContext.getConf()
            memory = conf.get("spark.executor.memory", "1g")
            raise Unavailable(
                f"no executor started within {EXECUTOR_SECONDS:.0f} s",
                hint=f"See the master's page for a worker with {memory} of free memory and a "
                "free core, and check that workers can reach the driver at "
                f"{conf.get('spark.driver.host')} (spark.driver.host)",
            )
        time.sleep(_LOOK_SECONDS)
    return count


def node_at(address: str) -> LogAddress:
    """Return how executors reach a node. Raises the driver's error if it cannot."""
    found = token_here(None, os.environ)
    token = None if found is None else found.decode()
    headrace.connect(address, token, PLAN_TIMEOUT).close()
    ticket = None if found is None else Ticket.made(found, time.time(), range(0))
    return LogAddress(address, None, release(), "", ticket)


def refuse_silent_master(url: str) -> None:
    """Raise Unavailable if nothing listens at a standalone master's address."""
    failures = []
    if not url.startswith("spark://"):
        return
    for each in url.removeprefix("spark://").split(","):
        where = urlsplit(f"//{each}")
        try:
            address = where.hostname or "", where.port or 7077
            socket.create_connection(address, MASTER_SECONDS).close()
        except (OSError, ValueError) as error:
            failures.append(f"{each}: {error}")
        else:
            return
    raise Unavailable(
        f"no Spark master answers ({'; '.join(failures)})",
        hint="Give the URL that the master's page shows: --master spark://HOST:7077",
    )


def _plain(node: LogAddress | None) -> Node | None:
    if node is None:
        return None
    text, key = (None, None) if node.ticket is None else (node.ticket.text, node.ticket.key)
    return node.address, node.token_file, node.release, node.cluster, text, key


def _run(spark: "SparkSession", task: Callable[..., Iterator[str]], count: int) -> list[str]:
    numbers = spark.sparkContext.parallelize(range(count), count)
    with _one_at_a_time:
        cloudpickle.register_pickle_by_value(executor_look)  # type: ignore[no-untyped-call]
        try:
            return numbers.mapPartitions(task).collect()
        finally:
            cloudpickle.unregister_pickle_by_value(executor_look)  # type: ignore[no-untyped-call]


@contextmanager
def _try_file(table: Path | None) -> Iterator[tuple[str, str] | None]:
    """Write a file for executors to find. Afterwards all is as it was."""
    if table is None:
        yield None
        return
    made = [each for each in (table, *table.parents) if not each.exists()]
    text = secrets.token_hex(16)
    path = table / f"{_TRY}{text}"
    try:
        table.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageFailed(str(table), "a try file", error) from error
    try:
        yield str(path), text
    finally:
        for each in table.glob(f"{path.name}*"):
            with suppress(OSError):  # another user's, on a shared disk
                each.unlink()
        for each in made:
            with suppress(OSError):  # no longer empty
                each.rmdir()


def _parsed(text: str, tried: tuple[str, str] | None) -> ExecutorLook:
    """Return what an executor says, and the flaw that only the driver sees: no answer."""
    found = msgspec.json.decode(text, type=ExecutorLook)
    if tried is None or found.table_flaw:
        return found
    path = Path(f"{tried[0]}-{found.answer}")
    try:
        is_there = path.read_text(encoding="utf-8") == found.answer
    except OSError:
        is_there = False
    if is_there:
        return found
    flaw = "the driver does not see its files there"
    return msgspec.structs.replace(found, table_flaw=flaw)
