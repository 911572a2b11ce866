"""Work counters of a node: each request counts once, when it is answered.

Written on the loop's thread only; may be read from any thread.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import HeadraceError
from headrace.model.results import AppendResult, PublishResult, StageResult
from headrace.storage.seam import Buffer
from headrace.wire.file_messages import FileChunk
from headrace.wire.messages import Reply
from headrace.wire.read_messages import FetchReply

_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_OPS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Distribution:
    """A histogram: the count of values in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.total = 0.0

    def add(self, number: float) -> None:
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number


@dataclass(slots=True)
class NodeCounters:
    """Totals since the start. Rows of a transaction count when it is published."""

    appends: int = 0
    appended_rows: int = 0
    appended_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by the error's name
    append_seconds: Distribution = field(default_factory=lambda: Distribution(_SECONDS))
    fetch_seconds: Distribution = field(default_factory=lambda: Distribution(_SECONDS))
    group_ops: Distribution = field(default_factory=lambda: Distribution(_OPS))

    def count(
        self,
        body: Buffer,
        reply: Reply | HeadraceError,
        rows: Sequence[Buffer],
        seconds: float,
    ) -> None:
        """Count a request with this body as answered after `seconds`."""
        match reply:
            case AppendResult():
                self.append_seconds.add(seconds)
                if not reply.repeated:
                    self.appends += 1
                    self.appended_rows += reply.end - reply.start
                    self.appended_bytes += len(body)
            case FetchReply() | FileChunk():
                self.fetch_seconds.add(seconds)
                self.fetches += 1
                self.fetched_bytes += sum(map(len, rows))
            case HeadraceError():
                self.failures[type(reply).__name__] += 1
            case StageResult(repeated=False):
                self.appended_bytes += len(body)
            case PublishResult(repeated=False):
                self.appends += 1
                self.appended_rows += sum(each.end - each.start for each in reply.ranges)
            case _:
                return

    def figures(self) -> dict[str, object]:
        """Return the figures for the status."""
        return {
            "appends": self.appends,
            "appended_rows": self.appended_rows,
            "appended_bytes": self.appended_bytes,
            "fetches": self.fetches,
            "fetched_bytes": self.fetched_bytes,
        }
