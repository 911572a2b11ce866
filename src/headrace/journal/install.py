"""Put a snapshot that a peer sent in the place of everything below it.

What is on disk after a crash, step by step; before the first of them the superblock says
`syncing_to`, so that a replica that died here does not vote until it has caught up:

    snapshot   durable under its name       a newer one than the pair: the next start takes it
    pairing    the superblock names it      the same; the journal's entries below it are covered
    journal    goes on behind the snapshot  old files are garbage, retired now or at a drain
"""

from headrace.errors import DiskFull, ForeignFile, StorageFailed, UnsupportedFormat
from headrace.journal import mend
from headrace.journal.entry import CHECKSUM_SIZE, Entry, Flaw
from headrace.journal.file import size_for
from headrace.journal.group import Group
from headrace.journal.journal import Journal
from headrace.journal.snapshot import Snapshot, decode, snapshot_name
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op
from headrace.storage.atomic import atomic_replace
from headrace.storage.full import is_full
from headrace.storage.names import joined


def install(group: Group, entry: Entry, checksum: bytes, data: bytes) -> bool | Flaw:
    """Install the snapshot that stands at `entry`; tell whether the journal could be kept.

    A Flaw: the bytes are not that snapshot, and nothing relies on them. DiskFull: repeat.
    """
    snapshot = _stage(group, entry, checksum, data)
    if isinstance(snapshot, Flaw):
        return snapshot
    _pair(group, snapshot)
    group.checkpoints.pending.clear()
    group.machine.restore(snapshot.state)
    group.applied = snapshot.op
    kept = _goes_through(group, snapshot)
    if not kept:
        _begin_behind(group, snapshot)
    group.journal.commit = max(group.journal.commit, snapshot.op)
    group.checkpoints.finish()
    return kept


def _stage(group: Group, entry: Entry, checksum: bytes, data: bytes) -> Snapshot | Flaw:
    files, name = group.checkpoints.snapshots, snapshot_name(entry.op)
    # Before a byte is written: the file of that name may be the one that a start relies on.
    try:
        sent = decode(data, files.identity, joined(files.directory.path, name))
    except (ForeignFile, UnsupportedFormat) as error:  # a peer's bytes are not a file of ours
        return Flaw("snapshot from a peer", "one of this group and release", str(error))
    if isinstance(sent, Flaw):
        return sent
    if (sent.op, sent.checksum, sent.tip) != (entry.op, checksum, entry.checksum):
        return Flaw("snapshot", checksum, sent.checksum)
    try:
        atomic_replace(files.directory, name, [data])
    except StorageFailed as failed:
        if failed.stage in ("write", "rename") and is_full(failed.cause):
            raise DiskFull(failed.path, failed.stage) from failed
        files.poisoned = failed
        raise
    return sent


def _pair(group: Group, snapshot: Snapshot) -> None:
    """Name it as the only one: what this replica had before it is not older, it is behind."""
    current = group.superblock.current
    group.superblock.write(
        checkpoint=Checkpoint(snapshot.op, snapshot.tip, snapshot.checksum),
        previous_op=snapshot.op,
        commit=max(current.commit, snapshot.op),
    )


def _goes_through(group: Group, snapshot: Snapshot) -> bool:
    slot = group.journal.slot(snapshot.op)
    return slot is not None and slot.sealed[:CHECKSUM_SIZE] == snapshot.tip


def _begin_behind(group: Group, snapshot: Snapshot) -> None:
    """Go on in a new file; then the old ones are garbage, oldest first."""
    journal, first = group.journal, Op(snapshot.op + 1)
    journal.refuse_if_poisoned()
    if journal.durable > snapshot.op:
        _give_up_tail(group, first)
    try:
        if not _is_beginning(journal, first, snapshot.tip):
            size = size_for(0, journal.spares.file_size)
            file = journal.spares.enlist(
                journal.directory, journal.identity, first, snapshot.tip, size
            )
            journal.files.append(file)
        journal.ring.raise_watermark(snapshot.op)
        journal.far = {}
        while len(journal.files) > 1:
            journal.spares.retire(journal.directory, journal.files.pop(0))
    except OSError as error:
        raise journal.poison(journal.directory.path, "install", error) from error
    except StorageFailed as failed:
        raise journal.poison(failed.path, failed.stage, failed.cause) from failed
    journal.durable, journal.tip = snapshot.op, snapshot.tip
    journal.marked = min(journal.marked, snapshot.op)


def _give_up_tail(group: Group, first: Op) -> None:
    """What is above the snapshot and does not lead up to it is fetched again, as suspect."""
    known, last = group.superblock.current.suspect, group.journal.durable
    suspect = (first, last)
    if known is not None:
        suspect = (min(known[0], first), max(known[1], last))
    mend.cut(group.journal, group.superblock, first, suspect)


def _is_beginning(journal: Journal, first: Op, tip: bytes) -> bool:
    header = journal.newest.header
    return header.first_op == first and header.parent == tip
