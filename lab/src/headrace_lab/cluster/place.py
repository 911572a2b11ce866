"""Where a faulty frame begins: what a mend that a peer sent is written over."""

from collections.abc import Container
from dataclasses import replace

from headrace.journal.entry import Header, decode_header
from headrace.journal.findings import Faulty
from headrace.journal.frame import aligned, entry_frame_size
from headrace.journal.journal import Journal
from headrace.model.ids import Op


def place_of(journal: Journal, faulty: Faulty, others: Container[Op]) -> Faulty | None:
    """Return it with its place: known, or right behind the whole one before it."""
    if faulty.position is not None:
        return faulty
    below = Op(faulty.op - 1)
    before = journal.slot(below)
    if before is None or below in others or before.file.path != faulty.path:
        return None
    header = decode_header(before.sealed)
    assert isinstance(header, Header)
    position = before.position + aligned(entry_frame_size(header.body_size))
    return replace(faulty, position=position)
