"""One shard on disk, opened: its group, its machine, its files and its reader."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.journal.group import Group
from headrace.journal.recovery.recover import RecoveryOptions, recover, room
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import Identity
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.files.file_set import FileFinding, ShardFiles
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.segment_cut import SEGMENT_SIZES, SegmentSizes
from headrace.partition.reader import Reader
from headrace.partition.segments.sealer import Children, Sealer
from headrace.storage.seam import Directory

SEGMENTS = "segments"
CARRY = "carry"
QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a shard. `sizes` are cluster constants; the rest is local."""

    group: RecoveryOptions = field(default_factory=RecoveryOptions)
    sizes: SegmentSizes = SEGMENT_SIZES
    sealer: Callable[[], Sealer] = Children
    new_id: Callable[[], int] = field(default=lambda: secrets.randbits(64))


@dataclass(slots=True)
class Store:
    """An open shard. Its owner appends and applies through `group`; any thread may read."""

    group: Group
    machine: PartitionsMachine
    keeper: CheckpointFiles
    reader: Reader
    report: RecoveryReport

    @property
    def findings(self) -> list[FileFinding]:
        """Files with problems, and segments that could not be written."""
        files = self.keeper.files
        return [*files.findings, *self.stuck, *self.keeper.unsealed()]

    @property
    def stuck(self) -> list[FileFinding]:
        """Files that should be gone but cannot be moved or removed."""
        every = (*self.group.stuck, self.keeper.files.stuck)
        return [
            FileFinding(path, what, rows_missing=False)
            for stuck in every
            for path, what in stuck.findings()
        ]

    def stop(self) -> None:
        """Stop cleanly."""
        self.group.stop()
        self.close()

    def close(self) -> None:
        """Release children and descriptors. Nothing is written."""
        self.keeper.sealer.close()
        self.keeper.files.close()
        self.group.journal.close()


def open_store(
    directory: Directory, identity: Identity, options: StoreOptions | None = None
) -> Store:
    """Recover the shard in `directory`, or create it. The caller holds the lock."""
    options = options or StoreOptions()
    machine = PartitionsMachine(identity.namespace_bits[2], options.sizes)
    segments, carries, quarantine = (
        room(directory, name, options.group, "shard") for name in (SEGMENTS, CARRY, QUARANTINE)
    )
    files = ShardFiles(identity, segments, carries, quarantine)
    keeper = CheckpointFiles(machine, identity, files, options.sealer(), options.new_id)
    try:
        group, report = recover(
            directory, identity, machine, replace(options.group, keeper=keeper)
        )
    except BaseException:
        keeper.sealer.close()
        raise
    reader = Reader(machine, group.journal, keeper)
    return Store(group, machine, keeper, reader, report)
