"""Replace everything below a snapshot with the snapshot, which a peer sent.

State of the disk after a crash, step by step; before the first step the superblock records
`syncing_to`, so that a replica that died here does not vote until it has caught up:

    cut        a tail that does not match   by intent, as suspect: the old state is shorter
    journal    a file with the entry at it  the old state; the ops between are missing
    snapshot   durable under its name       a newer one than the pair: the next start uses it
    pairing    the superblock names it      the same; the journal's entries below it are covered
    drain      old files are garbage        retired now or at the next start

A tail that does not lead up to the snapshot is removed before the snapshot has its name: no
start finds both. Only the snapshot moves: the files of a shard's state are not sent yet.
"""

from headrace.errors import DiskFull, ForeignFile, StorageFailed, UnsupportedFormat
from headrace.journal.entry import CHECKSUM_SIZE, Entry, Flaw
from headrace.journal.frame import entry_frame_size
from headrace.journal.group import Group
from headrace.journal.journal import Journal
from headrace.journal.recovery import mend
from headrace.journal.snapshot import Snapshot, decode, snapshot_name
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import Op
from headrace.storage.atomic import atomic_replace
from headrace.storage.seam import is_full, joined


def install(group: Group, entry: Entry, checksum: bytes, data: bytes) -> bool | Flaw:
    """Install the snapshot at `entry`; return whether the journal could be kept.

    A Flaw: the bytes are not that snapshot, or it is not newer, and nothing relies on them.
    DiskFull: repeat.
    """
    snapshot = _judged(group, entry, checksum, data)
    if isinstance(snapshot, Flaw):
        return snapshot
    journal = group.journal
    kept = _goes_through(journal, entry)
    if not kept:
        _begin_with(group, entry)
    _persist(group, snapshot.op, data)
    _pair(group, snapshot)
    group.checkpoints.pending.clear()
    group.machine.restore(snapshot.state)
    group.applied = snapshot.op
    journal.commit = max(journal.commit, snapshot.op)
    group.checkpoints.finish()
    return kept


def _judged(group: Group, entry: Entry, checksum: bytes, data: bytes) -> Snapshot | Flaw:
    """Check the received bytes before writing any: a start may rely on a file of that name."""
    known = max(group.applied, group.superblock.current.checkpoint.op)
    if entry.op <= known:
        return Flaw("op of the snapshot", f"above {known}, which was applied here", entry.op)
    files = group.checkpoints.snapshots
    try:
        path = joined(files.directory.path, snapshot_name(entry.op))
        sent = decode(data, files.identity, path)
    except (ForeignFile, UnsupportedFormat) as error:  # a peer's bytes, not a local file
        return Flaw("snapshot from a peer", "one of this group and release", str(error))
    if isinstance(sent, Flaw):
        return sent
    if (sent.op, sent.checksum, sent.tip) != (entry.op, checksum, entry.checksum):
        return Flaw("snapshot", checksum, sent.checksum)
    return sent


def _goes_through(journal: Journal, entry: Entry) -> bool:
    """Whether the journal leads up to the entry, and does not just begin with it."""
    slot = journal.slot(entry.op)
    if slot is None or slot.sealed[:CHECKSUM_SIZE] != entry.checksum:
        return False
    return journal.durable > entry.op or journal.ring.watermark < entry.op - 1


def _begin_with(group: Group, entry: Entry) -> None:
    """Continue in a new file that begins with the entry. The old files stay for now."""
    journal = group.journal
    journal.refuse_if_poisoned()
    if journal.slot(entry.op) is not None and _is_beginning(journal, entry):
        return  # done before, and then the disk was full
    if journal.durable >= entry.op:
        _give_up_tail(group, entry.op)
    if not _is_beginning(journal, entry):
        size = entry_frame_size(len(entry.body))
        journal.begin_file(entry.op, entry.parent, size, "install")
    journal.ring.raise_watermark(Op(entry.op - 1))
    journal.far = {}
    journal.durable, journal.tip = Op(entry.op - 1), entry.parent
    journal.marked = min(journal.marked, journal.durable)
    journal.append([entry])


def _give_up_tail(group: Group, first: Op) -> None:
    """Cut the ops that do not lead up to the snapshot, as suspect; they are fetched again.

    So are faulty ops right below it: only an intact entry shows where the next one begins.
    """
    known, last = group.superblock.current.suspect, group.journal.durable
    while (
        mend.has_unknown_edge(group.journal, first) and first - 1 > group.journal.ring.watermark
    ):
        first = Op(first - 1)
    suspect = (first, last)
    if known is not None:
        suspect = (min(known[0], first), max(known[1], last))
    mend.discard(group.journal, group.superblock, first, suspect)


def _is_beginning(journal: Journal, entry: Entry) -> bool:
    header = journal.newest.header
    return header.first_op == entry.op and header.parent == entry.parent


def _persist(group: Group, op: Op, data: bytes) -> None:
    files = group.checkpoints.snapshots
    try:
        atomic_replace(files.directory, snapshot_name(op), [data])
    except StorageFailed as failed:
        if failed.stage in ("write", "rename") and is_full(failed.cause):
            raise DiskFull(failed.path, failed.stage) from failed
        files.poisoned = failed
        raise


def _pair(group: Group, snapshot: Snapshot) -> None:
    """Name it as the only checkpoint: an earlier state of this replica is of no use."""
    current = group.superblock.current
    assert snapshot.op > current.checkpoint.op
    group.superblock.write(
        checkpoint=Checkpoint(snapshot.op, snapshot.tip, snapshot.checksum),
        previous_op=snapshot.op,
        commit=max(current.commit, snapshot.op),
    )
