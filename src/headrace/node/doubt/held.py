"""Opening a group 0 that is held, once an operator has decided: adopt what it lost, or forget.

What was read of it, with the operator's commands applied, becomes a new group 0, which takes
the place of the old one as that of a heal does. The commands are in it before it has the name:
no start finds the older state in a group that is whole.

Its ops begin above every op that the old group, its head and its copy are known to have
reached. So none of these ever names another entry of the same op, and a head of before lies
below the snapshot of the new group, where a start asks nothing. Revisions are stamps above
those of all shards, so none repeats.

What is on disk after a crash behind each step, and what the next start does:

    making    the old group as it was, and a part of `.new`   the same doubt; the next try
                                                              empties `.new`
    made      the old group as it was, and a whole `.new`     the same doubt; a start that
                                                              recovers the old group, because it
                                                              was put back, empties `.new`
              of a group 0 that was gone: a whole `.new`      it gets the name: adopted
    aside     `.old-<n>`, and a whole `.new`                  it gets the name: adopted
    placed    the new group; the older copy, and older heads  adopted: the copy has nothing that
                                                              is newer and is begun anew, the
                                                              head is below the snapshot
    copied    the new group and its copy, and older heads     adopted; heads are written again
    headed    all of it; the operator is told only now        adopted

A try that failed with StorageFailed may have come to any of these: only a start tells.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.errors import Busy, HeadraceError, StorageFailed
from headrace.journal.entry import Entry, root, seal
from headrace.journal.group import Group
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.metadata.commands import Command, Level, encode
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataRefusal, Result
from headrace.metadata.state import LEVEL
from headrace.model.ids import Identity, Op, View
from headrace.model.proposal import EntryProposal
from headrace.node.doubt.metadata_copy import Base
from headrace.node.doubt.metadata_start import MetadataStart
from headrace.node.group.driver import now_us
from headrace.node.requests.catalog import MetadataGroup
from headrace.node.requests.outcomes import defect

_BUSY_MS: Final = 200  # about what it takes to make a group


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator's commands make of the metadata that was read."""

    base: Base
    result: Result  # of the last command


@dataclass(frozen=True, slots=True)
class OpenedMetadata:
    """A group 0 that is open again."""

    machine: MetadataMachine
    group: Group
    report: RecoveryReport
    result: Result


def decide(
    held: MetadataMachine,
    identity: Identity,
    reached: Op,
    commands: Sequence[Command],
    now: int,
) -> Decision | MetadataRefusal:
    """Apply `commands` behind op `reached`; the first that is refused refuses all of them."""
    machine = MetadataMachine(held.layout)
    machine.restore(held.snapshot())
    group, op, parent = MetadataGroup(machine), reached, root(identity)
    level = () if machine.state.level >= LEVEL else (Level(LEVEL),)
    entry: Entry | None = None
    result: Result | None = None
    for command in (*level, *commands):
        op = Op(op + 1)
        entry = seal(
            identity,
            EntryProposal(command.operation, encode(command)),
            op=op,
            parent=parent,
            view=View(0),
            timestamp=now,
        )
        parent, result = entry.checksum, group.apply(entry)
        if isinstance(result, MetadataRefusal):
            return result
    assert entry is not None
    assert result is not None
    return Decision(Base(op, parent, machine.snapshot(), entry), result)


def open_held(
    start: MetadataStart, commands: Sequence[Command]
) -> OpenedMetadata | MetadataRefusal:
    """Make group 0 anew of what was read of it and `commands`, and recover it.

    DiskFull, MetadataRefusal, or a body that is too large: nothing is changed. StorageFailed,
    and anything that the recovery raises: the next start tells.
    """
    decision = decide(start.machine, start.identity, start.reached, commands, now_us())
    if isinstance(decision, MetadataRefusal):
        return decision
    group, report = start.open_anew(decision.base)
    return OpenedMetadata(start.machine, group, report, decision.result)


@dataclass(slots=True)
class HeldMetadata:
    """A group 0 that is held, until an operator's decision opens it. Lives on the loop."""

    start: MetadataStart
    loop: asyncio.AbstractEventLoop
    # Calls the second once what was opened serves.
    on_opened: Callable[[OpenedMetadata, Callable[[], None]], None]
    failure: HeadraceError | None = None  # of a try that only a start can finish
    _running: "asyncio.Future[OpenedMetadata | MetadataRefusal] | None" = None

    def open(self, commands: Sequence[Command], done: Callable[[object], None]) -> None:
        """Open it with `commands`; `done` gets the result of the last, or why not."""
        if self.failure is not None:
            raise self.failure
        if self._running is not None:
            raise Busy("group 0 is being opened", _BUSY_MS)
        self._running = self.loop.run_in_executor(None, open_held, self.start, commands)
        self._running.add_done_callback(partial(self._ended, done))

    async def settled(self) -> None:
        """Wait for what is under way: nobody else may have the directory before."""
        if self._running is not None:
            await asyncio.wait((self._running,))

    def _ended(
        self,
        done: Callable[[object], None],
        running: "asyncio.Future[OpenedMetadata | MetadataRefusal]",
    ) -> None:
        self._running = None
        try:
            opened = running.result()
        except HeadraceError as error:
            if self.start.is_replaced or isinstance(error, StorageFailed):
                self.failure = error
            done(error)
        except Exception as error:  # noqa: BLE001 - the root of a thread's work
            self.failure = defect("opening group 0", error)
            done(self.failure)
        else:
            if isinstance(opened, OpenedMetadata):
                self.on_opened(opened, lambda: done(opened.result))
            else:
                done(opened)
