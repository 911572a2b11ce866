"""Reads adjacent entries of a journal file at once.

A checkpoint carries thousands of entries, and the journal has them in the order in which they
are carried: one read of many costs a fraction of a read of each. Only the frames are checked
here; the caller compares each entry with its checksums.
"""

from collections.abc import Iterator, Sequence

from headrace.journal.entry import HEADER_SIZE, Flaw
from headrace.journal.frame import PREFIX_SIZE, aligned, decode_prefix
from headrace.journal.journal import Journal
from headrace.journal.ring import Slot
from headrace.partition.files.carry_table import Item
from headrace.storage.seam import Buffer

_Side = tuple[Slot, int]  # a slot, and the size of its frame without padding


def glance(journal: Journal, items: Sequence[Item]) -> list[Buffer | None]:
    """Return header and body of each item, in rising order of ops, or None.

    None means that a careful read is needed, which names the problem: the entry is not in the
    journal, cannot be read, or is not in the frame that the ring knows.
    """
    journal.refuse_if_poisoned()
    found: list[Buffer | None] = []
    for stretch in _stretches(journal, items):
        found += _looked_at(stretch) if stretch else [None]
    return found


def _stretches(journal: Journal, items: Sequence[Item]) -> Iterator[list[_Side]]:
    """Split the items into adjacent ones; one that is not here gives an empty part."""
    stretch: list[_Side] = []
    file, end = None, 0  # where the next adjacent frame would be
    for item in items:
        slot = journal.slot(item.op)
        if stretch and (slot is None or slot.file is not file or slot.position != end):
            yield stretch
            stretch = []
        if slot is None:
            yield []
            continue
        size = PREFIX_SIZE + item.size
        stretch.append((slot, size))
        file, end = slot.file, slot.position + aligned(size)
    if stretch:
        yield stretch


def _looked_at(stretch: Sequence[_Side]) -> list[Buffer | None]:
    (first, _), (last, last_size) = stretch[0], stretch[-1]
    nothing: list[Buffer | None] = [None] * len(stretch)
    with first.file.hold() as held:
        if not held:
            return nothing
        try:
            size = last.position + last_size - first.position
            data = memoryview(first.file.storage.read(first.position, size))
        except OSError:
            return nothing
    return [
        _entry(slot, size, data[slot.position - first.position :]) for slot, size in stretch
    ]


def _entry(slot: Slot, size: int, data: memoryview) -> Buffer | None:
    prefix = decode_prefix(data, slot.file.header.file_id, slot.position)
    entry = data[PREFIX_SIZE:size]
    if isinstance(prefix, Flaw) or entry[:HEADER_SIZE] != slot.sealed:
        return None
    return entry
