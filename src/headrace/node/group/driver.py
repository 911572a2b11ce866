"""Performs the effects of a pump: the only I/O of a running group, kept as thin as possible.

Everything runs on the loop's thread, except the work of two threads: the journal writer and
the checkpoint writer. They report back with one loop wake-up per commit group.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

from headrace.errors import HeadraceError
from headrace.journal.entry import Entry
from headrace.journal.superblock import Checkpoint
from headrace.model.proposal import EntryProposal
from headrace.node.events import event
from headrace.node.group.journal_thread import (
    GROUP_SIZE,
    Durable,
    JournalWriter,
    NotWritten,
    Paired,
    Report,
)
from headrace.node.group.pump import Effect, Pair, PersistSnapshot, Pump
from headrace.vsr.peer_messages import SoloAppend, SoloReply

Ticket = Callable[[object], None]  # receives the answer to a request


def now_us() -> int:
    """Return the wall clock in microseconds, the source of timestamps."""
    return time.time_ns() // 1_000


@dataclass(slots=True)
class Driver:
    """Runs one group on one loop."""

    name: str
    pump: Pump
    loop: asyncio.AbstractEventLoop
    group_size: int = GROUP_SIZE
    writer: JournalWriter = field(init=False)
    checkpoints: ThreadPoolExecutor = field(init=False)
    _outgoing: list[Entry] = field(default_factory=list)  # to the writer, at the turn's end
    _stopped: bool = False
    _quiet: asyncio.Event | None = None  # set when a stop has nothing left to wait for
    after: Callable[[], None] = lambda: None  # called at the end of each wake-up
    on_checkpoint: Callable[[Checkpoint], None] = lambda _: None
    on_failed_checkpoint: Callable[[HeadraceError], None] = lambda _: None
    on_group: Callable[[int], None] = lambda _: None  # gets the op count of each commit group

    def __post_init__(self) -> None:
        self.writer = JournalWriter(self.pump.group, self._report, self.group_size)
        self.checkpoints = ThreadPoolExecutor(1, thread_name_prefix=f"checkpoint {self.name}")

    def start(self) -> None:
        """Start, including any checkpoint that recovery left pending."""
        self.writer.start()
        self.tick()

    def submit(self, request: EntryProposal, ticket: Ticket | None, deadline: float) -> None:
        """Submit a request; `ticket` is called once with its result or its error."""
        self.perform(self.pump.submit(request, now_us(), ticket=ticket, deadline=deadline))

    def tick(self) -> None:
        """Advance the time."""
        self.perform(self.pump.on_tick(now_us(), self.loop.time()))

    def perform(self, effects: Sequence[Effect]) -> None:
        """Perform `effects`: appends first, then the others in order.

        A caller may submit its next op from within a reply: its entry must follow these.
        """
        for effect in effects:
            if isinstance(effect, SoloAppend):
                self._hand_over(effect.prepares)
        for effect in effects:
            match effect:
                case SoloAppend():
                    pass
                case SoloReply(ticket, result):
                    if ticket is not None:
                        assert callable(ticket)
                        ticket(result)
                case PersistSnapshot():
                    running = self.checkpoints.submit(self.pump.group.checkpoints.persist)
                    running.add_done_callback(self._persisted)
                case Pair(checkpoint):
                    self.writer.pair(checkpoint)
                case _:
                    assert_never(effect)
        if self._quiet is not None and self._is_quiet():
            self._quiet.set()

    async def stop(self) -> None:
        """Finish work in flight. The caller submits nothing more, and sets the limit."""
        if not self._is_quiet():
            self._quiet = asyncio.Event()
            await self._quiet.wait()
        self._stopped = True
        await self.loop.run_in_executor(None, self._end)

    def abandon(self) -> None:
        """Stop the threads; nothing is written but what is in flight."""
        self._stopped = True
        self._end()

    def _is_quiet(self) -> bool:
        return self.pump.is_idle or self.pump.halted is not None

    def _end(self) -> None:
        self.writer.stop()
        self.checkpoints.shutdown()

    def _hand_over(self, entries: list[Entry]) -> None:
        """Schedule entries to be written at the end of this loop turn."""
        if entries and not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing += entries

    def _flush(self) -> None:
        """Pass the entries of one loop turn to the writer."""
        entries, self._outgoing = self._outgoing, []
        self.writer.append(entries)

    def _report(self, report: Report) -> None:
        """Runs in the writer's thread."""
        self.loop.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: Report) -> None:
        match report:
            case Durable(op):
                self.on_group(op - self.pump.replica.durable)
                self.perform(self.pump.on_durable(op, now_us()))
            case NotWritten(durable, error):
                # Entries prepared in this turn chain to the failed ones: drop them, too.
                self._outgoing.clear()
                effects = self.pump.on_failed(durable, error, now_us())
                event("node.journal.failed", group=self.name, error=str(error))
                self.writer.resume()
                self.perform(effects)
            case Paired(checkpoint, error):
                self._on_paired(checkpoint, error)
            case _:
                assert_never(report)
        self.after()

    def _on_paired(self, checkpoint: Checkpoint, error: HeadraceError | None) -> None:
        if error is not None:
            self._on_unpersisted(error)
            return
        self.perform(self.pump.on_paired(checkpoint, now_us()))
        self.on_checkpoint(checkpoint)

    def _persisted(self, running: Future[Checkpoint]) -> None:
        """Runs in the checkpoint thread."""
        if not self._stopped:
            self.loop.call_soon_threadsafe(self._on_persisted, running)

    def _on_persisted(self, running: Future[Checkpoint]) -> None:
        error = running.exception()
        if error is None:
            self.perform(self.pump.on_persisted(running.result()))
        elif isinstance(error, HeadraceError):
            self._on_unpersisted(error)
        else:  # a bug, or out of memory: its leftovers are unknown
            died = HeadraceError(f"the checkpoint thread died: {error!r}")
            event("node.checkpoint.died", level=logging.ERROR, group=self.name, error=died)
            self.perform(self.pump.on_halted(died))

    def _on_unpersisted(self, error: HeadraceError) -> None:
        event("node.checkpoint.failed", group=self.name, error=str(error))
        self.on_failed_checkpoint(error)
        self.perform(self.pump.on_unpersisted(error, self.loop.time()))
