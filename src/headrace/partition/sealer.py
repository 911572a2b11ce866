"""Who writes segments: child processes for a node, the caller itself for the simulator."""

import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headrace.journal.entry import Entry
from headrace.partition.child import SIZE
from headrace.partition.sealing import (
    DISK,
    OUTCOME_DECODER,
    UNSEALABLE,
    Failed,
    Outcome,
    Part,
    SealJob,
    encode,
    seal_file,
)
from headrace.storage.seam import Directory

CHILD_COUNT: Final = max(1, min(2, os.cpu_count() or 1))
JOB_SECONDS_MAX: Final = 900  # far longer than the largest segment takes; then it hangs
ANSWER_SIZE_MAX: Final = 1024 * 1024  # digests, or what went wrong in words
TRIES_MAX: Final = 2  # a child that dies twice of one job would die of it again


class Sealer(Protocol):
    """Writes segments under their temporary names."""

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[Part], Entry]
    ) -> list[Outcome]:
        """Do all jobs, return their outcomes in the same order."""

    def close(self) -> None: ...


class InProcess:
    """Seals in the caller's own process, through the seam that it is given."""

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[Part], Entry]
    ) -> list[Outcome]:
        return [seal_file(job, directory, read) for job in jobs]

    def close(self) -> None:
        return


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    job: int = -1  # the number of the job it works on
    answer: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Children:
    """Seals in child processes, which stay for the next jobs. One thread calls this."""

    count: int = CHILD_COUNT
    job_seconds_max: float = JOB_SECONDS_MAX
    idle: list[_Child] = field(default_factory=list)

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[Part], Entry]
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
    """Start a child anew: not forked, and with no descriptor of ours."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.partition.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=True,
        # A Ctrl-C at the terminal is for the parent: it ends its children in its own time.
        start_new_session=True,
    )


def _end(child: _Child) -> int:
    """Close the pipes of a child, which ends it, and return how it ended."""
    process = child.process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    with suppress(OSError):  # it may have gone already, with some bytes unread
        process.stdin.close()
    return process.wait()


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
                for key in list(selector.get_map().values()):
                    key.data.process.kill()
                    _end(key.data)
        return [self.outcomes[number] for number in range(len(self.jobs))]

    def _hand_out(self, selector: selectors.BaseSelector) -> None:
        while self.waiting and self.busy < self.children.count:
            child = self.children.take()
            number = self.waiting.popleft()
            child.job, child.answer = number, bytearray()
            self.tries[number] = self.tries.get(number, 0) + 1
            stdin, stdout = child.process.stdin, child.process.stdout
            assert stdin is not None
            assert stdout is not None
            message = encode(self.jobs[number])
            try:
                stdin.write(SIZE.pack(len(message)) + message)
                stdin.flush()
            except OSError:
                self._died(child)
                continue
            selector.register(stdout, selectors.EVENT_READ, child)
            self.busy += 1

    def _gather(self, selector: selectors.BaseSelector) -> None:
        if not self.busy:
            return
        ready = selector.select(self.children.job_seconds_max)
        if not ready:  # all hang: none answered within the longest time a job may take
            for key in list(selector.get_map().values()):
                key.data.process.kill()
            return
        for key, _ in ready:
            child: _Child = key.data
            assert child.process.stdout is not None
            data = os.read(child.process.stdout.fileno(), 65_536)
            child.answer += data
            if data and not _is_whole(child.answer):
                continue
            selector.unregister(child.process.stdout)
            self.busy -= 1
            if data:
                self._answered(child)
            else:
                self._died(child)

    def _answered(self, child: _Child) -> None:
        try:
            outcome = OUTCOME_DECODER.decode(memoryview(child.answer)[SIZE.size :])
        # msgspec lets the error of a string that is not UTF-8 pass as it is.
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            outcome = Failed(DISK, f"the child's answer cannot be read: {error}")
            # What it says next might be taken for the answer to another job.
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
        self.outcomes[child.job] = Failed(UNSEALABLE, f"the child died of it: {how}")


def _is_whole(answer: bytearray) -> bool:
    """Tell whether there is no more to wait for: rubbish that promises more is judged now."""
    if len(answer) < SIZE.size:
        return False
    size: int = SIZE.unpack_from(answer)[0]
    return size > ANSWER_SIZE_MAX or len(answer) >= SIZE.size + size
