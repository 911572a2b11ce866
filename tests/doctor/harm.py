"""Ways to harm a real log at rest, each with what the doctor must say and a salvage must miss.

What is expected is known from what was appended and from the layout of the healthy log, which
is read here with the formats' own decoders, not with the doctor.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from tests.doctor.logs import CLICKS, ITEMS, ORDERS, TRIMMED

from headrace.journal.entry import HEADER_SIZE, Entry, Header
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix, aligned, encode_prefix
from headrace.journal.journal_file import (
    BLOCK_SIZE,
    FIRST_POSITION,
    FileHeader,
    decode_block,
    first_op_of,
)
from headrace.journal.recovery.walk import FileReader
from headrace.partition.files.carry import CarryFile, load_carry, op_of
from headrace.partition.machine.operations import APPEND
from headrace.partition.segments.segment import parse_name
from headrace.partition.segments.segment_writer import writer_settings
from headrace.storage.file import FileDirectory
from headrace_lab.harness.damage import flipped

SHARD = "groups/00001"
METADATA = "groups/00000"

Lost = tuple[str, int, int, int]  # topic, partition, start, end


@dataclass(frozen=True, slots=True)
class Expected:
    """What the doctor must find, and what a salvage must miss."""

    severity: str
    kind: str
    file: str
    position: int | None = None
    op: int | None = None
    lost: tuple[Lost, ...] = ()  # rows that the doctor names
    missing: tuple[Lost, ...] | None = None  # from a salvage; None: the same
    deep: bool = False  # only a deep look finds it
    inexact: tuple[tuple[str, int], ...] = ()  # partitions whose later old offsets are unsure

    @property
    def gone(self) -> tuple[Lost, ...]:
        return self.lost if self.missing is None else self.missing


@dataclass(frozen=True, slots=True)
class Frame:
    """An entry in a journal file."""

    file: Path
    position: int
    size: int
    header: Header


def frames(group: Path) -> list[Frame]:
    """Return every entry of a group's journal."""
    found = []
    journal = FileDirectory.open_root(str(group / "journal"), create=False)
    for name in filter(first_op_of, journal.names()):
        with journal.open(name) as file:
            life = decode_block(file.read(0, BLOCK_SIZE), name)
            assert isinstance(life, FileHeader)
            reader = FileReader(file, life.file_id, life.size)
            position = FIRST_POSITION
            while position < reader.size and isinstance(
                prefix := (frame := reader.frame(position)).prefix, Prefix
            ):
                if frame.header is not None:
                    path = group / "journal" / name
                    found.append(Frame(path, position, prefix.size, frame.header))
                position += aligned(prefix.size)
    return found


def appends(log: Path, topic: str, partition: int) -> list[Frame]:
    """Return the appends of one partition that are in the journal, in order."""
    number = {CLICKS: (1, 0)}.get(topic)
    found = [one for one in frames(log / SHARD) if one.header.operation == APPEND]
    if number is None:
        return found
    # Streams are numbered from 0, the default one; shop is 1 and web 2.
    namespace = 2 << 48 | 0 << 24 | partition
    return [one for one in found if one.header.namespace == namespace]


def flip(path: Path, position: int, bit: int = 3) -> None:
    path.write_bytes(flipped(path.read_bytes(), position * 8 + bit))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def segments(log: Path) -> list[tuple[Path, int, int, int]]:
    """Return each segment of shop/orders with its partition, first and end."""
    found = []
    for path in sorted((log / SHARD / "segments").iterdir()):
        parsed = parse_name(path.name)
        assert parsed is not None
        found.append((path, parsed[0] & 0xFFFFFF, parsed[2], parsed[3]))
    return found


def carries(log: Path) -> list[tuple[Path, CarryFile]]:
    """Return each carry file, opened, oldest first."""
    room = FileDirectory.open_root(str(log / SHARD / "carry"), create=False)
    found = []
    for name in filter(op_of, room.names()):
        file = load_carry(room.open(name), None, None)
        assert isinstance(file, CarryFile)
        found.append((log / SHARD / "carry" / name, file))
    return found


