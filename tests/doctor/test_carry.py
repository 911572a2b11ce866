"""What a damaged carry file costs: the very rows that a node does not give any more."""

import pytest
from tests.doctor import harm
from tests.doctor.batches import named, unread
from tests.doctor.two_shards import FIRST, ROWS, SETTINGS

from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.partition.files.carry import CarryFile, load_carry
from headrace.storage.file import FileDirectory

BATCH = 10  # rows of an append


def emptied(path) -> None:
    path.write_bytes(b"")


def rotten(path) -> None:
    """Flip a bit in the newest entry of a carry file."""
    room = FileDirectory.open_root(str(path.parent), create=False)
    with room.open(path.name) as file:
        carry = load_carry(file, None, None)
        assert isinstance(carry, CarryFile)
        _, position, size, *_ = carry.row(max(carry.ops))
    harm.flip(path, position + size // 2)


@pytest.mark.parametrize("do", [emptied, rotten], ids=lambda one: one.__name__)
@pytest.mark.parametrize("number", [5, -1], ids=["drained", "not drained"])
def test_rows_that_a_node_cannot_give_are_named(stopped, tmp_path, counts, do, number):
    """The journal file still has their bytes. A node lets them go at the checkpoint above."""
    do(sorted((stopped / FIRST / "carry").iterdir())[number])
    examination = examine(str(stopped), deep=True)
    (one,) = examination.damage
    assert ("--salvage finds them" in one.lost) == bool(one.lost_rows)
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    ends = {partition: counts[ROWS, partition] - BATCH for partition in (0, 1)}
    assert named(examination, BATCH) == unread(stopped, SETTINGS, ROWS, ends, BATCH)
    assert bool(one.lost_rows) == (number == 5)
