"""A loop in a thread of its own, on which the sync API runs the async core.

A call from any thread waits for its coroutine; Ctrl-C ends the wait and cancels the coroutine.
So a sync call works inside a running loop, too: that one just stands still meanwhile.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from headrace.errors import BadRequest, ConnectionLost

Result = TypeVar("Result")


def new_loop() -> asyncio.AbstractEventLoop:
    """Make a loop: the fast one, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Runner:
    """One loop, one thread. The thread ends with `stop`, or with the process."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._process = os.getpid()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """Tell whether this is the process whose thread it is; a fork takes none along."""
        return os.getpid() == self._process

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop, and return what it returns."""
        try:
            self._check()
        except BadRequest:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def join(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on this loop, for one that runs on another."""
        if self._is_stopped:
            coroutine.close()
            raise ConnectionLost("the log is closed", hint="Open it again")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return await asyncio.wrap_future(future)

    def post(self, work: Callable[[], object]) -> None:
        """Have something done on the loop soon; if that is over, it is not needed."""
        if self.is_ours:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(work)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop without waiting for it."""
        if self._is_stopped or not self.is_ours:
            coroutine.close()
        else:
            asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """End the loop and its thread. Called from another thread."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self.is_ours:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _check(self) -> None:
        if not self.is_ours:
            raise BadRequest(
                f"this log was opened in process {self._process}, before a fork",
                hint="Open or connect in the process that uses it",
            )
        if self._is_stopped:
            raise BadRequest("the log is closed", hint="Open or connect anew")
        if threading.current_thread() is self._thread:
            raise BadRequest(
                "a sync call from the log's own thread would wait for itself",
                hint="Use headrace.open_async or connect_async there",
            )

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            _cancel_all(self.loop)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
