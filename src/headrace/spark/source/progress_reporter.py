"""Reports the position of a streaming query to the log, which shows its lag and holds its rows.

Retention keeps the rows from there on, from before the first read until `retention.max_hold`.
The reported position is the start of a batch that Spark may replay, never its end. The
checkpointLocation is the truth; a failed report never fails a query.

The driver does not know its query's id, but tasks do: the first tasks store a cursor under it
with a generation that only this driver has, and the driver searches for that.
"""

import threading
import time
from collections.abc import Mapping
from typing import Final

from headrace.errors import HeadraceError
from headrace.spark.topic_source import TopicSource

EVERY_SECONDS: Final = 1.0


class ProgressReporter:
    """The reporter of one stream reader. It talks to the log in its own thread."""

    def __init__(self, topic_source: TopicSource) -> None:
        self._topic_source = topic_source
        self.group = topic_source.options.group  # None: unknown so far
        self.generation = time.time_ns()  # unique to this driver
        self.is_new = True  # nothing reported or tried yet
        self._told: Mapping[int, int] = {}
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def tell(self, places: Mapping[int, int], *, at_once: bool = False) -> None:
        """Store the positions, if due and no other report is running. `at_once` waits."""
        self.is_new = False
        if dict(places) == dict(self._told):
            return
        if at_once:
            self._wait()
        elif time.monotonic() < self._next or self._is_busy:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        self._thread = threading.Thread(target=self._store, args=(places,), daemon=True)
        self._thread.start()
        if at_once:
            self._wait()

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join(EVERY_SECONDS)

    def _store(self, places: Mapping[int, int]) -> None:
        try:
            if self.group is None:
                self.group = self._find()
            if self.group is not None:
                hold = self._topic_source.options.hold
                self._topic_source.topic.store_cursors(self.group, places, hold=hold)
                self._told = dict(places)
        except HeadraceError:
            return  # the next report may succeed

    def _find(self) -> str | None:
        """Find the group that a task stored with our generation."""
        for cursor in self._topic_source.topic.cursors():
            if cursor.generation == self.generation:
                return cursor.group
        return None
