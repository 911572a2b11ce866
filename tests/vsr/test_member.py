"""A replica is made only of what recovery found in one piece."""

import pytest
from tests.journal.builders import CLUSTER, a_group, grow

from headrace.errors import ChainBroken
from headrace_lab.cluster import boot
from headrace_lab.disk.memory import MemoryDisk


@pytest.mark.parametrize("lost", [0, 2])
def test_a_hole_in_what_was_found_is_an_error_by_name(monkeypatch, lost):
    disk = MemoryDisk()
    grow(a_group(disk, CLUSTER), 5)
    group = a_group(disk.kill(), CLUSTER)
    found = boot._found(group.group, group.report)
    assert len(found) == 5
    boot.member_of(group.group, group.report, 64)
    monkeypatch.setattr(boot, "_found", lambda *_: [*found[:lost], *found[lost + 1 :]])
    with pytest.raises(ChainBroken, match="does not continue from op 0"):
        boot.member_of(group.group, group.report, 64)
