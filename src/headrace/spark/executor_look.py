"""What an executor has: its Python, its packages, the node and the table as it sees them.

These functions travel by value, and need nothing but Python: an executor may have no Headrace,
no pyarrow, or others than the driver.
"""

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import machinery, metadata
from pathlib import Path
from typing import Any

# The arguments of a LogAddress and its ticket, as plain values.
Node = tuple[str, str | None, str, str, bytes | None, bytes | None]


def looking(
    node: Node | None,
    tried: tuple[str, str] | None,
    store: Callable[[], str] | None,
    pause_seconds: float,
) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the function of a task, which yields what it found as JSON.

    `tried` are the path of a file that the driver wrote, and its text: the task looks for it
    and writes an answer beside it. `store` says what is wrong with a place that is no path,
    or "". The pause leaves other executors time to take tasks of their own.
    """

    def look(numbers: Iterable[int]) -> Iterator[str]:
        for number in numbers:
            time.sleep(pause_seconds)
            answer = f"{number}-{os.urandom(8).hex()}"
            found: dict[str, Any] = {
                "host": socket.gethostname(),
                "process": os.getppid(),  # one Python daemon for each executor
                "python": sys.executable,
                "python_version": platform.python_version(),
                "headrace": _release(),
                "installed": _installed(),
                "pyarrow": _version_of("pyarrow"),
                "pyspark": _spark(),
                "node_flaw": "" if node is None else _node_flaw(node),
                "table_flaw": "" if tried is None else _table_flaw(*tried, answer),
                "store_flaw": "" if store is None else store(),
                "answer": answer,
            }
            yield json.dumps(found)

    return look


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _spark() -> str:
    import pyspark  # of the executor's Spark, which may be in no package

    return str(pyspark.__version__)


def _release() -> str:
    try:
        import headrace
    except ImportError:
        return ""
    return str(headrace.__version__)


def _installed() -> str:
    """Return the version of this executor's own Headrace, whatever the driver sent."""
    places = [each for each in sys.path if not each.endswith(".zip")]
    found = machinery.PathFinder.find_spec("headrace", places)
    if found is None or found.origin is None:
        return ""
    text = Path(found.origin).read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


def _node_flaw(node: Node) -> str:
    try:
        from headrace.errors import HeadraceError
        from headrace.spark.worker.link import Link
        from headrace.wire.greeting import Ping, Pong
        from headrace.wire.ticket import Ticket
    except ImportError as error:
        return f"not asked: {error}"
    address, token_file, name, cluster, text, key = node
    ticket = None if text is None or key is None else Ticket(text, key)
    try:
        with Link(address, token_file, name, cluster, ticket) as link:
            link.ask(Ping(), Pong, seconds=5.0)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _table_flaw(path: str, text: str, answer: str) -> str:
    try:
        found = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        return f"it does not see the driver's files there: {error.strerror}"
    if found != text:
        return f"{path} is not the driver's file"
    try:
        with open(f"{path}-{answer}", "x", encoding="utf-8") as file:
            file.write(answer)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot write there: {error.strerror}"
    return ""
