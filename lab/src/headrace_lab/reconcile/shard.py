"""One shard for the histories of reconcilers: a real machine whose files are only names."""

from collections import deque
from dataclasses import dataclass, field

from headrace.journal.entry import Entry, root, seal
from headrace.model.ids import GroupId, Identity, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.node.shard.actions import AdvanceSchema, Close, Collect, Deed, InsertOwned
from headrace.node.shard.parking import Parking
from headrace.node.shard.reconciler import Reconciler
from headrace.node.shard.retry_table import ReconcileWork
from headrace.node.shard.router import Router
from headrace.node.shard.views import ActualView
from headrace.partition.machine import operations
from headrace.partition.machine.operations import (
    ClosePartition,
    Command,
    OpenPartition,
    SetSchema,
)
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.results import Refusal, Result
from headrace.partition.reader import Key

BITS = (1, 2, 2)  # few ids, so that they are used again and again


@dataclass(eq=False, slots=True)
class Request:
    """What a client sent for one life. It must be answered exactly once."""

    key: Key
    deadline_ms: int
    answers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SimShard:
    """What a node has of one shard. The machine and the files outlive a crash."""

    number: GroupId
    machine: PartitionsMachine = field(init=False)
    reconciler: Reconciler = field(init=False)
    parking: Parking[Request] = field(init=False)
    pending: deque[Deed] = field(init=False)  # proposed, and not yet committed
    failed_ms: dict[tuple[ReconcileWork, Key, int], int] = field(
        init=False
    )  # when a deed failed last
    files: set[Key] = field(default_factory=set)
    stubborn: dict[Key, int] = field(default_factory=dict)  # deletes that will fail
    named: dict[Key, int] = field(default_factory=dict)  # Seals that a kept snapshot outlives
    is_primary: bool = True
    ever_closed: list[Key] = field(default_factory=list)
    _entries: int = 0
    _tip: bytes = b""

    def __post_init__(self) -> None:
        self.machine = PartitionsMachine(BITS[2])
        self._tip = root(self._identity)
        self.start()

    def start(self) -> None:
        """Begin as a process does: with what the log and the disk say, and nothing else."""
        self.reconciler = Reconciler(self.number)
        self.parking = Parking()
        self.pending = deque()
        self.failed_ms = {}

    @property
    def _identity(self) -> Identity:
        return Identity(b"headrace-cluster", self.number, ReplicaId(0), 1, BITS)

    @property
    def lives(self) -> set[Key]:
        """The lives that the machine has."""
        return {
            Key(one.namespace, one.created) for one in self.machine.state.partitions.values()
        }

    def actual(self, router: Router) -> ActualView:
        return ActualView(
            self.machine.state,
            router.rows_of(self.number),
            self.files,
            self.parking.keys,
            self.is_primary,
        )

    def commit(self, deed: Deed) -> str:
        """Carry out one deed; return the cause if it failed."""
        match deed:
            case InsertOwned():
                opening = OpenPartition(deed.revision, deed.topic_created, deed.schemas)
                return self._send(deed.key, opening)
            case AdvanceSchema():
                return self._send(deed.key, SetSchema(deed.version, deed.schema))
            case Close():
                cause = self._send(deed.key, ClosePartition(deed.revision))
                if not cause:
                    self.ever_closed.append(deed.key)
                return cause
            case Collect():
                return self._collect(deed.key)
            case _:
                raise AssertionError(deed)

    def _collect(self, key: Key) -> str:
        if self.named.get(key, 0):
            self.named[key] -= 1
        elif self.stubborn.get(key, 0):
            self.stubborn[key] -= 1
            return "delete failed"
        else:
            self.files.discard(key)
        return ""

    def _send(self, key: Key, command: Command) -> str:
        result = self._apply(key, command)
        return result.code if isinstance(result, Refusal) else ""

    def _apply(self, key: Key, command: Command) -> Result:
        entry: Entry = seal(
            self._identity,
            EntryProposal(
                command.operation,
                operations.encode(command),
                namespace=key.namespace,
                created=key.created,
            ),
            op=Op(self._entries + 1),
            parent=self._tip,
            view=View(0),
            timestamp=self._entries + 1,
        )
        self._entries += 1
        self._tip = entry.checksum
        return self.machine.apply(entry)