def relative(log: Path, path: Path) -> str:
    return str(path.relative_to(log))


def torn_tail(log: Path) -> Expected:
    """Leave half a frame behind the head of the metadata, as a crash in a write does."""
    last = frames(log / METADATA)[-1]
    data = bytearray(last.file.read_bytes())
    life = decode_block(bytes(data[:BLOCK_SIZE]), "")
    assert isinstance(life, FileHeader)
    position = last.position + aligned(last.size)
    while data[position : position + 8] != bytes(8):  # the marks
        position += PREFIX_SIZE
    op = last.header.op
    prefix = Prefix(FrameKind.ENTRY, 1000, life.file_id, op, op, op + 1, b"t" * 16)
    data[position : position + PREFIX_SIZE] = encode_prefix(prefix, position)
    data[position + PREFIX_SIZE : position + 300] = b"\x07" * (300 - PREFIX_SIZE)
    last.file.write_bytes(data)
    return Expected("note", "torn-tail", relative(log, last.file), position, op + 1)


def body_rot(log: Path) -> Expected:
    """Flip a bit in the second batch of one partition of web/clicks."""
    hit = appends(log, CLICKS, 1)[1]
    flip(hit.file, hit.position + PREFIX_SIZE + HEADER_SIZE + 40)
    return Expected(
        *("damage", "journal-entry", relative(log, hit.file), hit.position, hit.header.op),
        lost=((CLICKS, 1, 10, 20),),
    )


def entry_header_rot(log: Path) -> Expected:
    """Flip a bit in the header of an entry: nothing tells what it was."""
    hit = appends(log, CLICKS, 1)[1]
    flip(hit.file, hit.position + PREFIX_SIZE + 90)
    return Expected(
        *("damage", "journal-entry", relative(log, hit.file), hit.position, hit.header.op),
        inexact=((CLICKS, 1),),
    )


def prefix_rot(log: Path) -> Expected:
    """Flip a bit in a frame's prefix: the entry behind it is whole, and proves itself."""
    hit = appends(log, CLICKS, 1)[1]
    flip(hit.file, hit.position + 20)
    return Expected(
        *("damage", "journal-entry", relative(log, hit.file), hit.position, hit.header.op)
    )


def one_header_block(log: Path) -> Expected:
    path = frames(log / SHARD)[-1].file
    flip(path, BLOCK_SIZE + 30)
    return Expected("note", "header-block", relative(log, path), BLOCK_SIZE)


def both_header_blocks(log: Path) -> Expected:
    hit = appends(log, CLICKS, 0)[0]
    flip(hit.file, 30)
    flip(hit.file, BLOCK_SIZE + 30)
    first = int(hit.file.stem)
    return Expected("damage", "journal-header", relative(log, hit.file), 0, first)


def journal_file_gone(log: Path) -> Expected:
    """Take away a journal file with rows that are nowhere else."""
    files = sorted({one.file for one in frames(log / SHARD)})
    snapshot = max(int(one.stem) for one in (log / SHARD / "snapshots").iterdir())
    above = [path for path in files if int(path.stem) > snapshot]
    gone = above[1]
    gone.unlink()
    return Expected(
        *("damage", "journal-missing", relative(log, gone), None, int(gone.stem)),
        inexact=((ORDERS, 0), (ORDERS, 1)),
    )


def one_superblock(log: Path) -> Expected:
    flip(log / SHARD / "superblock.b", 60)
    return Expected("note", "superblock-copy", f"{SHARD}/superblock.b", 0)


def all_superblocks(log: Path) -> Expected:
    flip(log / SHARD / "superblock.a", 60)
    flip(log / SHARD / "superblock.b", 61)
    return Expected("damage", "superblock-lost", f"{SHARD}/superblock.a", 0)


