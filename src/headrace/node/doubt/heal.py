"""Rebuilds group 0: creates a complete new directory, and puts it in place of the old one.

A start rebuilds it from its copy; if it is held, an operator's decision does: see `held.py`.

What is on disk after a crash, step by step; `.new` and `.old-<n>` are beside the group:

    made     files of `.new`, the superblock last   the old group as it was, judged as before;
                                                    `.new` is emptied and rebuilt
    aside    the old group is `.old-<n>`            a whole `.new`, and nothing under the name
                                                    of the group: the next start continues
    placed   `.new` has the group's name            a whole group

While the old group has its name, it is judged again, even beside a whole `.new`: a better one
may have been restored there meanwhile. Otherwise a start continues with `.new` before it
checks what is missing. Nothing of the old group is deleted. The copy is not changed until the
new group has been recovered.
"""

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import Corrupt, DiskFull, StorageFailed
from headrace.journal.entry import root
from headrace.journal.frame import entry_frame_size
from headrace.journal.journal import Journal
from headrace.journal.journal_file import size_for
from headrace.journal.machine_seam import MachineState
from headrace.journal.recovery.judge import judge
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.recovery.survey import Survey, survey
from headrace.journal.ring import Ring
from headrace.journal.snapshot import SnapshotFiles
from headrace.journal.spare import Spares
from headrace.journal.superblock import NAMES, Checkpoint, Superblock, SuperblockFile
from headrace.model.ids import Identity, Op
from headrace.node.doubt.metadata_copy import Base
from headrace.node.identity import METADATA, group_name
from headrace.storage.seam import Directory, is_full, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP: Final = group_name(METADATA)
NEW: Final = f"{GROUP}.new"
_OLD: Final = f"{GROUP}.old-"
_ROOMS: Final = ("journal", "snapshots", "quarantine")
_SPARE: Final = "spare"  # within the journal
_OLD_MAX: Final = 10_000  # heals of one log; bounds a loop, far above any real number


@dataclass(frozen=True, slots=True)
class Swapped:
    """A new group 0 is in place."""

    aside: str | None  # the path of the old directory; None: there was none


def is_old(name: str) -> bool:
    """Return whether a directory is a group that was set aside."""
    return name.startswith(_OLD)


def heal(
    groups: Directory, identity: Identity, options: RecoveryOptions, base: Base
) -> Swapped:
    """Rebuild group 0 at `base`, and put it in place of the old one.

    DiskFull: the old one is still in place; retry. StorageFailed: only the next start can
    tell.
    """
    with _failing(joined(groups.path, NEW)):
        if _is_stray(groups, NEW):  # unknown content: set it aside, do not delete it
            groups.rename(NEW, _free_old(groups))
            groups.sync()
        room = groups.child(NEW, make=True)
        groups.sync()
        _empty(room)
        _make(room, identity, options, base)
    return _swap(groups)


def resume(groups: Directory, identity: Identity, options: RecoveryOptions) -> Swapped | None:
    """Continue a heal that has set the old group aside; None if there is none."""
    with _failing(joined(groups.path, NEW)):
        if _is_taken(groups, GROUP) or _is_stray(groups, NEW):
            return None
        room = _child(groups, NEW)
        if room is None or not _is_whole(room, identity, options.slots):
            return None
    return _swap(groups)


def discard(groups: Directory) -> None:
    """Empty a new group that was not put in place, if there is one."""
    room = _child(groups, NEW)
    if room is not None:
        _empty(room)


def look(room: Directory, identity: Identity, options: RecoveryOptions) -> Survey:
    """Survey a group's directory. The caller closes the files: see `closed`.

    Missing subdirectories are created, as in every start, so that they can be listed.
    """
    journal, snapshots = (room.child(name, make=True) for name in _ROOMS[:2])
    return survey(room, journal, SnapshotFiles(snapshots, identity), options.head)


@contextmanager
def closed(found: Survey) -> "Iterator[Survey]":
    """Close the files of a survey at the end."""
    try:
        yield found
    finally:
        for one in found.scan.files:
            with suppress(OSError):
                one.candidate.storage.close()


