"""Headrace: a durable log for Arrow data that feeds Spark."""

import os
import sys
from typing import TYPE_CHECKING

from headrace.errors import (
    BadBatch,
    BadRequest,
    BadSchema,
    Behind,
    Busy,
    ConnectionLost,
    Corrupt,
    DirectoryHeld,
    Expired,
    HeadraceError,
    NotErased,
    Recreated,
    Refused,
    Rejected,
    StorageFailed,
    TimedOut,
    TopicExists,
    TopicUnknown,
    Unauthorized,
    Unavailable,
    Unknown,
)

if TYPE_CHECKING:
    from headrace.client.public import (
        Appended,
        AsyncConsumer,
        AsyncLog,
        AsyncProducer,
        AsyncRows,
        AsyncTopic,
        AsyncTransaction,
        Bounds,
        Consumer,
        Cursor,
        Log,
        Producer,
        Published,
        Range,
        Retention,
        Rows,
        Topic,
        TopicSummary,
        Transaction,
        Trimmed,
        Unerased,
        connect,
        connect_async,
        open,  # noqa: A004
        open_async,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "Appended",
    "AsyncConsumer",
    "AsyncLog",
    "AsyncProducer",
    "AsyncRows",
    "AsyncTopic",
    "AsyncTransaction",
    "BadBatch",
    "BadRequest",
    "BadSchema",
    "Behind",
    "Bounds",
    "Busy",
    "ConnectionLost",
    "Consumer",
    "Corrupt",
    "Cursor",
    "DirectoryHeld",
    "Expired",
    "HeadraceError",
    "Log",
    "NotErased",
    "Producer",
    "Published",
    "Range",
    "Recreated",
    "Refused",
    "Rejected",
    "Retention",
    "Rows",
    "StorageFailed",
    "TimedOut",
    "Topic",
    "TopicExists",
    "TopicSummary",
    "TopicUnknown",
    "Transaction",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "Unerased",
    "Unknown",
    "connect",
    "connect_async",
    "open",
    "open_async",
]

# Assertions guard stored data. Without them a bug could go on to write bad data, so no part of
# the package loads under -O.
if not __debug__:
    _WHY = (
        "headrace does not run under python -O or PYTHONOPTIMIZE: "
        "its assertions guard stored data. Start Python without it"
    )
    if sys.orig_argv[-len(sys.argv) - 1 :][:2] == ["-m", "headrace"]:
        sys.exit(f"headrace: {_WHY}")  # run as a command: one line, no traceback
    if os.path.basename(sys.argv[0]) == "headrace":  # noqa: PTH119 - nothing is loaded yet
        sys.exit(f"headrace: {_WHY}")
    raise RuntimeError(_WHY)


def __getattr__(name: str) -> object:
    """Load the client on first use: parts of the package do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.client import public

    found: object = getattr(public, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
