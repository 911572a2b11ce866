"""The index of a carry file that keeps journal files: what is believed of it, and what not."""

import pytest
from tests.partition.test_carry import an_entry, an_item
from xxhash import xxh3_128_digest

from headrace.journal.entry import Flaw
from headrace.journal.journal_file import FIRST_POSITION
from headrace.model.ids import Op
from headrace.partition.files import carry_table
from headrace.partition.files.carry import CarryFile, carry_name, open_carry, write_carry
from headrace.partition.files.carry_table import CarrySource, LinkedJournal
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk

SEAL, NAME = Op(20), carry_name(Op(20))
ENTRIES = {op: an_entry(op, body=b"z" * (10 * op)) for op in (3, 5, 8, 9)}
SOURCES = [CarrySource(0xABC, 16_384, Op(2)), CarrySource(0xDEF, 32_768, Op(7))]
POSITIONS = {3: (1, FIRST_POSITION + 64), 8: (2, FIRST_POSITION + 640), 9: (2, 20_032)}


def a_disk() -> MemoryDisk:
    """Ops 3, 8 and 9 are kept, in two files; op 5 is in the carry file itself."""
    disk = MemoryDisk()
    items = []
    for op, entry in ENTRIES.items():
        item = an_item(entry)
        items.append(LinkedJournal(item, *POSITIONS[op]) if op in POSITIONS else item)
    for number, source in enumerate(SOURCES, start=1):
        content = bytearray(source.size)
        for op, (wanted, position) in POSITIONS.items():
            if wanted == number:
                data = ENTRIES[op].sealed + bytes(ENTRIES[op].body)
                content[position : position + len(data)] = data
        disk.put(source.name, bytes(content))
    write_carry(disk.root, SOLO, SEAL, items, ENTRIES.__getitem__, sources=SOURCES).close()
    return disk


def opened(disk: MemoryDisk) -> CarryFile:
    found = open_carry(disk.root, SOLO, SEAL)
    assert isinstance(found, CarryFile)
    return found


def test_entries_are_read_from_where_they_are():
    disk = a_disk()
    carry = opened(disk)
    assert list(carry.ops) == list(ENTRIES)
    for op, entry in ENTRIES.items():
        assert carry.read(Op(op)) == entry
        assert carry.path_of(carry.row(Op(op))) == (
            SOURCES[POSITIONS[op][0] - 1].name if op in POSITIONS else NAME
        )
    assert carry.check() is None
    assert list(carry.check_kept()) == []
    assert carry.size < 128 + 4 * 40 + 2 * 24 + 64 + 512


@pytest.mark.parametrize("harm", ["gone", "empty", "rotten", "swapped"])
def test_a_bad_source_costs_its_own_entries_by_name(harm):
    disk = a_disk()
    name = SOURCES[1].name
    match harm:
        case "gone":
            disk.remove(name)
        case "empty":
            disk.put(name, b"")
        case "rotten":
            for op in (8, 9):
                disk.flip(name, (POSITIONS[op][1] + 300) * 8)
        case "swapped":
            disk.put(name, disk.content(SOURCES[0].name))
    carry = opened(disk)
    assert carry.read(Op(3)) == ENTRIES[3]
    assert carry.read(Op(5)) == ENTRIES[5]
    assert all(isinstance(carry.read(Op(op)), Flaw) for op in (8, 9))
    assert carry.check() is None
    assert [path for path, _ in carry.check_kept()] == [name]


def test_no_single_byte_can_change_unnoticed():
    disk = a_disk()
    data = disk.content(NAME)
    for place in range(len(data)):
        disk.put(NAME, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = open_carry(disk.root, SOLO, SEAL)
        assert isinstance(found, Flaw) or found.check() is not None, place


@pytest.mark.parametrize(
    ("place", "source", "position", "what"),
    [
        (0, 3, None, "source of op 3"),
        (0, 2**32 - 1, None, "source of op 3"),
        (0, 1, FIRST_POSITION - 64, "position of op 3"),
        (0, 1, 16_384 - 256, "position of op 3"),
        (3, 2, 2**64 - 1, "position of op 9"),
        (1, 0, 64, "position of op 5 in the carry index"),
    ],
)
def test_a_forged_row_is_not_believed(place, source, position, what):
    disk = a_disk()
    data = bytearray(disk.content(NAME))
    at = 128 + 40 * place
    if position is not None:
        data[at + 8 : at + 16] = position.to_bytes(8, "little")
    data[at + 20 : at + 24] = source.to_bytes(4, "little")
    fields = carry_table.decode_header(bytes(data[:128]), SOLO, NAME)
    assert not isinstance(fields, Flaw)
    data[64:80] = xxh3_128_digest(data[128 : fields.end])
    data[:16] = xxh3_128_digest(data[16:128])
    disk.put(NAME, bytes(data))
    found = open_carry(disk.root, SOLO, SEAL)
    assert isinstance(found, Flaw)
    assert found.what == what
