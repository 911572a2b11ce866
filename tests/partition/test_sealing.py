"""Writing one segment: what a sync that goes on beside the reading back decides."""

import errno
import os

import pytest
from tests.partition.shards import Place

from headrace.errors import CorruptSegment
from headrace.partition import sealing
from headrace.partition.sealing import DISK, FULL, UNSEALABLE, Done, Failed, seal_file
from headrace.storage.memory import MemoryDisk


@pytest.fixture
def place():
    return Place(MemoryDisk().root)


def sealed(place, begin):
    return seal_file(place.jobs[0], place.segments, place._read, begin)


def finding_rot(place):
    def read_back(*_):
        raise CorruptSegment("another row digest", path=place.jobs[0].temporary)

    return read_back


class Beside:
    """Begins a sync, and ends it when it is waited for, or fails then."""

    def __init__(self, failure=None):
        self.failure = failure
        self.steps = []

    def __call__(self, work):
        self.steps.append("begun")

        def wait():
            self.steps.append("waited")
            if self.failure is not None:
                raise self.failure
            work()

        return wait


def test_a_file_is_read_back_while_it_is_synced(place, monkeypatch):
    beside = Beside()
    real = sealing.read_back

    def read_back(*given):
        beside.steps.append("read back")
        real(*given)

    monkeypatch.setattr(sealing, "read_back", read_back)
    assert isinstance(sealed(place, beside), Done)
    assert beside.steps == ["begun", "read back", "waited"]


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, DISK), (errno.ENOSPC, FULL)])
@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_sync_that_failed_counts_whatever_was_read_back(
    place, monkeypatch, code, kind, is_rotten
):
    if is_rotten:
        monkeypatch.setattr(sealing, "read_back", finding_rot(place))
    outcome = sealed(place, Beside(OSError(code, os.strerror(code))))
    assert isinstance(outcome, Failed)
    assert outcome.kind == kind
    assert place.leftovers() == []


def test_rot_is_told_only_when_the_sync_has_ended(place, monkeypatch):
    beside = Beside()
    monkeypatch.setattr(sealing, "read_back", finding_rot(place))
    outcome = sealed(place, beside)
    assert isinstance(outcome, Failed)
    assert outcome.kind == UNSEALABLE
    assert beside.steps == ["begun", "waited"]
    assert place.leftovers() == []
