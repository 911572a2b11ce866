"""Golden bytes of a carry file: written today as then, and read as it was meant."""

from tests.formats import values
from tests.formats.test_golden import golden

from headrace.model.ids import Op
from headrace.partition.files.carry import CarryFile, open_carry, write_carry
from headrace.partition.files.carry_table import CarrySource, Item, LinkedJournal
from headrace_lab.disk.memory import MemoryDisk

NAME = "00000000000000000256.carry"


def an_item() -> Item:
    return Item(Op(5), len(golden("entry")), values.entry().checksum)


def test_carry():
    disk = MemoryDisk()
    entry = values.entry()
    written = write_carry(disk.root, values.IDENTITY, Op(256), [an_item()], lambda _: entry)
    assert disk.files() == [NAME]
    assert disk.content(NAME) == golden("carry")
    assert written.checksum == golden("carry")[:16]


def test_carry_is_read_as_it_was_meant():
    disk = MemoryDisk()
    disk.put(NAME, golden("carry"))
    found = open_carry(disk.root, values.IDENTITY, Op(256))
    assert isinstance(found, CarryFile)
    assert list(found.ops) == [5]
    assert found.item(Op(5)) == an_item()
    assert found.read(Op(5)) == values.entry()
    assert found.check() is None
    assert list(found.check_kept()) == []


def test_an_entry_is_carried_verbatim():
    position, size = 192, len(golden("entry"))
    assert golden("carry")[position : position + size] == golden("entry")


SOURCE = CarrySource(values.FILE_ID, 65_536, Op(3))


def a_kept_entry() -> LinkedJournal:
    return LinkedJournal(an_item(), 1, 8_256)


def test_carry_with_a_source():
    disk = MemoryDisk()
    written = write_carry(
        disk.root, values.IDENTITY, Op(256), [a_kept_entry()], values.entry, sources=[SOURCE]
    )
    assert disk.content(NAME) == golden("carry-kept")
    assert written.sources == (SOURCE,)


def test_carry_with_a_source_is_read_as_it_was_meant():
    disk = MemoryDisk()
    disk.put(NAME, golden("carry-kept"))
    disk.put(SOURCE.name, bytes(8_256) + golden("entry") + bytes(1_000))
    found = open_carry(disk.root, values.IDENTITY, Op(256))
    assert isinstance(found, CarryFile)
    assert found.sources == (SOURCE,)
    assert found.item(Op(5)) == an_item()
    assert found.read(Op(5)) == values.entry()
    assert found.check() is None
    assert list(found.check_kept()) == []