def newest_snapshot(log: Path) -> Expected:
    path = max((log / SHARD / "snapshots").iterdir())
    flip(path, 300)
    op = int(path.stem)
    return Expected("note", "snapshot-bad", relative(log, path), None, op)


def segment_page(log: Path) -> Expected:
    """Flip a bit in a page of the first row group of the oldest segment."""
    path, partition, _, _ = segments(log)[0]
    flip(path, 400_000)
    lost = ((ORDERS, partition, 0, 60_000),)  # six entries are a row group
    return Expected("damage", "segment-rows", relative(log, path), lost=lost, deep=True)


def segment_footer(log: Path) -> Expected:
    """Flip a bit in the statistics of a footer: no row can be served, all can be proven."""
    path, partition, first, end = segments(log)[0]
    data = path.read_bytes()
    position = data.index(b"headrace.row_digest") + 30
    path.write_bytes(flipped(data, position * 8))
    size = int.from_bytes(data[-8:-4], "little")
    return Expected(
        *("damage", "segment-bad", relative(log, path), len(data) - 8 - size),
        lost=((ORDERS, partition, first, end),),
    )


def segment_gone(log: Path) -> Expected:
    path, partition, first, end = segments(log)[0]
    path.unlink()
    return Expected(
        *("damage", "segment-gone", relative(log, path)),
        lost=((ORDERS, partition, first, end),),
    )


