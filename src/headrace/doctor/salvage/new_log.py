"""Writes a new log from scratch, through the same groups and machines as a running node.

Rows keep their append times: entries are sealed here with the old times, and not by a running
primary, which would assign new ones.
"""

import secrets
from dataclasses import dataclass, field
from typing import Final

from headrace.journal.entry import SEAL, Entry, seal
from headrace.journal.group import Group
from headrace.journal.recovery.recover import SLOTS_METADATA, RecoveryOptions, recover
from headrace.metadata import commands
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataRefusal as MetadataRefused
from headrace.metadata.state import LEVEL, MetadataState
from headrace.model.ids import GroupId, Offset, Op, ReplicaId, View
from headrace.model.ids import Identity as GroupIdentity
from headrace.model.namespace import Namespace, NamespaceLayout
from headrace.model.proposal import EntryProposal
from headrace.model.results import AppendResult
from headrace.model.schema import SEGMENT_FORMAT
from headrace.node.bootstrap import METADATA_FILE_SIZE
from headrace.node.group.driver import now_us
from headrace.node.identity import GROUPS, METADATA, ClusterIdentity, group_name, read_or_make
from headrace.node.requests.catalog import MetadataGroup
from headrace.partition.machine import operations
from headrace.partition.machine.operations import APPEND
from headrace.partition.machine.results import Refusal
from headrace.partition.shard_store import Store, StoreOptions, open_store
from headrace.storage.file import FileDirectory
from headrace.storage.seam import Directory

GROUP_SIZE: Final = 8 * 1024 * 1024  # body bytes of a commit group: few syncs, little memory
GROUP_COUNT: Final = 512
SEAL_SIZE: Final = 256 * 1024 * 1024
SEAL_COUNT: Final = SLOTS_METADATA // 8  # far below the fewest slots that a config may have


@dataclass(slots=True)
class GroupWriter:
    """Appends to one group in commit groups, with checkpoints in between."""

    group: Group
    op: Op = Op(0)
    tip: bytes = b""
    timestamp: int = 0  # the latest of any entry
    waiting: list[tuple[Entry, Offset | None]] = field(default_factory=list)
    waiting_size: int = 0
    unsealed_size: int = 0
    unsealed_count: int = 0

    def __post_init__(self) -> None:
        self.op, self.tip = self.group.journal.durable, self.group.journal.tip

    def put(self, proposal: EntryProposal, timestamp: int, start: Offset | None = None) -> None:
        """Buffer one entry. Its rows must get the offsets from `start` on."""
        entry = seal(
            self.group.journal.identity,
            proposal,
            op=Op(self.op + 1),
            parent=self.tip,
            view=View(0),
            timestamp=timestamp,
        )
        self.op, self.tip = entry.op, entry.checksum
        self.timestamp = max(self.timestamp, timestamp)
        self.waiting.append((entry, start))
        self.waiting_size += len(proposal.body)
        if self.waiting_size >= GROUP_SIZE or len(self.waiting) >= GROUP_COUNT:
            self.flush()

    def flush(self) -> None:
        """Make the buffered entries durable, apply them, and check each result."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        self.group.append([entry for entry, _ in waiting])
        for entry, start in waiting:
            result = self.group.apply(entry)
            assert not isinstance(result, Refusal | MetadataRefused), result
            if entry.header.operation == APPEND:
                assert isinstance(result, AppendResult)
                assert (result.start, result.repeated) == (start, False)
        self.unsealed_size += self.waiting_size
        self.unsealed_count += len(waiting)
        self.waiting_size = 0
        if self.unsealed_size >= SEAL_SIZE or self.unsealed_count >= SEAL_COUNT:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Seal, and complete the checkpoint."""
        self.unsealed_size = self.unsealed_count = 0
        body = operations.encode(operations.Seal(expire=False, format=SEGMENT_FORMAT))
        in_shard = self.group.journal.identity.group
        self.put(EntryProposal(SEAL, body if in_shard else b""), self.timestamp)
        self.flush()
        while self.group.checkpoints.run() is not None:
            pass

    def finish(self) -> None:
        """Leave a log that needs no replay at a start, whatever its slots setting."""
        self.flush()
        self.checkpoint()
        self.checkpoint()


@dataclass(slots=True)
class NewLog:
    """A log under construction: metadata and shards, open for writing."""

    root: FileDirectory
    cluster: ClusterIdentity
    machine: MetadataMachine
    metadata: GroupWriter
    stores: dict[GroupId, Store]
    shards: dict[GroupId, GroupWriter]

    @property
    def state(self) -> MetadataState:
        return self.machine.state

    def command(self, command: commands.Command, timestamp: int) -> None:
        """Change metadata, and apply the change at once."""
        self.metadata.put(EntryProposal(command.operation, commands.encode(command)), timestamp)
        self.metadata.flush()

    def shard_command(
        self,
        shard: GroupId,
        command: operations.Command,
        namespace: Namespace,
        created: int,
    ) -> None:
        """Change a partition or a topic in its shard."""
        writer = self.shards[shard]
        proposal = EntryProposal(
            command.operation, operations.encode(command), namespace=namespace, created=created
        )
        writer.put(proposal, writer.timestamp)

    def stop(self) -> None:
        """Stop cleanly."""
        for writer in (self.metadata, *self.shards.values()):
            writer.finish()
        for store in self.stores.values():
            store.stop()
        self.metadata.group.stop()
        self.root.close()

    def abandon(self) -> None:
        """Close everything as it is."""
        for store in self.stores.values():
            store.close()
        self.metadata.group.journal.close()
        self.root.close()


def make(path: str, like: ClusterIdentity, file_size: int) -> NewLog:
    """Create an empty log in `path`, an existing empty directory.

    It has the ID widths and the number of shards of another log, and an identity of its own, so
    that no file of one log is ever mistaken for a file of the other.
    """
    identity = GroupIdentity(
        secrets.token_bytes(16), METADATA, ReplicaId(0), 1, like.identity.namespace_bits
    )
    root = FileDirectory.open_root(path, create=False)
    cluster = read_or_make(root, ClusterIdentity(identity, like.shard_count), tell=_ignore)
    machine = MetadataMachine(NamespaceLayout(*identity.namespace_bits))
    options = RecoveryOptions(
        slots=SLOTS_METADATA,
        file_size=min(file_size, METADATA_FILE_SIZE),
        reader_min=LEVEL,
    )
    group, _ = recover(_room(root, METADATA), cluster.identity, MetadataGroup(machine), options)
    own = StoreOptions(group=RecoveryOptions(file_size=file_size, reader_min=LEVEL))
    stores = {
        number: open_store(_room(root, number), cluster.of(number), own)
        for number in cluster.shards
    }
    shards = {number: GroupWriter(store.group) for number, store in stores.items()}
    made = NewLog(root, cluster, machine, GroupWriter(group), stores, shards)
    made.command(commands.Level(LEVEL), now_us())
    return made


def _ignore(said: str) -> None:
    raise AssertionError(f"an empty directory has no identity: {said}")


def _room(root: Directory, group: GroupId) -> Directory:
    directory = root
    for name in (GROUPS, group_name(group)):
        made = directory.child(name, make=True)
        directory.sync()
        directory = made
    return directory
