"""Rereads every file of every shard at a low rate: the thread that runs the schedule.

Damage is added to the findings of the shard, which status, metrics and `/health/ready` show. A
damaged segment is moved to quarantine; see `partition.scrub`.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Event

from headrace.model.ids import GroupId
from headrace.node.events import event
from headrace.node.node_status import iso
from headrace.node.shard.scrub_schedule import ScrubSchedule
from headrace.partition.scrub import scrub
from headrace.partition.shard_store import Store


class _Stopped(Exception):
    """The node stops; the next start begins from scratch."""


@dataclass(slots=True)
class ScrubPass:
    """The progress of a pass. Written by the thread, may be read from any."""

    began_at: float
    ended_at: float | None = None
    file_count: int = 0
    size: int = 0  # bytes read
    finding_count: int = 0
    failure: str = ""  # what ended it early

    def figures(self) -> dict[str, object]:
        return {
            "began_at": iso(self.began_at),
            "ended_at": None if self.ended_at is None else iso(self.ended_at),
            "files": self.file_count,
            "bytes": self.size,
            "findings": self.finding_count,
            "failure": self.failure or None,
        }


@dataclass(slots=True)
class Scrubber:
    """Ticked on the loop; reads in its own thread."""

    stores: Mapping[GroupId, Store]
    schedule: ScrubSchedule
    chance: Random
    newest: ScrubPass | None = None  # None: none since the start
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="scrub")
    )
    _stop: Event = field(default_factory=Event)

    @property
    def is_running(self) -> bool:
        return self.newest is not None and self.newest.ended_at is None

    def tick(self, clock: float) -> None:
        """Begin a pass if one is due."""
        if self._stop.is_set() or self.is_running or not self.schedule.is_due(clock):
            return
        self.schedule.begin(clock)
        self.newest = ScrubPass(time.time())
        self._thread.submit(self._run, self.newest)

    def stop(self) -> None:
        """Stop a running pass, after at most one part of a file. Not on the loop."""
        self._stop.set()
        self._thread.shutdown()

    def figures(self) -> dict[str, object] | None:
        """Return the figures of the newest pass; None before the first."""
        return None if self.newest is None else self.newest.figures()

    def _run(self, done: ScrubPass) -> None:
        """Runs in the thread."""
        event("node.scrub.began", shards=len(self.stores))
        try:
            for store in self.stores.values():
                self._scrub(store, done)
        except _Stopped:
            done.failure = "the node stopped"
        except Exception as error:  # noqa: BLE001 - the root of the thread's work
            done.failure = str(error) or repr(error)
            event("node.scrub.failed", level=logging.ERROR, error=repr(error))
        done.ended_at = time.time()
        seconds = f"{done.ended_at - done.began_at:.1f}"
        event("node.scrub.ended", files=done.file_count, size=done.size, seconds=seconds)

    def _scrub(self, store: Store, done: ScrubPass) -> None:
        def pace(size: int) -> None:
            done.size += size
            if self._stop.wait(self.schedule.pause(size, time.monotonic())):
                raise _Stopped

        for finding in scrub(store.keeper, pace, self.chance.random()):
            done.file_count += 1
            if finding is not None:
                done.finding_count += 1
                said = f"{finding.path}: {finding.what}"
                event("node.scrub.found", level=logging.WARNING, said=said)
