"""Read everything a group has on disk, without changes: the first half of a recovery."""

from contextlib import suppress
from dataclasses import dataclass

from headrace.journal.entry import Flaw
from headrace.journal.frame import PREFIX_SIZE, Prefix, decode_prefix
from headrace.journal.heads import Head
from headrace.journal.journal_file import (
    BLOCK_COUNT,
    BLOCK_SIZE,
    FIRST_POSITION,
    FileHeader,
    check_identity,
    decode_block,
    first_op_of,
)
from headrace.journal.recovery.scan import scan
from headrace.journal.recovery.scan_findings import Candidate, Evidence, Scan
from headrace.journal.snapshot import Snapshot, SnapshotFiles, snapshot_name
from headrace.journal.superblock import Copies, Superblock, read_copies
from headrace.model.ids import Identity, Op
from headrace.storage.seam import Directory, Storage


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file under a live name without a readable header, or with that of another file."""

    path: str
    name: str
    first: Op
    last: Op | None  # None if no file follows it
    flaw: Flaw


@dataclass(frozen=True, slots=True)
class BadSnapshot:
    """An unusable snapshot file."""

    path: str
    name: str
    op: Op
    flaw: Flaw


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything found."""

    copies: Copies
    snapshots: list[Snapshot]  # intact ones, newest first
    bad_snapshots: list[BadSnapshot]
    unreadable: list[Unreadable]
    scan: Scan
    head: Head | None = None  # the head of this group in `heads`; None: not recorded

    @property
    def superblock(self) -> Superblock | None:
        return self.copies.best

    @property
    def is_empty(self) -> bool:
        """Nothing was ever finished here: no superblock, no journal, no snapshot."""
        files = self.scan.files or self.unreadable or self.snapshots or self.bad_snapshots
        return self.copies.are_missing and not files

    @property
    def is_clean(self) -> bool:
        """The last stop was clean, and the journal still ends at the same op."""
        head = self.superblock.clean_head if self.superblock else None
        lost = any(one.op == head for one in self.scan.faulty)
        return head is not None and head == self.scan.head and not lost


def survey(
    directory: Directory,
    journal: Directory,
    snapshots: SnapshotFiles,
    head: Head | None = None,
) -> Survey:
    """Read all files of a group. Raises only on foreign files and newer formats."""
    identity = snapshots.identity
    copies = read_copies(directory, identity)
    good, bad = _snapshots(snapshots)
    candidates, unreadable = _candidates(journal, identity)
    evidence = _evidence(copies.best, good, head)
    if evidence.clean_head is None:
        _drop_caches(candidates)
    found = scan(candidates, identity, evidence)
    return Survey(copies, good, bad, unreadable, found, head)


def _evidence(
    superblock: Superblock | None, snapshots: list[Snapshot], head: Head | None
) -> Evidence:
    known = [Op(0) if head is None else head.op, *(snapshot.op for snapshot in snapshots)]
    if superblock is None:
        return Evidence(durable=max(known))
    known += [superblock.commit, superblock.checkpoint.op, superblock.clean_head or Op(0)]
    return Evidence(max(known), superblock.clean_head, superblock.cut_from)


def _snapshots(files: SnapshotFiles) -> tuple[list[Snapshot], list[BadSnapshot]]:
    good: list[Snapshot] = []
    bad: list[BadSnapshot] = []
    for op in files.ops():
        found = files.load(op)
        if isinstance(found, Snapshot):
            good.append(found)
        else:
            name = snapshot_name(op)
            bad.append(BadSnapshot(f"{files.directory.path}/{name}", name, op, found))
    return good, bad


def _candidates(
    journal: Directory, identity: Identity
) -> tuple[list[Candidate], list[Unreadable]]:
    candidates: list[Candidate] = []
    unreadable: list[Unreadable] = []
    named = [(name, first_op_of(name)) for name in journal.names()]
    live = [(name, op) for name, op in named if op is not None]
    for index, (name, first_op) in enumerate(live):
        found = _open(journal, name, first_op, identity)
        if isinstance(found, Candidate):
            candidates.append(found)
            continue
        last = Op(live[index + 1][1] - 1) if index + 1 < len(live) else None
        unreadable.append(Unreadable(f"{journal.path}/{name}", name, first_op, last, found))
    return candidates, unreadable


def _open(journal: Directory, name: str, first_op: Op, identity: Identity) -> Candidate | Flaw:
    try:
        storage = journal.open(name)
    except PermissionError:
        raise  # says nothing about its bytes: they may be intact
    except OSError as error:
        return Flaw("cannot be opened", "a file", error.strerror or str(error))
    found = _candidate(storage, first_op, identity)
    if isinstance(found, Flaw):
        storage.close()
    return found


def _candidate(storage: Storage, first_op: Op, identity: Identity) -> Candidate | Flaw:
    headers = [_block(storage, block) for block in range(BLOCK_COUNT)]
    good = [header for header in headers if not isinstance(header, Flaw)]
    if not good:
        flaw = headers[0]
        assert isinstance(flaw, Flaw)
        return flaw
    for header in good:
        check_identity(header, identity, storage.path)
    if good[0] != good[-1]:
        return Flaw("header blocks", good[0].first_op, good[-1].first_op)
    if good[0].first_op != first_op:
        return Flaw("first op in the header", first_op, good[0].first_op)
    bad = tuple(index for index, header in enumerate(headers) if isinstance(header, Flaw))
    return Candidate(storage, good[0], bad)


def _block(storage: Storage, block: int) -> FileHeader | Flaw:
    try:
        return decode_block(storage.read(block * BLOCK_SIZE, BLOCK_SIZE), storage.path)
    except OSError as error:
        return Flaw("header block is unreadable", "bytes", error.strerror or str(error))


def _drop_caches(candidates: list[Candidate]) -> None:
    """Drop cached pages of the newest file, and of earlier ones back to one with a frame."""
    for candidate in reversed(candidates):
        with suppress(OSError):  # a hint to the kernel; the scan checks what it reads
            candidate.storage.drop_cache()
        if _has_frame(candidate):
            return


def _has_frame(candidate: Candidate) -> bool:
    try:
        data = candidate.storage.read(FIRST_POSITION, PREFIX_SIZE)
    except OSError:
        return False
    return isinstance(decode_prefix(data, candidate.header.file_id, FIRST_POSITION), Prefix)
