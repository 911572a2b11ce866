"""Planted bugs around the copy of metadata: each must be caught by `lives/copy_life.py`."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.journal.entry import Entry
from headrace.journal.group import Group
from headrace.journal.heads import Head
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op
from headrace.node.doubt import heal, metadata_start, verdict
from headrace.node.doubt.copy_writer import CopyFile
from headrace.node.doubt.metadata_copy import Base
from headrace.node.doubt.metadata_start import MetadataStart
from headrace.node.doubt.verdict import CopyState, Remains, Shards, Verdict
from headrace.storage.seam import Directory, Storage
from headrace_lab.harness.mutants import Mutant

_sync = CopyFile._sync
_settle = MetadataStart.settle
_judge = verdict.judge
_swap = heal._swap


def _unsynced(self: CopyFile, storage: Storage, stage: str) -> None:
    if stage != "sync":
        _sync(self, storage, stage)


def _beside_apply(self: Group, checkpoint: Checkpoint) -> None:
    captured = replace(self.checkpoints.pending[0], state=self.machine.snapshot())
    self.checkpoints.pair(checkpoint)
    assert self.copy is not None
    self.copy.renew(captured, self.journal)


def _replaced_in_doubt(self: MetadataStart, shards: Shards) -> tuple[Group, RecoveryReport]:
    try:
        return _settle(self, shards)
    except HeadraceError:
        left = self.remains.left
        if left is not None:
            file = CopyFile(self.directory, self.identity.cluster, {})
            file.start(Base(left.op, left.tip, self.machine.snapshot(), None))
        raise


def _any_shard(
    head: Head | None, state: CopyState | None, remains: Remains, shards: Shards
) -> Verdict:
    return _judge(head, state, remains, {})


def _any_history(
    head: Head | None, state: CopyState | None, remains: Remains, shards: Shards
) -> Verdict:
    return _judge(None, state, replace(remains, found=()), shards)


def _only_its_end(self: Group, entries: Sequence[Entry]) -> Op:
    """The last of a commit group alone is in the copy."""
    assert self.copy is not None
    self.copy.make_room(entries)
    durable = self.journal.append(entries)
    self.journal.commit = durable
    self.copy.append(entries[-1:])
    return durable


def _deleted(groups: Directory) -> heal.Swapped:
    room = heal._child(groups, heal.GROUP)
    if room is not None:
        heal._empty(room)
    return _swap(groups)


def _any_head(
    head: Head | None, state: CopyState | None, remains: Remains, shards: Shards
) -> Verdict:
    return _judge(None, state, remains, shards)


MUTANTS = (
    Mutant("acknowledged before the copy's sync", "copy", ((CopyFile, "_sync", _unsynced),)),
    Mutant("image encoded beside apply", "copy", ((Group, "pair", _beside_apply),)),
    Mutant("a part of a commit group copied", "copy", ((Group, "append", _only_its_end),)),
    Mutant("copy replaced in doubt", "copy", ((MetadataStart, "settle", _replaced_in_doubt),)),
    Mutant(
        "healed from a copy that does not continue group 0",
        "copy",
        ((metadata_start, "judge", _any_history),),
    ),
    Mutant(
        "healed from a copy that a shard is ahead of",
        "copy",
        ((metadata_start, "judge", _any_shard),),
    ),
    Mutant("old group 0 deleted", "copy", ((heal, "_swap", _deleted),)),
    Mutant(
        "healed from a copy short of the head", "copy", ((metadata_start, "judge", _any_head),)
    ),
)