def _is_whole(room: Directory, identity: Identity, slots: int) -> bool:
    """Return whether a recovery accepts it, and the superblocks, written last, exist."""
    try:
        with closed(look(room, identity, RecoveryOptions())) as found:
            judge(found, identity, slots, room.path)
            return found.superblock is not None and not any(found.copies.flaws)
    except Corrupt:
        return False


def _empty(room: Directory) -> None:
    """Remove the leftovers of an earlier attempt, first what could pass for a whole group."""
    for name in NAMES:
        with suppress(FileNotFoundError):
            room.unlink(name)
    room.sync()
    rooms = [room]
    rooms += [found for name in _ROOMS if (found := _child(room, name)) is not None]
    spare = None if (journal := _child(room, "journal")) is None else _child(journal, _SPARE)
    for each in rooms if spare is None else [*rooms, spare]:
        for name in each.names():
            each.unlink(name)
        each.sync()


def _make(room: Directory, identity: Identity, options: RecoveryOptions, base: Base) -> None:
    """Create a whole group: a journal file, the snapshot, and last the superblock."""
    journal, snapshots, _ = (room.child(name, make=True) for name in _ROOMS)
    spares = Spares(
        journal.child(_SPARE, make=True),
        size_for(0, options.first_size),
        size_for(0, options.file_size),
        options.spare_count_max,
        options.new_id,
        reader_min=options.reader_min,
    )
    for made in (journal, room):
        made.sync()
    _make_journal(journal, spares, identity, options.slots, base)
    superblock = SuperblockFile(room, Superblock(identity, reader_min=options.reader_min))
    if base.op == 0:
        superblock.write()
        return
    kept = SnapshotFiles(snapshots, identity).persist(
        base.op, base.tip, MachineState(base.image)
    )
    superblock.write(
        checkpoint=Checkpoint(base.op, base.tip, kept.checksum),
        previous_op=base.op,
        commit=base.op,
    )


def _make_journal(
    directory: Directory, spares: Spares, identity: Identity, slots: int, base: Base
) -> None:
    """Create one journal file, beginning with the entry of the snapshot, if known."""
    entry = base.entry
    before, parent = (base.op, base.tip) if entry is None else (base.op - 1, entry.parent)
    assert base.op > 0 or parent == root(identity)
    needed = size_for(0 if entry is None else entry_frame_size(len(entry.body)), 0)
    first = spares.enlist(directory, identity, Op(before + 1), parent, needed)
    ring = Ring(slots, Op(before))
    journal = Journal(
        identity, directory, spares, ring, [first], Op(before), parent, marked=Op(before)
    )
    try:
        if entry is not None:
            journal.append([entry])
            journal.commit = journal.durable
            journal.mark()
    finally:
        journal.close()


def _swap(groups: Directory) -> Swapped:
    """Put `.new`, which is whole and durable, in place of the old group, if there is one."""
    with _failing(joined(groups.path, GROUP)):
        aside = None
        if _child(groups, GROUP) is not None:
            aside = _free_old(groups)
            groups.rename(GROUP, aside)
            groups.sync()
        groups.rename(NEW, GROUP)
        groups.sync()
        return Swapped(None if aside is None else joined(groups.path, aside))


def _free_old(groups: Directory) -> str:
    """Return the first free name for a group that is set aside."""
    names = (f"{_OLD}{number}" for number in range(1, _OLD_MAX))
    return next(name for name in names if not _is_taken(groups, name))


def _is_taken(groups: Directory, name: str) -> bool:
    return _is_stray(groups, name) or _child(groups, name) is not None


def _is_stray(groups: Directory, name: str) -> bool:
    """Return whether a name is a file or a link, where only a directory is expected."""
    return name in groups.names()


def _child(directory: Directory, name: str) -> Directory | None:
    try:
        return directory.child(name)
    except FileNotFoundError:
        return None


@contextmanager
def _failing(path: str) -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(path, "heal") from error
        raise StorageFailed(path, "heal", error) from error
