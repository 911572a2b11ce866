"""One life of a group, long enough for every kind of effect, recorded in a history."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headrace.errors import Unavailable
from headrace.journal.entry import SEAL, Entry
from headrace.journal.recovery import mend
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Op
from headrace_lab.counter.counter import ADD, CounterMachine, add
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.history import History

# Small files: a few dozen entries roll, drain and recycle, and files grow once. Few slots: the
# ring wraps.
FIRST_SIZE = 12 * 1024
FILE_SIZE = 16 * 1024
SLOTS = 64


def options() -> RecoveryOptions:
    """Return small options with file ids that count up, so that every run is the same."""
    ids = itertools.count(0x1001)
    return RecoveryOptions(
        slots=SLOTS,
        file_size=FILE_SIZE,
        first_size=FIRST_SIZE,
        spare_count_max=2,
        new_id=lambda: next(ids) * 0x9E3779B97F4A7C15 % 2**64,
        clock=lambda: 0.0,
    )


@dataclass(slots=True)
class CounterHistory(History):
    """The history of a group of counters."""

    def model(self) -> CounterMachine:
        return CounterMachine()


@dataclass(slots=True)
class GroupActor:
    """Drives one group on one disk and tells the history what it saw."""

    disk: MemoryDisk
    history: CounterHistory = field(default_factory=CounterHistory)
    options: RecoveryOptions = field(default_factory=options)
    solo: Solo | None = None
    cluster: bytes = SOLO.cluster

    def open(self) -> Solo:
        identity = replace(SOLO, cluster=self.cluster)
        self.solo = Solo.open(self.disk.root, self.options, identity)
        return self.solo

    def append(self, *sizes: int) -> None:
        """Append one commit group with bodies of about these sizes."""
        solo = self._running()
        serial = len(self.history.submitted)
        bodies = [
            add(f"{serial + at}".ljust(size, "x"), at + 1) for at, size in enumerate(sizes)
        ]
        self._submit(solo, bodies, ADD)

    def checkpoint(self) -> None:
        solo = self._running()
        self._submit(solo, [b""], SEAL)
        self._patiently(solo.group.checkpoints.run)

    def mark(self) -> None:
        solo = self._running()
        self._patiently(solo.group.idle)

    def cut(self, *sizes: int) -> None:
        """Journal ops that never commit, discard them as a view change does, start again."""
        solo = self._running()
        journal, superblock = solo.group.journal, solo.group.superblock
        first = Op(solo.head + 1)
        for size in sizes:
            entries = solo.seal([add("never".ljust(size, "-"), 1)])
            self.history.submit(entries)
            with suppress(Unavailable):
                journal.append(entries)
        if journal.durable >= first:
            mend.cut(journal, superblock, first)
        journal.close()
        self.history.check(self.open())

    def stop(self) -> None:
        solo = self._running()
        self._patiently(solo.group.stop)
        self.history.check(self.open())

    def _submit(self, solo: Solo, bodies: list[bytes], operation: int) -> None:
        """Append; what is refused must never show up, so append something else in its place."""
        entries = self._append(solo, bodies, operation)
        if entries[-1].op > solo.head:
            left = [entry for entry in entries if entry.op > solo.head]
            self.history.refuse(left)
            # One entry of the size of the first: what the refused write left behind it, if it
            # left anything, stands exactly where the next frame would.
            size = len(left[0].body)
            instead = b"" if operation == SEAL else add("instead".ljust(size - 8, "-"), 1)
            self._append(solo, [instead], operation)

    def _append(self, solo: Solo, bodies: list[bytes], operation: int) -> list[Entry]:
        entries = solo.seal(bodies, operation)
        self.history.submit(entries)
        with suppress(Unavailable):
            solo.group.append(entries)
        self._settle(solo, entries)
        return entries

    def _settle(self, solo: Solo, entries: list[Entry]) -> None:
        durable = [entry for entry in entries if solo.group.applied < entry.op <= solo.head]
        self.history.acknowledge(durable)
        for entry in durable:
            solo.group.apply(entry)

    def _patiently(self, action: Callable[[], object]) -> None:
        """Repeat once what a full disk or a failed write refused: it may have lost nothing."""
        try:
            action()
        except Unavailable:
            action()

    def _running(self) -> Solo:
        assert self.solo is not None
        return self.solo


def play(actor: GroupActor) -> None:
    """Live a life: groups, marks, rolls, checkpoints, recycling, a cut, clean stops."""
    actor.open()
    actor.append(5000)  # does not fit the first file, which is still empty
    actor.append(20)
    actor.append(30, 200, 10)
    actor.mark()
    actor.checkpoint()
    actor.append(700, 40)
    actor.append(900)
    actor.append(20, 20)
    actor.checkpoint()
    actor.append(300, 300, 300)
    actor.mark()
    actor.append(500, 800, 100)
    actor.checkpoint()
    actor.append(600, 600)
    actor.append(60)
    actor.cut(700, 40, 900, 300, 60)
    actor.append(4200, 50)
    actor.append(700, 700, 700)
    actor.checkpoint()
    actor.append(10, 1100)
    actor.stop()
    actor.append(80, 90)
    for _ in range(5):
        actor.append(2000, 2000, 2000)
    actor.checkpoint()
    actor.append(2000)
    actor.checkpoint()
    actor.checkpoint()
    actor.append(100)
