"""A group of one replica, driven by hand: what tests, harnesses and the demo need of a node."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.journal.entry import SEAL, Entry, seal
from headrace.journal.group import Group
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
        entries = self.seal(bodies, operation)
        try:
            return self.group.append(entries)
        finally:
            # A group that needs a roll may end half way: what is durable is in the log.
            for entry in entries:
                if self.group.applied < entry.op <= self.head:
                    self.group.apply(entry)

    def checkpoint(self) -> Op | None:
        """Append a Seal and bring its checkpoint to the end."""
        self.append([b""], SEAL)
        return self.group.checkpoints.run()

    def seal(self, bodies: Sequence[bytes], operation: int = ADD) -> list[Entry]:
        """Make the entries that would follow the head."""
        journal = self.group.journal
        op, parent = journal.durable, journal.tip
        entries: list[Entry] = []
        for body in bodies:
            self.timestamp += 1
            op = Op(op + 1)
            entry = seal(
                journal.identity,
                EntryProposal(operation, body),
                op=op,
                parent=parent,
                view=View(0),
                timestamp=self.timestamp,
            )
            entries.append(entry)
            parent = entry.checksum
        return entries
