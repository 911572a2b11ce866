"""One writer's lane to one partition: many batches in flight, each appended exactly once."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from headrace.client.connect.retry import Backoff, Caller, now
from headrace.client.values.answers import Range
from headrace.client.write.in_flight import Draft, InFlight, is_hopeless, verdict
from headrace.client.write.ledger import Ledger, Line
from headrace.errors import (
    BadFrame,
    Busy,
    ConnectionLost,
    HeadraceError,
    PartitionUnknown,
    TimedOut,
)
from headrace.model.ids import WRITER_SIZE
from headrace.model.results import AppendResult
from headrace.wire.messages import Reply
from headrace.wire.topic_messages import PartitionInfo
from headrace.wire.write_messages import AppendRequest


def new_writer() -> bytes:
    """Return a unique name for a writer."""
    return secrets.token_bytes(WRITER_SIZE)


@dataclass(frozen=True, slots=True)
class SendTarget:
    """The partition of a lane."""

    topic: str
    number: int
    info: PartitionInfo


class PartitionSender:
    """Sends drafts in order. A task handles failures."""

    def __init__(
        self, caller: Caller, target: SendTarget, writer: bytes, ledger: Ledger | None
    ) -> None:
        self._caller = caller
        self._target = target
        self._ledger = ledger
        self._window = InFlight(writer, new_writer)
        self._waiting: deque[Draft] = deque()
        # For each draft under way, the function that abandons its attempt.
        self._tries: dict[Draft, Callable[[], object]] = {}
        self._landed: dict[
            asyncio.Task[None], Draft
        ] = {}  # appended; their ledger lines are being written
        # Every draft in the window is under way. If not, no new one is added until all have
        # returned and `settle` has put them in order.
        self._is_smooth = True
        self._backoff = Backoff()
        self._task: asyncio.Task[None] | None = None  # puts the window in order
        self._is_stopped = False

    def put(self, draft: Draft) -> None:
        """Accept a draft; its `done` gets the outcome."""
        if self._is_stopped:
            _fail(draft, closed())
            return
        self._waiting.append(draft)
        self._go_on()

    async def stop(self) -> None:
        """Give up everything under way at once. Only ledger lines are finished."""
        self._is_stopped = True
        tries, self._tries = self._tries, {}
        for give_up in tries.values():
            give_up()
        ending = [] if self._task is None else [self._task]
        for task in ending:
            task.cancel()
        try:
            await asyncio.gather(*self._landed, *ending, return_exceptions=True)
        finally:
            for draft in (*self._window.drafts, *self._landed.values()):
                draft.is_doubtful = True
                _fail(draft, verdict(draft))
            for draft in self._waiting:
                _fail(draft, closed())

    def _go_on(self) -> None:
        """Send what may be sent. Called after a new draft and after each attempt."""
        if self._is_stopped:
            return
        if self._is_smooth:
            self._fill()
        elif not self._tries and self._task is None:
            self._task = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        while not self._is_smooth and not self._tries:
            await self._settle()
        self._task = None
        self._go_on()

    def _fill(self) -> None:
        time = now()
        while self._waiting and self._window.has_room:
            draft = self._waiting.popleft()
            if draft.done.done():
                continue
            if draft.deadline <= time:
                _fail(draft, TimedOut("the batch waited too long for its turn"))
                continue
            self._window.add(draft)
            self._send(draft)

    def _send(self, draft: Draft) -> None:
        info = self._target.info
        request = AppendRequest(
            namespace=info.namespace,
            created=info.created,
            writer=self._window.writer,
            version=draft.version,
            schema_id=draft.schema_id,
            row_count=draft.row_count,
            checksum=draft.checksum,
        )
        draft.error = None
        self._tries[draft] = self._caller.channel.begin(
            request,
            (draft.body,),
            deadline=draft.deadline,
            done=partial(self._on_answer, draft, request),
        )

    def _on_answer(
        self, draft: Draft, request: AppendRequest, answer: Reply | BaseException
    ) -> None:
        if self._tries.pop(draft, None) is None:
            return  # `stop` has reported it already
        if isinstance(answer, AppendResult) and answer.end - answer.start == draft.row_count:
            self._on_appended(draft, request, answer)
        elif isinstance(answer, HeadraceError):
            self._on_failed(draft, answer)
        elif isinstance(answer, BaseException):
            # Unexpected: the caller gets it as it is.
            self._is_smooth = False
            draft.deadline, draft.is_doubtful = 0.0, True
            if isinstance(answer, asyncio.CancelledError):
                _fail(draft, verdict(draft))
                return  # the loop may be ending, and would not run a new task
            _fail(draft, answer)
        else:
            self._on_failed(draft, BadFrame(f"unexpected answer to Append: {answer}"))
        # In the loop's next iteration: the channel that answers may be busy.
        if self._waiting or not self._is_smooth:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _on_failed(self, draft: Draft, error: HeadraceError) -> None:
        self._is_smooth = False
        self._window.on_failed(draft, error)
        if is_hopeless(draft, now()):
            _fail(draft, verdict(draft))

    def _on_appended(self, draft: Draft, request: AppendRequest, reply: AppendResult) -> None:
        """Report that the batch is appended, in the ledger first."""
        self._backoff = Backoff()
        self._window.on_appended(draft)
        landed = Range(self._target.number, reply.start, reply.end)
        if self._ledger is None:
            if not draft.done.done():
                draft.done.set_result(landed)
            return
        line = Line.of(self._target.topic, landed, request)
        task = asyncio.create_task(self._record(self._ledger, line, draft, landed))
        self._landed[task] = draft
        task.add_done_callback(self._on_recorded)

    async def _record(self, ledger: Ledger, line: Line, draft: Draft, landed: Range) -> None:
        try:
            await ledger.record(line)
        except HeadraceError as error:
            _fail(draft, error)
        else:
            if not draft.done.done():
                draft.done.set_result(landed)

    def _on_recorded(self, task: asyncio.Task[None]) -> None:
        draft = self._landed[task]
        if task.cancelled():
            if self._is_stopped:
                return  # `stop` reports it
            draft.is_doubtful = True
            _fail(draft, verdict(draft))
        elif (error := task.exception()) is not None:
            _fail(draft, error)
        del self._landed[task]

    async def _settle(self) -> None:
        """Put the window in order, and send again what needs it."""
        reasons = [each.error for each in self._window.drafts if each.error is not None]
        given_up = self._window.settle(now())
        for draft, error in given_up:
            _fail(draft, error)
        drafts = self._window.drafts
        if drafts and not given_up:
            busy = next((each for each in reasons if isinstance(each, Busy)), None)
            pause = self._backoff.next(busy)
            await asyncio.sleep(max(0.0, min(pause, drafts[0].deadline - now())))
            await self._probe(reasons)
        again = self._window.sendable(now())
        self._is_smooth = len(again) == len(drafts)
        for draft in again:
            self._send(draft)

    async def _probe(self, reasons: list[HeadraceError]) -> None:
        """Check whether an unknown partition is permanently deleted; if so, give up."""
        probe = self._caller.probe
        if probe is None or not any(isinstance(each, PartitionUnknown) for each in reasons):
            return
        try:
            await probe()
        except HeadraceError as error:
            for draft in self._window.drafts:
                self._window.on_failed(draft, error)


def _fail(draft: Draft, error: BaseException) -> None:
    if not draft.done.done():
        draft.done.set_exception(error)
        with suppress(asyncio.CancelledError):
            draft.done.exception()  # the caller may no longer wait for it


def closed() -> ConnectionLost:
    """Return the error for a batch that came too late."""
    return ConnectionLost("the log was closed before the batch was sent")
