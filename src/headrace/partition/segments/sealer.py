"""Runs seal jobs: in child processes for a node, in the caller for the simulator."""

import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final, Protocol

import msgspec

from headrace.journal.entry import Entry
from headrace.partition.segments.seal_job import (
    DISK,
    OUTCOME_DECODER,
    UNSEALABLE,
    Outcome,
    SealJob,
    SealPart,
    SealRefused,
    encode,
    seal_file,
)
from headrace.partition.segments.sealing_child import KEPT, SIZE
from headrace.storage.seam import Directory

CHILD_COUNT: Final = max(1, min(2, os.cpu_count() or 1))
JOB_SECONDS_MAX: Final = 900  # far longer than the largest segment takes; after it, a hang
ANSWER_SIZE_MAX: Final = 1024 * 1024  # digests, or an error text
TRIES_MAX: Final = 2  # a job that kills two children would kill the next one

_PIECE_SIZE: Final = 65_536  # the amount that a pipe takes at once


class Sealer(Protocol):
    """Writes segments under their temporary names."""

    @property
    def is_apart(self) -> bool:
        """Whether the work is done elsewhere, so that the caller may work meanwhile."""

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[SealPart], Entry]
    ) -> list[Outcome]:
        """Run all jobs and return their outcomes in the same order."""

    def close(self) -> None: ...


class InProcess:
    """Seals in the caller's own process, through the given seam."""

    is_apart = False

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[SealPart], Entry]
    ) -> list[Outcome]:
        return [seal_file(job, directory, read) for job in jobs]

    def close(self) -> None:
        return


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    job: int = -1  # the number of the job it works on
    answer: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))  # of the job

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its input and its output."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        return stdin, stdout


@dataclass(slots=True)
class Children:
    """Seals in child processes, which are reused for later jobs. One thread calls this."""

    count: int = CHILD_COUNT
    job_seconds_max: float = JOB_SECONDS_MAX
    idle: list[_Child] = field(default_factory=list)
    is_apart: bool = True

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[SealPart], Entry]
    ) -> list[Outcome]:
        return _Round(self, jobs).run()

    def take(self) -> _Child:
        """Return a child that waits for a job."""
        while self.idle:
            child = self.idle.pop()
            if child.process.poll() is None:
                return child
            _end(child)
        return _Child(_start())

    def close(self) -> None:
        """Let all children end, and wait for them."""
        while self.idle:
            _end(self.idle.pop())


def _start() -> subprocess.Popen[bytes]:
    """Start a new child, not forked, and without any descriptor of this process."""
    return subprocess.Popen(
        # -P: it must not import files from the working directory.
        [sys.executable, "-P", "-m", "headrace.partition.segments.sealing_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=True,
        env={**os.environ, **KEPT},
        # A Ctrl-C at the terminal is for the parent: it ends its children in its own time.
        start_new_session=True,
    )


def _end(child: _Child) -> int:
    """Close the pipes of a child, which ends it, and return how it ended."""
    for pipe in child.pipes:
        with suppress(OSError):  # it may have ended already
            pipe.close()
    return child.process.wait()


@dataclass(slots=True)
class _Round:
    """One batch of jobs, on as many children as there may be."""

    children: Children
    jobs: Sequence[SealJob]
    waiting: deque[int] = field(init=False)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    busy: int = 0

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.jobs)))

    def run(self) -> list[Outcome]:
        with selectors.DefaultSelector() as selector:
            try:
                while self.waiting or self.busy:
                    self._hand_out(selector)
                    self._gather(selector)
            finally:
                for child in _children_in(selector):
                    child.process.kill()
                    _end(child)
        return [self.outcomes[number] for number in range(len(self.jobs))]

    def _hand_out(self, selector: selectors.BaseSelector) -> None:
        while self.waiting and self.busy < self.children.count:
            child = self.children.take()
            number = self.waiting.popleft()
            child.job, child.answer = number, bytearray()
            self.tries[number] = self.tries.get(number, 0) + 1
            message = encode(self.jobs[number])
            child.unsent = memoryview(SIZE.pack(len(message)) + message)
            stdin, stdout = child.pipes
            os.set_blocking(stdin.fileno(), False)  # one that hangs must not hang its parent
            selector.register(stdin, selectors.EVENT_WRITE, child)
            selector.register(stdout, selectors.EVENT_READ, child)
            self.busy += 1

    def _gather(self, selector: selectors.BaseSelector) -> None:
        if not self.busy:
            return
        ready = selector.select(self.children.job_seconds_max)
        if not ready:  # all hang: none answered within the longest time a job may take
            for child in _children_in(selector):
                child.process.kill()
            return
        for key, events in ready:
            child = key.data
            if events & selectors.EVENT_READ:
                self._receive(selector, child)
            elif not child.pipes[0].closed:  # its other pipe may have just reported its end
                _send(selector, child)

    def _receive(self, selector: selectors.BaseSelector, child: _Child) -> None:
        stdin, stdout = child.pipes
        data = os.read(stdout.fileno(), _PIECE_SIZE)
        child.answer += data
        if data and not _is_whole(child.answer):
            return
        selector.unregister(stdout)
        if child.unsent:  # it answered or ended before it read the whole job
            selector.unregister(stdin)
        self.busy -= 1
        if data and not child.unsent:
            self._answered(child)
        else:
            self._died(child)

    def _answered(self, child: _Child) -> None:
        try:
            outcome = OUTCOME_DECODER.decode(memoryview(child.answer)[SIZE.size :])
        # msgspec does not wrap the error of a string that is not UTF-8.
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            outcome = SealRefused(DISK, f"the child's answer cannot be read: {error}")
            # Its next output might be taken for the answer to another job.
            child.process.kill()
            _end(child)
        else:
            self.children.idle.append(child)
        self.outcomes[child.job] = outcome

    def _died(self, child: _Child) -> None:
        code = _end(child)
        if self.tries[child.job] < TRIES_MAX:
            self.waiting.appendleft(child.job)
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.outcomes[child.job] = SealRefused(UNSEALABLE, f"the child process died: {how}")


def _send(selector: selectors.BaseSelector, child: _Child) -> None:
    """Send as much of the job as the pipe takes. The answer pipe shows a dead child."""
    stdin, _ = child.pipes
    try:
        child.unsent = child.unsent[os.write(stdin.fileno(), child.unsent[:_PIECE_SIZE]) :]
    except BlockingIOError:
        return
    except OSError:
        child.unsent = memoryview(b"")
    if not child.unsent:
        selector.unregister(stdin)


def _children_in(selector: selectors.BaseSelector) -> list[_Child]:
    """Return the working children, each once."""
    found = {key.data.process.pid: key.data for key in selector.get_map().values()}
    return list(found.values())


def _is_whole(answer: bytearray) -> bool:
    """Whether the answer is complete: invalid bytes that announce more count as complete."""
    if len(answer) < SIZE.size:
        return False
    size: int = SIZE.unpack_from(answer)[0]
    return size > ANSWER_SIZE_MAX or len(answer) >= SIZE.size + size
