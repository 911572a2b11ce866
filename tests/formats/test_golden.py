"""Golden bytes: what is written today is what was written then, and is read as it was meant.

A failure here is a change of format: its page, its bytes and the changelog change with it.
"""

from pathlib import Path

import pytest
from tests.formats import values

from headrace.journal.entry import decode, decode_header
from headrace.journal.frame import FrameKind, decode_prefix, encode_prefix, padding
from headrace.journal.heads import decode as decode_heads
from headrace.journal.heads import encode as encode_heads
from headrace.journal.journal_file import decode_block, encode_block
from headrace.journal.snapshot import Snapshot, SnapshotFiles
from headrace.journal.superblock import decode as decode_superblock
from headrace.journal.superblock import encode as encode_superblock
from headrace.model.ids import Op
from headrace.node.doubt.metadata_copy import decode as decode_copy
from headrace.node.doubt.metadata_copy import encode as encode_copy
from headrace_lab.disk.memory import MemoryDisk

HERE = Path(__file__).parent
PAGES = HERE.parent.parent / "docs" / "formats"
NAMES = sorted(path.stem for path in HERE.glob("*.hex"))


def lines(name: str) -> list[str]:
    return (HERE / f"{name}.hex").read_text().splitlines()


def golden(name: str) -> bytes:
    """Read bytes in hex; `zeros N` stands for N of them, and # begins a comment."""
    data = b""
    for line in lines(name):
        text = line.partition("#")[0].split()
        data += bytes(int(text[1])) if text[:1] == ["zeros"] else bytes.fromhex("".join(text))
    return data


def page_of(name: str) -> str:
    """Name the page that the first line of a file of bytes points to."""
    return lines(name)[0].partition("docs/formats/")[2].partition(";")[0]


def test_entry():
    entry = values.entry()
    data = golden("entry")
    assert entry.sealed + bytes(entry.body) == data
    assert decode(data) == entry
    assert decode_header(data) == entry.header


ENTRY_FRAME_END = values.POSITION + 384


@pytest.mark.parametrize(
    ("name", "prefix", "position"),
    [
        ("frame-entry", values.entry_prefix(), values.POSITION),
        ("frame-mark", values.bare_prefix(FrameKind.MARK), ENTRY_FRAME_END),
        ("frame-end", values.bare_prefix(FrameKind.END), ENTRY_FRAME_END + 64),
    ],
)
def test_frame(name, prefix, position):
    assert encode_prefix(prefix, position) == golden(name)
    assert decode_prefix(golden(name), values.FILE_ID, position) == prefix


def test_an_entry_frame_is_prefix_entry_and_zeros():
    size = values.entry_prefix().size
    assert size == len(golden("frame-entry")) + len(golden("entry"))
    assert size + len(padding(size)) == ENTRY_FRAME_END - values.POSITION


def test_journal_block():
    assert encode_block(values.FILE_HEADER) == golden("journal-block")
    assert decode_block(golden("journal-block"), "x") == values.FILE_HEADER


def test_superblock():
    assert encode_superblock(values.SUPERBLOCK) == golden("superblock")
    assert decode_superblock(golden("superblock"), "x") == values.SUPERBLOCK


def test_heads():
    assert encode_heads(values.HEADS) == golden("heads")
    assert decode_heads(golden("heads"), "x") == values.HEADS


def test_metadata_copy():
    assert b"".join(encode_copy(values.COPY)) == golden("metadata-copy")
    assert decode_copy(golden("metadata-copy"), values.IDENTITY, "x") == values.COPY


def test_snapshot():
    disk = MemoryDisk()
    files = SnapshotFiles(disk.root, values.IDENTITY)
    snapshot = files.persist(Op(256), values.PARENT, values.STATE)
    (path,) = disk.files()
    assert disk.content(path) == golden("snapshot")
    disk.put(path, golden("snapshot"))
    found = files.load(Op(256))
    assert isinstance(found, Snapshot)
    assert found == snapshot
    assert (found.op, found.tip, found.state) == (256, values.PARENT, values.STATE)


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_the_same_bytes(name):
    shown = "\n".join(lines(name)[1:])
    assert shown in (PAGES / page_of(name)).read_text()


def test_every_page_of_bytes_is_pinned():
    # A lock has no bytes that count, and a segment is Parquet: its bytes may differ between
    # releases of Arrow, while the digest of its rows may not (tests/model/test_digest.py).
    assert {page_of(name) for name in NAMES} | {"lock.md", "segment.md"} == {
        path.name for path in PAGES.glob("*.md")
    }
