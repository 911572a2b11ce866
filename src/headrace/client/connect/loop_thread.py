"""A loop in its own thread, on which the sync API runs the async core.

A call from any thread waits for its coroutine; Ctrl-C ends the wait and cancels the coroutine.
So a sync call also works inside a running loop, which is blocked meanwhile.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, Final, TypeVar

from headrace.errors import BadRequest, ConnectionLost, Unknown

LOOK_SECONDS: Final = 0.5  # between checks for an interrupt

Result = TypeVar("Result")


def new_loop() -> asyncio.AbstractEventLoop:
    """Create a loop: uvloop if installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _WaitingThread:
    """A thread waiting for a future of the loop. The loop's thread sets the outcome once."""

    __slots__ = ("_error", "_found", "_is_told", "is_over")

    def __init__(self) -> None:
        self.is_over = threading.Lock()
        self.is_over.acquire()  # until the outcome is set
        self._is_told = False
        self._found: Any = None
        self._error: BaseException | None = None

    def end(self, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self.tell(None, _cut_off())
        elif (error := done.exception()) is not None:
            self.tell(None, error)
        else:
            self.tell(done.result(), None)

    def tell(self, found: object, error: BaseException | None) -> None:
        if not self._is_told:
            self._is_told = True
            self._found, self._error = found, error
            self.is_over.release()

    def result(self) -> Any:  # noqa: ANN401
        if self._error is not None:
            raise self._error
        return self._found


class LoopThread:
    """One loop, one thread. The thread ends with `stop`, or with the process."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._process = os.getpid()
        self._is_stopped = False
        # Held while work is submitted to the loop, and while the loop is told to stop: work is
        # run or cancelled, never lost.
        self._lock = threading.RLock()
        self._waiters: set[_WaitingThread] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """Say whether the thread belongs to this process; a fork does not copy threads."""
        return os.getpid() == self._process

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result."""
        future = self._submit(coroutine)
        try:
            return _awaited(future)
        except CancelledError:
            raise _cut_off() from None
        except BaseException:
            future.cancel()
            raise

    def wait_for(
        self, begin: Callable[[Callable[[asyncio.Future[Result]], object]], None]
    ) -> Result:
        """Start something on the loop, and return the result of its future.

        `begin` gets a callback to call with that future, once it is done. This takes one hop
        to the loop and one back; a coroutine takes several.
        """
        waiter = _WaitingThread()

        def started() -> None:
            try:
                begin(waiter.end)
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                waiter.tell(None, error)

        with self._lock:
            self._check()
            self._waiters.add(waiter)
            self.loop.call_soon_threadsafe(started)
        try:
            while not waiter.is_over.acquire(timeout=LOOK_SECONDS):
                pass  # signal handlers run in between: see `_awaited`
        finally:
            self._waiters.discard(waiter)
        found: Result = waiter.result()
        return found

    def finish(self, coroutine: Coroutine[Any, Any, object], limit: float) -> None:
        """Run a coroutine to its end: an interrupt is raised only then, or after `limit`."""
        future = self._submit(coroutine)
        try:
            _awaited(future)
        except BaseException:
            end = time.monotonic() + limit
            while not future.done() and time.monotonic() < end:
                with suppress(KeyboardInterrupt):  # one is already pending
                    wait([future], end - time.monotonic())
            raise

    async def join(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on this loop, for a caller on another."""
        try:
            future = self._submit(coroutine)
        except BadRequest:
            if not self._is_stopped:
                raise
            raise ConnectionLost("the log is closed", hint="Open it again") from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _cut_off() from None  # not cancelled by the caller: the loop has ended

    def post(self, work: Callable[[], object]) -> None:
        """Schedule work on the loop; dropped if the loop has ended."""
        if self.is_ours:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(work)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop without waiting for it."""
        with self._lock:
            if self._is_stopped or not self.is_ours:
                coroutine.close()
            else:
                asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Stop the loop and its thread. Called from another thread."""
        if not self.is_ours:
            self._is_stopped = True
            return
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        try:
            self._check()
            with self._lock:
                self._check()
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BadRequest:
            coroutine.close()
            raise

    def _check(self) -> None:
        if not self.is_ours:
            raise BadRequest(
                f"this log was opened in process {self._process}, before a fork",
                hint="Open or connect in the process that uses it",
            )
        if self._is_stopped:
            raise BadRequest("the log is closed", hint="Open or connect again")
        if threading.current_thread() is self._thread:
            raise BadRequest(
                "a sync call from the log's own thread would deadlock",
                hint="Use headrace.open_async or connect_async there",
            )

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            _cancel_all(self.loop)
            for waiter in list(self._waiters):
                waiter.tell(None, _cut_off())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def _awaited(future: Future[Result]) -> Result:
    """Wait in short intervals.

    A signal that arrives just before a thread starts to wait does not wake it: its handler
    runs when the wait ends.
    """
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()  # completed meanwhile, or raised TimeoutError itself


def _cut_off() -> Unknown:
    return Unknown("the log was closed during the call; the request may have taken effect")


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
