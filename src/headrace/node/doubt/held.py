"""Opens a held group 0, once an operator has decided: adopt what it lost, or forget it.

The readable part, with the operator's commands applied, becomes a new group 0, which replaces
the old one as in a heal. The commands are in it before it is renamed: no start finds the older
state in a whole group.

Its ops begin above every op that the old group, its head and its copy are known to have
reached. So no op is ever used for two entries, and an old head lies below the snapshot of the
new group, where a start does not check it. Revisions are stamps above those of all shards, so
none is reused.

What is on disk after a crash following each step, and what the next start does:

    making    the old group as it was, and a part of `.new`   the same doubt; the next try
                                                              empties `.new`
    made      the old group as it was, and a whole `.new`     the same doubt; a start that
                                                              recovers the old group, because it
                                                              was put back, empties `.new`
              if group 0 was missing: a whole `.new`          it gets the name: adopted
    aside     `.old-<n>`, and a whole `.new`                  it gets the name: adopted
    placed    the new group; the older copy, and older heads  adopted: the copy has nothing that
                                                              is newer and is rewritten, the
                                                              head is below the snapshot
    copied    the new group and its copy, and older heads     adopted; heads are written again
    headed    all of it; only now the operator is answered    adopted

An attempt that failed with StorageFailed may have reached any of these: only a start can tell.
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

_BUSY_MS: Final = 200  # about the time to create a group


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of applying an operator's commands to the metadata that was read."""

    base: Base
    result: Result  # of the last command


@dataclass(frozen=True, slots=True)
class OpenedMetadata:
    """A reopened group 0."""

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
    """Apply `commands` after op `reached`; if one is refused, none is applied."""
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
    """Rebuild group 0 from its readable part and `commands`, and recover it.

    DiskFull, MetadataRefusal, or a body that is too large: nothing is changed. StorageFailed,
    or any error of the recovery: only the next start can tell.
    """
    decision = decide(start.machine, start.identity, start.reached, commands, now_us())
    if isinstance(decision, MetadataRefusal):
        return decision
    group, report = start.open_anew(decision.base)
    return OpenedMetadata(start.machine, group, report, decision.result)


@dataclass(slots=True)
class HeldMetadata:
    """A held group 0, until an operator's decision opens it. Lives on the loop."""

    start: MetadataStart
    loop: asyncio.AbstractEventLoop
    # Calls its second argument once the opened group is in service.
    on_opened: Callable[[OpenedMetadata, Callable[[], None]], None]
    failure: HeadraceError | None = None  # of an attempt that only a start can finish
    _running: "asyncio.Future[OpenedMetadata | MetadataRefusal] | None" = None

    def open(self, commands: Sequence[Command], done: Callable[[object], None]) -> None:
        """Open it with `commands`; `done` gets the last result, or the error."""
        if self.failure is not None:
            raise self.failure
        if self._running is not None:
            raise Busy("group 0 is being opened", _BUSY_MS)
        self._running = self.loop.run_in_executor(None, open_held, self.start, commands)
        self._running.add_done_callback(partial(self._ended, done))

    async def settled(self) -> None:
        """Wait for a running attempt: the directory must not be released before."""
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
