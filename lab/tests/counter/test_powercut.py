"""Power cuts on a real file system, where this machine has one to spare."""

import os
from pathlib import Path

import pytest

from headrace_lab.counter.trial import POWER_PLANTS, on_disk
from headrace_lab.disk import loopdisk
from headrace_lab.disk.loopdisk import CannotCut, loop_disk
from headrace_lab.harness.powercut import PLANTED_CUT_COUNT, PowerCuts, has_landed

CUTS = 8


@pytest.fixture
def disk():
    try:
        with loop_disk() as made:
            yield made
    except CannotCut as reason:
        pytest.skip(f"no power cuts here: {reason}")


@pytest.mark.power
def test_nothing_acknowledged_is_lost_to_power_cuts(disk):
    trial = on_disk(disk, "", seed=5)
    tally = PowerCuts(disk, trial).run(CUTS)
    assert tally.failures == []
    assert has_landed(trial, CUTS)
    assert tally.among("recovery") * 3 >= CUTS
    assert tally.counts["entries acknowledged"] > CUTS
    assert tally.cases == tally.counts["sessions"]


@pytest.mark.power
@pytest.mark.parametrize("plant", POWER_PLANTS)
def test_an_acknowledgement_of_what_is_not_durable_is_caught(disk, plant):
    tally = PowerCuts(disk, on_disk(disk, "", seed=5, plant=plant)).run(PLANTED_CUT_COUNT)
    assert tally.count > 0
    assert tally.failures


@pytest.mark.power
def test_a_disk_is_unmounted_and_detached_whatever_happens():
    class Interrupted(Exception):
        pass

    seen = []

    def use():
        with loop_disk() as disk:
            seen.append(disk)
            raise Interrupted

    try:
        with pytest.raises(Interrupted):
            use()
    except CannotCut as reason:
        pytest.skip(f"no power cuts here: {reason}")
    (disk,) = seen
    assert not disk.mount.parent.exists()
    assert str(disk.mount) not in Path("/proc/self/mounts").read_text()
    backing = Path("/sys/block", Path(disk.device).name, "loop/backing_file")
    assert not backing.exists() or str(disk.mount.parent) not in backing.read_text()


def test_without_root_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotCut, match="needs root"), loop_disk():
        pass


def test_without_its_tools_the_missing_one_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(loopdisk, "_PLACES", str(tmp_path))
    with pytest.raises(CannotCut, match=r"mkfs\.ext4 is not installed"), loop_disk():
        pass
