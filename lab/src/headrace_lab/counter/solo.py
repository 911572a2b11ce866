"""A group of one replica, driven by hand: a minimal node for tests, harnesses and the demo."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.journal.entry import SEAL, Entry, seal
from headrace.journal.group import Group
from headrace.journal.journal import Journal
from headrace.journal.recovery.recover import RecoveryOptions, recover
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import GroupId, Identity, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.storage.seam import Directory
from headrace_lab.counter.counter import ADD, CounterMachine

SOLO = Identity(b"headrace-cluster", GroupId(1), ReplicaId(0), 1, (16, 24, 24))


@dataclass(slots=True)
class Solo:
    """One replica. What `append` has returned is acknowledged."""

    group: Group
    machine: CounterMachine
    report: RecoveryReport
    timestamp: int = 0

    @classmethod
    def open(
        cls, directory: Directory, options: RecoveryOptions, identity: Identity = SOLO
    ) -> "Solo":
        machine = CounterMachine()
        group, report = recover(directory, identity, machine, options)
        return cls(group, machine, report, timestamp=group.journal.durable)

    @property
    def head(self) -> Op:
        return self.group.journal.durable

    def append(self, bodies: Sequence[bytes], operation: int = ADD) -> Op:
        """Append one commit group and apply it; all up to the op returned is acknowledged."""
        append(self.group, self.seal(bodies, operation), [])
        return self.head

    def checkpoint(self) -> Op | None:
        """Append a Seal and bring its checkpoint to the end."""
        self.append([b""], SEAL)
        return self.group.checkpoints.run()

    def seal(self, bodies: Sequence[bytes], operation: int = ADD) -> list[Entry]:
        """Make the entries that would follow the head."""
        proposals = [EntryProposal(operation, body) for body in bodies]
        entries = following(self.group.journal, proposals, self.timestamp)
        self.timestamp += len(entries)
        return entries


def following(
    journal: Journal, proposals: Sequence[EntryProposal], timestamp: int, tick: int = 1
) -> list[Entry]:
    """Make the entries that would follow the head, the first one a tick after `timestamp`."""
    op, parent = journal.durable, journal.tip
    entries: list[Entry] = []
    for number, proposal in enumerate(proposals, start=1):
        op = Op(op + 1)
        entry = seal(
            journal.identity,
            proposal,
            op=op,
            parent=parent,
            view=View(0),
            timestamp=timestamp + number * tick,
        )
        entries.append(entry)
        parent = entry.checksum
    return entries


def append(group: Group, entries: Sequence[Entry], results: list[Any]) -> None:
    """Append one commit group, apply it, and add what became of each entry to `results`."""
    try:
        group.append(entries)
    finally:
        # A group that needs a roll may end half way: what is durable is in the log.
        left = (one for one in entries if group.applied < one.op <= group.journal.durable)
        results.extend(map(group.apply, left))
