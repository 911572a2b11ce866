"""The contents of a journal file: header blocks, then frame by frame, past bad bytes."""

import re
from pathlib import PurePath

from headrace.doctor.anatomy.file_anatomy import (
    ENTRY_HEADS,
    Anatomy,
    Table,
    entry_cells,
    flawed,
    opened,
)
from headrace.doctor.look.group_look import SPARE
from headrace.errors import HeadraceError
from headrace.journal.entry import Flaw
from headrace.journal.frame import FILE_ID_AT, FrameKind, Prefix, aligned
from headrace.journal.journal_file import (
    BLOCK_COUNT,
    BLOCK_SIZE,
    FIRST_POSITION,
    FileHeader,
    decode_block,
)
from headrace.journal.recovery.walk import FileReader, JournalFrame, traces
from headrace.model.ids import GroupId, Op
from headrace.storage.seam import Storage

_SPARE = re.compile(r"[0-9a-f]{16}\.wal")
_HEADS = ("position", "frame", "op", "size", "durable", "commit", *ENTRY_HEADS, "state")


def journal_anatomy(path: str, limit: int) -> Anatomy:
    """Show a journal file as far as it goes."""
    file = opened(path)
    try:
        found = Anatomy("journal", file.size())
        header = _header(file, found)
        if _is_spare(path) and header is None:
            return _spare(found)
        if _is_spare(path):
            found.fields["state"] = "a spare: drained and not in use; its last life is shown"
        found.tables.append(Table("frames", _HEADS))
        life = header.file_id if header is not None else _shown_id(file)
        size = header.size if header is not None else file.size()
        if file.size() < size:
            found.flaw(file.size(), f"truncated: its header says {size:,} bytes")
        _walk(file, FileReader(file, life, size), header, found, limit)
        return found
    finally:
        file.close()


def _header(file: Storage, found: Anatomy) -> FileHeader | None:
    good: FileHeader | None = None
    for block in range(BLOCK_COUNT):
        try:
            header = decode_block(file.read(block * BLOCK_SIZE, BLOCK_SIZE), file.path)
        except HeadraceError as error:
            found.flaw(block * BLOCK_SIZE, str(error))
            continue
        if isinstance(header, Flaw):
            found.flaw(block * BLOCK_SIZE, f"header block {block + 1}: {flawed(header)}")
        else:
            good = good or header
    if good is not None:
        found.fields |= {
            "file id": f"{good.file_id:016x}",
            "cluster": good.cluster.hex(),
            "group": good.group,
            "first op": good.first_op,
            "parent": good.parent.hex(),
            "size": good.size,
        }
    return good


def _is_spare(path: str) -> bool:
    """A spare's name is its id; a live file's name is its first op."""
    name = PurePath(path)
    return name.parent.name == SPARE or _SPARE.fullmatch(name.name) is not None


def _spare(found: Anatomy) -> Anatomy:
    found.flaws.clear()  # it gets its header blocks when it gets a live name
    found.fields["state"] = "a spare: created in advance and not in use"
    found.verdict = "A spare: it holds no rows, and none are read from it."
    return found


def _shown_id(file: Storage) -> int:
    """Take the file's ID from its first frame, for when both header blocks are bad."""
    return int.from_bytes(file.read(FIRST_POSITION + FILE_ID_AT, 8), "little")


def _walk(
    file: Storage,
    reader: FileReader,
    header: FileHeader | None,
    found: Anatomy,
    limit: int,
) -> None:
    table, position, last = found.tables[0], FIRST_POSITION, 0
    entry_count = 0
    while position < reader.size:
        frame = reader.frame(position)
        if frame.flaw is None:
            assert isinstance(frame.prefix, Prefix)
            _add(table, limit, position, frame, "ok")
            entry_count += frame.header is not None
            last = max(last, frame.prefix.op)
            position += aligned(frame.prefix.size)
            if frame.prefix.kind is FrameKind.END:
                break
            continue
        following = _next(reader, position, header, last)
        if following is None:
            break  # nothing of this file's life follows: its empty part begins here
        found.flaw(position, flawed(frame.flaw))
        _add(table, limit, position, frame, flawed(frame.flaw))
        if following == position:
            break
        position = following
    found.fields |= {"entries": entry_count, "last op": last, "frames end at": position}


def _next(
    reader: FileReader, position: int, header: FileHeader | None, last: int
) -> int | None:
    """Return where the next intact frame is; `position` for only ruins, None for nothing."""
    cluster = header.cluster if header is not None else bytes(16)
    group = GroupId(header.group if header is not None else 0)
    is_ruin = False
    for trace in traces(reader, position, cluster, group, Op(last + 1)):
        is_ruin = True
        if trace.prefix is not None and trace.position > position:
            return trace.position
        if trace.prefix is not None and trace.position == position:
            return position + aligned(trace.prefix.size)
    return position if is_ruin else None


def _add(table: Table, limit: int, position: int, frame: JournalFrame, state: str) -> None:
    prefix = frame.prefix
    if isinstance(prefix, Flaw):
        table.add(limit, position, "?", None, None, None, None, *entry_cells(None), state)
        return
    kind = prefix.kind.name.lower()
    evidence = (prefix.durable, prefix.commit)
    cells = entry_cells(frame.header)
    table.add(limit, position, kind, prefix.op, prefix.size, *evidence, *cells, state)
