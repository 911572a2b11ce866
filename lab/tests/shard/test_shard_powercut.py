"""Power cuts under a shard and its sealing children, where this machine has a disk to spare."""

import pytest

from headrace_lab.disk.loopdisk import CannotCut, loop_disk
from headrace_lab.shard.kills.plants import POWER_PLANTS
from headrace_lab.shard.kills.powercut import PLANTED_CUT_COUNT, cuts_on, has_landed

CUTS = 6


@pytest.fixture
def disk():
    try:
        with loop_disk() as made:
            yield made
    except CannotCut as reason:
        pytest.skip(f"no power cuts here: {reason}")


@pytest.mark.power
def test_no_acknowledged_row_is_lost_to_power_cuts(disk, tmp_path):
    run = cuts_on(disk, str(tmp_path), seed=5)
    tally = run.run(CUTS)
    assert tally.problems == []
    assert has_landed(tally, CUTS)
    assert (tally.lost_count, tally.invented_count) == (0, 0)
    assert tally.checked_count == run.session_count
    assert tally.acknowledged_count > CUTS


@pytest.mark.power
@pytest.mark.campaign(1)
@pytest.mark.parametrize("plant", POWER_PLANTS)
def test_a_missing_sync_is_caught(disk, tmp_path, plant):
    tally = cuts_on(disk, str(tmp_path), seed=5, plant=plant).run(PLANTED_CUT_COUNT)
    assert tally.count > 0
    assert tally.problems
