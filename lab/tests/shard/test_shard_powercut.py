"""Power cuts under a shard and its sealing children, where this machine has a disk to spare."""

import pytest

from headrace_lab.disk.loopdisk import CannotCut, loop_disk
from headrace_lab.harness.powercut import PLANTED_CUT_COUNT, PowerCuts, has_landed
from headrace_lab.shard.kills.plants import POWER_PLANTS
from headrace_lab.shard.kills.trial import on_disk

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
    trial = on_disk(disk, str(tmp_path), seed=5)
    tally = PowerCuts(disk, trial).run(CUTS)
    assert tally.failures == []
    assert has_landed(trial, CUTS)
    assert (tally.counts["rows lost"], tally.counts["rows invented"]) == (0, 0)
    assert tally.cases == tally.counts["sessions"]
    assert tally.counts["rows acknowledged"] > CUTS


@pytest.mark.power
@pytest.mark.campaign(1)
@pytest.mark.parametrize("plant", POWER_PLANTS)
def test_a_missing_sync_is_caught(disk, tmp_path, plant):
    trial = on_disk(disk, str(tmp_path), seed=5, plant=plant)
    tally = PowerCuts(disk, trial).run(PLANTED_CUT_COUNT)
    assert tally.count > 0
    assert tally.failures
