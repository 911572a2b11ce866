"""The only in-place writes of a journal: healing, rewriting, repairing, cutting.

Everything here writes either bytes that are already there, or bytes that the chain proves, or
zeros over ops that a durable intent has given up; after a crash at any point a scan understands
the result.
"""

import errno
import os

from headrace.errors import DiskFull, NotNext, StorageFailed
from headrace.journal.entry import CHECKSUM_SIZE, Entry, size_of
from headrace.journal.frame import (
    PREFIX_SIZE,
    FrameKind,
    Prefix,
    aligned,
    encode_prefix,
    entry_frame_size,
)
from headrace.journal.journal import Journal
from headrace.journal.journal_file import BLOCK_SIZE, FIRST_POSITION, JournalFile, encode_block
from headrace.journal.recovery.scan_findings import Faulty
from headrace.journal.ring import Slot
from headrace.journal.superblock import SuperblockFile
from headrace.model.ids import Op


def cut(
    journal: Journal,
    superblock: SuperblockFile,
    first: Op,
    suspect: tuple[Op, Op] | None = None,
) -> None:
    """Remove every op from `first` on, and continue with the op below it."""
    if has_unknown_edge(journal, first):
        raise NotNext("the op below a cut", "intact", f"op {first - 1}, which is faulty")
    discard(journal, superblock, first, suspect)


def discard(
    journal: Journal,
    superblock: SuperblockFile,
    first: Op,
    suspect: tuple[Op, Op] | None = None,
) -> None:
    """Remove every op from `first` on: intent → zeros and unlinks → intent cleared.

    A crash before the intent leaves everything; after it, the next scan finishes the cut. If
    the superblock cannot be written, one copy may still hold the intent: the journal is
    poisoned, because an entry appended now would be cut at the next start.
    """
    journal.refuse_if_poisoned()
    _write_intent(journal, superblock, cut_from=first, suspect=suspect)
    _erase(journal, first)
    _write_intent(journal, superblock, cut_from=None)


def has_unknown_edge(journal: Journal, first: Op) -> bool:
    """Whether the start of the frame of `first`, or the head after the cut, is unknown."""
    is_held = first <= journal.durable and journal.ring.get(Op(first - 1)) is None
    return is_held and not any(file.header.first_op == first for file in journal.files)


def _write_intent(journal: Journal, superblock: SuperblockFile, **changes: object) -> None:
    try:
        superblock.write(**changes)
    except DiskFull as full:
        cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), full.path)
        raise journal.poison(full.path, "cut", cause) from full
    except StorageFailed as failed:
        raise journal.poison(failed.path, "cut", failed.cause) from failed


def _erase(journal: Journal, first: Op) -> None:
    journal.refuse_if_poisoned()
    while journal.files and journal.newest.header.first_op > first:
        _unlink_newest(journal)
    if not journal.files:
        return  # only a cluster cuts below its oldest file; recovery begins a new one
    file, before = journal.newest, journal.ring.get(Op(first - 1))
    journal.open_to_write(file)
    position = _start_of(journal, file, first)
    # First out of the ring, then off the disk: no reader may find zeros instead of an entry.
    journal.ring.forget_from(first)
    journal.zero(file, position, file.header.size, "cut")
    file.end = position
    if first <= journal.durable:
        journal.tip = file.header.parent if before is None else before.sealed[:CHECKSUM_SIZE]
        journal.durable = Op(first - 1)
    # A mark after the last remaining entry is gone as well: the next one must be written.
    journal.marked = min(journal.marked, Op(max(first - 2, 0)))


def _start_of(journal: Journal, file: JournalFile, first: Op) -> int:
    """Where the frame of `first` begins or would begin: right after the previous entry."""
    slot, before = journal.ring.get(first), journal.ring.get(Op(first - 1))
    if slot is not None:
        return slot.position
    if before is not None and before.file is file:
        return before.position + aligned(PREFIX_SIZE + size_of(before.sealed))
    return FIRST_POSITION if file.header.first_op == first else file.end


def _unlink_newest(journal: Journal) -> None:
    file = journal.files.pop()
    if file.retire():
        file.storage.close()
    try:
        journal.directory.unlink(file.name)
        journal.directory.sync()
    except OSError as error:
        raise journal.poison(file.path, "cut", error) from error


def rewrite(journal: Journal, above: Op) -> int:
    """Rewrite every frame above `above` in place, sync, and return their number.

    A scan may have read pages that a failed sync left clean in the cache; after this they are
    on disk.
    """
    slots = list(journal.ring.between(Op(above + 1), journal.durable))
    files = list({id(slot.file): slot.file for slot in slots}.values())
    for file in files:
        journal.open_to_write(file)
    for slot in slots:
        try:
            data = slot.file.storage.read(slot.position, PREFIX_SIZE + size_of(slot.sealed))
            slot.file.storage.write(slot.position, [data])
        except OSError as error:
            raise journal.poison(slot.file.path, "rewrite", error) from error
    for file in files:
        journal.sync(file, "rewrite")
    return len(slots)


def heal_header(journal: Journal, file: JournalFile, block: int) -> None:
    """Rewrite a bad header block from the good one."""
    _write(journal, file, block * BLOCK_SIZE, encode_block(file.header), "header")


def heal_end(journal: Journal, index: int) -> None:
    """Write the end frame of a file that has a successor."""
    file, following = journal.files[index], journal.files[index + 1]
    last = Op(following.header.first_op - 1)
    prefix = Prefix(
        FrameKind.END,
        PREFIX_SIZE,
        file.header.file_id,
        last,
        min(journal.commit, last),
        last,
        following.header.parent,
    )
    _write(journal, file, file.end, encode_prefix(prefix, file.end), "end")
    file.end += PREFIX_SIZE


def heal_size(journal: Journal, file: JournalFile, found: int) -> None:
    """Restore the empty part of a shortened file. Only when nothing can have been in it."""
    journal.open_to_write(file)
    journal.zero(file, found, file.header.size, "heal")


def repair(journal: Journal, faulty: Faulty, entry: Entry) -> None:
    """Write an entry from a peer over the faulty frame that it was fetched for."""
    if entry.op != faulty.op:
        raise NotNext("op", faulty.op, entry.op)
    if faulty.position is None or faulty.checksum is None:
        # The length of the frame is unknown: a longer one would run into the next.
        raise NotNext("checksum of the faulty op", "known", "unknown")
    if entry.checksum != faulty.checksum:
        raise NotNext("checksum", faulty.checksum.hex(), entry.checksum.hex())
    file = next(file for file in journal.files if file.path == faulty.path)
    size = entry_frame_size(len(entry.body))
    prefix = Prefix(
        FrameKind.ENTRY,
        size,
        file.header.file_id,
        Op(entry.op - 1),
        min(journal.commit, Op(entry.op - 1)),
        entry.op,
        entry.checksum,
    )
    data = b"".join((encode_prefix(prefix, faulty.position), entry.sealed, entry.body))
    _write(journal, file, faulty.position, data, "repair")
    journal.ring.put(Slot(entry.op, file, faulty.position, entry.sealed))


def _write(journal: Journal, file: JournalFile, position: int, data: bytes, stage: str) -> None:
    journal.refuse_if_poisoned()
    journal.open_to_write(file)
    try:
        file.storage.write(position, [data])
    except OSError as error:
        raise journal.poison(file.path, stage, error) from error
    journal.sync(file, stage)
