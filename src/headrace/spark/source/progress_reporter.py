"""Tells the log where a streaming query is: its lag is seen, and its rows are held.

Rows from there on stay, whatever retention says, from before the first of them is read, until
`retention.max_hold`. What is told is where a batch begins that Spark may play again, never its
end. The checkpointLocation is the truth; a failure to tell never fails a query.

The driver does not know its query's id, but tasks do: the first ones store a cursor under it
with a generation that only this driver has, and the driver looks for that.
"""

import threading
import time
from collections.abc import Mapping
from typing import Final

from headrace.errors import HeadraceError
from headrace.spark.topic_source import TopicSource

EVERY_SECONDS: Final = 1.0


class ProgressReporter:
    """One for a stream reader. It asks the log in a thread of its own."""

    def __init__(self, desk: TopicSource) -> None:
        self._desk = desk
        self.group = desk.options.group  # None: not known yet
        self.generation = time.time_ns()  # no other driver has it
        self.is_new = True  # nothing was told, nor tried
        self._told: Mapping[int, int] = {}
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def tell(self, places: Mapping[int, int], *, at_once: bool = False) -> None:
        """Store the places, if it is time and nobody is at it. `at_once` waits for that."""
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
                hold = self._desk.options.hold
                self._desk.topic.store_cursors(self.group, places, hold=hold)
                self._told = dict(places)
        except HeadraceError:
            return  # the next one may be told

    def _find(self) -> str | None:
        """Look for the group that a task has stored for us."""
        for cursor in self._desk.topic.cursors():
            if cursor.generation == self.generation:
                return cursor.group
        return None
