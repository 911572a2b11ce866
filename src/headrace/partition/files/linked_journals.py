"""Journal files that are mostly live get a second name, so that nothing in them is copied.

State of the disk after a crash, step by step:

    linked   `carry/<file id>.wal`, a second name     there or not; nothing relies on it, but a
                                                      start counts it as kept
    carried  its carry file is durable, and with its  an unnamed carry file and a kept file,
             directory the second name                both collected later
    named    the snapshot names the carry file        both names, or the second alone
    drained  the first name is removed                the second alone

A file is linked only when it is full: it no longer changes. From the link on no drain gives it
another life, whichever names it has left: drains check `kept`. Its second name is removed when
no carry file of a kept snapshot needs it:

    moved    into `journal/spare/`, if it has no      an unneeded kept file, a spare, or both:
             other name and is wanted there           the two directories are synced before
                                                      anything is written to it
    unlinked otherwise                                there or not; collected later

A concurrent reader finds different bytes, or none after an unlink, and retries.
"""

from collections.abc import Sequence
from typing import Final

from headrace.journal.frame import PREFIX_SIZE, aligned
from headrace.journal.journal import Journal
from headrace.journal.journal_file import FIRST_POSITION, JournalFile
from headrace.journal.ring import Slot
from headrace.model.ids import Op
from headrace.partition.files.carry import CarryFile
from headrace.partition.files.carry_table import CarrySource, Item, LinkedJournal, kept_name
from headrace.partition.files.file_set import ShardFiles

LIVE_SHARE: Final = 2  # keep a file if at least 1/2 is live: dead entries take space
# With fewer live entries than this share, they are worth copying. With more, most come due at
# the next Seals anyway, and would be copied shortly before.
SPARSE_SHARE: Final = 64


def keep(
    items: Sequence[Item], seal_op: Op, journal: Journal, files: ShardFiles
) -> tuple[list[Item | LinkedJournal], list[CarrySource]]:
    """Link the journal files with most of these entries; return those that need no copy."""
    slots = {item.op: journal.slot(item.op) for item in items}
    live: dict[int, int] = {}  # bytes of frames, by file id
    for item in items:
        slot = slots[item.op]
        if slot is not None:
            file_id = slot.file.header.file_id
            live[file_id] = live.get(file_id, 0) + aligned(PREFIX_SIZE + item.size)
    numbers: dict[int, int] = {}  # of sources, by file id
    sources: list[CarrySource] = []
    for file in journal.files[:-1]:  # the last one is still appended to
        header = file.header
        is_live = live.get(header.file_id, 0) * LIVE_SHARE >= header.size - FIRST_POSITION
        if header.first_op < journal.fresh_from:
            continue  # its dead entries should be dropped
        if is_live and _link(file, seal_op, journal, files):
            sources.append(CarrySource(header.file_id, header.size, header.first_op))
            numbers[header.file_id] = len(sources)
    return [_placed(item, slots[item.op], numbers) for item in items], sources


def is_sparse(carry: CarryFile, live_count: int) -> bool:
    """Whether too few of its entries are live to keep its files."""
    return bool(carry.sources) and live_count * SPARSE_SHARE < len(carry.ops)


def is_same(slot: Slot, carry: CarryFile | None) -> bool:
    """Whether an entry of the journal is the one in a kept file, not a copy of it."""
    if carry is None:
        return False
    source = carry.source_of(carry.row(slot.op))
    return source is not None and source.file_id == slot.file.header.file_id


def _placed(item: Item, slot: Slot | None, numbers: dict[int, int]) -> Item | LinkedJournal:
    number = 0 if slot is None else numbers.get(slot.file.header.file_id, 0)
    if slot is None or not number:
        return item
    return LinkedJournal(item, number, slot.position + PREFIX_SIZE)


def _link(file: JournalFile, seal_op: Op, journal: Journal, files: ShardFiles) -> bool:
    """Give a file its second name. If that fails, its entries are copied."""
    file_id = file.header.file_id
    known = files.kept.get(file_id)
    files.kept[file_id] = seal_op  # before it has the name: no drain may miss it
    try:
        journal.directory.link(file.name, kept_name(file_id), files.carries)
    except FileExistsError:
        if known:  # of an attempt in this process that led to no snapshot
            return True
        files.kept[file_id] = Op(0)  # of another process, or of unknown origin
        return False
    except OSError:
        if known is None:
            del files.kept[file_id]
        else:
            files.kept[file_id] = known
        return False
    return True