def segment_cut(log: Path) -> Expected:
    path, partition, first, end = segments(log)[0]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return Expected(
        *("damage", "segment-bad", relative(log, path), len(data) // 2),
        lost=((ORDERS, partition, first, end),),
    )


def newest_segment_gone(log: Path) -> Expected:
    """Take away the segment whose entries the journal and the carry files still have."""
    path, partition, first, end = _newest_segment(log)
    path.unlink()
    return Expected(
        *("damage", "segment-gone", relative(log, path)),
        lost=((ORDERS, partition, first, end),),
        missing=(),
    )


def newest_segment_page(log: Path) -> Expected:
    """Flip a bit in the last row group of that segment: entries overlap the good rows."""
    path, partition, first, end = _newest_segment(log)
    _cut_within_entries(path)
    metadata = pq.read_metadata(path)
    number = metadata.num_row_groups - 1
    group = metadata.row_group(number)
    start = end - group.num_rows
    assert start % 10_000  # within an entry
    flip(path, group.column(4).data_page_offset + 5_000)
    # Of another size than the log says: nothing is served, and the rest is proven by a salvage.
    return Expected(
        *("damage", "segment-bad", relative(log, path), path.stat().st_size),
        lost=((ORDERS, partition, first, end),),
        missing=(),
    )


def _cut_within_entries(path: Path) -> None:
    """Write a segment again with row groups as full as can be, as older releases did."""
    file = pq.ParquetFile(path)
    said = {key.decode(): text.decode() for key, text in file.metadata.metadata.items()}
    whole = file.read().combine_chunks().replace_schema_metadata(None).to_batches()[0]
    settings = writer_settings(whole.schema)
    with pq.ParquetWriter(path, whole.schema, **settings) as writer:
        for start in range(0, whole.num_rows, 65_536):
            writer.write_batch(whole.slice(start, 65_536), row_group_size=65_536)
        writer.add_key_value_metadata(
            {key: text for key, text in said.items() if key.startswith(("headrace.", "ARROW:"))}
        )


def _newest_segment(log: Path) -> tuple[Path, int, int, int]:
    def seal_op(one: tuple[Path, int, int, int]) -> int:
        return int(pq.read_metadata(one[0]).metadata[b"headrace.seal_op"])

    return max(segments(log), key=seal_op)


def segments_swapped(log: Path) -> Expected:
    first, second = segments(log)[0], segments(log)[-1]
    assert first[1] != second[1]
    aside = first[0].with_suffix(".aside")
    first[0].rename(aside)
    second[0].rename(first[0])
    aside.rename(second[0])
    return Expected(
        *("damage", "segment-bad", relative(log, first[0])),
        position=0,
        lost=((ORDERS, *first[1:]),),
        missing=(),
    )


def _only_carried(log: Path) -> tuple[Path, CarryFile, list[int]]:
    """Return the carry file with the two oldest entries of shop/items: rows 0 to 19."""
    journaled = {one.header.op for one in frames(log / SHARD)}
    path, file = carries(log)[0]
    found = []
    for op in file.ops:
        entry = file.read(op)
        assert isinstance(entry, Entry)
        if entry.header.namespace == 1 << 48 | 1 << 24:
            found.append(op)
    assert len(found) == 2
    assert not journaled.intersection(found)
    return path, file, found


def carry_entry(log: Path) -> Expected:
    """Flip a bit in the entry of rows 10 to 19."""
    path, file, ops = _only_carried(log)
    _, position, size, *_ = file.row(ops[1])
    flip(path, position + size // 2)
    return Expected(
        *("damage", "carry-entry", relative(log, path), position, ops[1]),
        lost=((ITEMS, 0, 10, 20),),
        deep=True,
    )


def carry_table(log: Path) -> Expected:
    """Flip a bit in the index: a node reads nothing of it, a salvage finds each entry."""
    path, _, _ = _only_carried(log)
    flip(path, 140)
    return Expected(
        *("damage", "carry-bad", relative(log, path), 0),
        lost=((ITEMS, 0, TRIMMED, 20),),
        missing=(),
    )


def carry_gone(log: Path) -> Expected:
    path, _, _ = _only_carried(log)
    path.unlink()
    return Expected(
        *("damage", "carry-gone", relative(log, path)),
        lost=((ITEMS, 0, TRIMMED, 20),),
        missing=((ITEMS, 0, TRIMMED, 10), (ITEMS, 0, 10, 20)),
    )


def previous_snapshot_gone(log: Path) -> Expected:
    path = min((log / SHARD / "snapshots").iterdir())
    path.unlink()
    return Expected("note", "snapshot-gone", relative(log, path), None, int(path.stem))


def journal_cut_short(log: Path) -> Expected:
    """Cut the newest journal file right behind its first frame, after an unclean stop."""
    hit = frames(log / METADATA)[0]
    size = hit.position + aligned(hit.size)
    hit.file.write_bytes(hit.file.read_bytes()[:size])
    return Expected("damage", "journal-short", relative(log, hit.file), size)


def another_cluster(log: Path, other: Path) -> Expected:
    """Put another log's journal file in the place of the newest one of the metadata."""
    path = frames(log / METADATA)[0].file
    shutil.copy(other / METADATA / "journal" / path.name, path)
    return Expected("damage", "foreign-file", relative(log, path))


def leftovers(log: Path) -> Expected:
    path = log / SHARD / "segments" / "00112233445566ff.tmp"
    path.write_bytes(b"half a file")
    (log / SHARD / "superblock.a.tmp").write_bytes(b"half a superblock")
    return Expected("note", "leftover", relative(log, path))


def stranger(log: Path) -> Expected:
    path = log / SHARD / "journal" / "notes.txt"
    path.write_text("remember the milk")
    return Expected("note", "stranger", relative(log, path))


def cluster_file_gone(log: Path) -> Expected:
    (log / "cluster.toml").unlink()
    return Expected("note", "identity-file", "cluster.toml")


Harm = Callable[[Path], Expected]


def everything() -> Iterator[Harm]:
    """Give every harm that needs nothing but the log itself."""
    yield from (torn_tail, body_rot, entry_header_rot, prefix_rot)
    yield from (one_header_block, both_header_blocks, journal_file_gone)
    yield from (one_superblock, all_superblocks, newest_snapshot)
    yield from (segment_page, segment_footer, segment_gone, segment_cut)
    yield from (newest_segment_gone, newest_segment_page, segments_swapped)
    yield from (carry_entry, carry_table, carry_gone, previous_snapshot_gone)
    yield from (leftovers, stranger, cluster_file_gone)
