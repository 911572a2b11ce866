"""Reports the state of a pipeline driver to the log and listens for requests to stop it.

It reports from its own thread, so a long batch does not look silent. Nothing here fails a
pipeline: after a failed report `flaw` says why, and the next report has everything.
"""

import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import headrace
from headrace.errors import HeadraceError
from headrace.spark.pipeline import driver_reports
from headrace.spark.pipeline.driver_reports import DriverState, Report
from headrace.spark.pipeline.table_times import HIGH, MEDIAN, LogClock, TableTimes

EVERY_SECONDS: Final = 15.0  # between reports without news
NEWS_SECONDS: Final = 5.0  # between reports with news
TICK_SECONDS: Final = 1.0
RATE_SECONDS: Final = 60.0  # the window of the rate
ASKED: Final = "asked to stop"


class PipelineHeartbeat:
    """The heartbeat of one driver while it runs: `with PipelineHeartbeat(…) as heartbeat`."""

    def __init__(
        self,
        connect: Callable[[], "headrace.Log"],
        pipeline: str,
        topic: str,
        table: str,
        times: TableTimes | None = None,  # reported
        clock: LogClock | None = None,  # set by each report
    ) -> None:
        self._connect = connect
        self._log: headrace.Log | None = None  # connected with the first report
        self._report = Report(
            pipeline=pipeline,
            topic=topic,
            run=secrets.token_hex(8),
            state=DriverState.RUNNING,
            table=table,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self._times = TableTimes() if times is None else times
        self._clock = LogClock() if clock is None else clock
        self.flaw = ""  # why the last report failed
        self.asked = threading.Event()  # to stop after the current batch
        self._topic: headrace.Topic | None = None
        self._created = 0  # the life of the topic
        self._seen = 0  # the topic is read up to here
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._has_news = False
        self._began = self._told_at = time.monotonic()
        self._done: deque[tuple[float, int]] = deque()  # when, rows
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> "PipelineHeartbeat":
        self._tell()
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._is_over.set()
        self._thread.join()  # waits for at most one request, which has a timeout
        is_failure = isinstance(error, Exception)  # Ctrl-C is not, nor a closed generator
        state = DriverState.FAILED if is_failure else DriverState.STOPPED
        note = _first_line(error) if is_failure else ""
        self._report = replace(self._report, state=state, note=note)
        self._tell()
        if self._log is not None:
            self._log.close()

    def done(self, version: int, row_count: int) -> None:
        """Record a committed batch."""
        with self._lock:
            self._done.append((time.monotonic(), row_count))
            rows = self._report.rows + row_count
            now = datetime.now(UTC)
            self._report = replace(self._report, version=version, rows=rows, committed_at=now)
            self._has_news = True

    def note(self, text: str) -> None:
        """Record what people should know; empty for nothing."""
        with self._lock:
            self._report = replace(self._report, note=text)
            self._has_news = True

    def _go_on(self) -> None:
        while not self._is_over.wait(TICK_SECONDS):
            self._listen()
            wait = NEWS_SECONDS if self._has_news else EVERY_SECONDS
            if time.monotonic() - self._told_at >= wait:
                self._tell()

    def _listen(self) -> None:
        """Check for a request to stop, and acknowledge it with a report."""
        try:
            topic = self._found()
            end = driver_reports.end_of(topic)
            is_asked = driver_reports.is_asked(topic, self._report.run, self._seen, end)
            self._seen = end
        except HeadraceError as error:
            self._topic, self.flaw = None, str(error)
            return
        if is_asked:
            with self._lock:
                self._report = replace(self._report, note=ASKED)
            self._tell()
            self.asked.set()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        with self._lock:
            self._has_news = False
            report = replace(
                self._report,
                rows_per_second=self._rate(),
                to_table_p50=self._times.quantile(MEDIAN),
                to_table_p99=self._times.quantile(HIGH),
            )
        try:
            topic, before = self._found(), time.time()
            at = driver_reports.tell(topic, report)
            if at is not None:
                self._clock.learn(before, at.timestamp(), time.time())
            self.flaw = ""
        except HeadraceError as error:
            self._topic, self.flaw = None, str(error)

    def _found(self) -> "headrace.Topic":
        """Return the topic of reports, recreating it if it was deleted.

        A request to stop follows one of our reports, so older rows do not matter.
        """
        if self._log is None:
            self._log = self._connect()
        if self._topic is None:
            topic = driver_reports.make(self._log)
            if topic.created != self._created:
                self._seen = driver_reports.end_of(topic)
            self._created, self._topic = topic.created, topic
        return self._topic

    def _rate(self) -> float:
        """Return the rows per second over the last minute, or since a later start."""
        now = time.monotonic()
        while self._done and self._done[0][0] < now - RATE_SECONDS:
            self._done.popleft()
        if self._report.state != DriverState.RUNNING:
            return 0.0
        seconds = min(max(now - self._began, TICK_SECONDS), RATE_SECONDS)
        return sum(count for _, count in self._done) / seconds


def _first_line(error: BaseException | None) -> str:
    with suppress(IndexError):
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return type(error).__name__
