"""Metadata of before a partition was given up: the other rows of its topic stay readable."""

import shutil
from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError

FAST = {"listen__socket": False, "timeout": "10s", "reconcile__tick": "50ms"}


def opened(data):
    return headrace.open(str(data), **FAST)


def back(data: Path, source: Path) -> None:
    """Put metadata of another moment in its place, with its copy."""
    drop(data)
    shutil.copytree(source / "groups" / "00000", data / "groups" / "00000")
    shutil.copy(source / "metadata.copy", data / "metadata.copy")


def drop(data: Path) -> None:
    shutil.rmtree(data / "groups" / "00000")
    (data / "metadata.copy").unlink()


def ids(log, *partition):
    return sorted(log.topic("s/a").read(*partition).to_table()["id"].to_pylist())


@pytest.fixture
def given_up(tmp_path):
    """Make a log whose partition 1 was given up, and whose metadata then went back to before.

    What came after it has rows: of partition 0, and of partition 1 in its new life.
    """
    data, before = tmp_path / "data", tmp_path / "before"
    with opened(data) as log:
        topic = log.create_topic("s/a", {"id": "int64"}, partitions=2)
        topic.append([{"id": 1}], partition=0)
        topic.append([{"id": 2}], partition=1)
    shutil.copytree(data, before)
    drop(data)
    with opened(data) as log:
        (lost,) = [one for one in log.status()["orphans"] if one["partition"].endswith("1")]
        log.forget_orphan(lost["partition"], lost["created"])
        (left,) = log.status()["orphans"]
        log.adopt_orphans(names={left["partition"]: "a"})
        (name,) = log.topics()
        topic = log.topic(name)
        topic.append([{"id": 3}], partition=0)
        if topic.partitions == 1:
            topic.add_partitions(1)
    return data, before


def test_its_other_partitions_stay_usable_and_it_begins_empty(given_up):
    data, before = given_up
    back(data, before)
    with opened(data) as log:
        assert log.status()["degraded"]
        told = log.adopt_orphans()
        assert [line for line in told.adopted if "s/a" in line and "partition 1" in line]
    for _ in range(2):  # a second start finds the same
        with opened(data) as log:
            assert log.status()["degraded"] == []
            assert ids(log) == ids(log, 0) == [1, 3]
            assert ids(log, 1) == []
    with opened(data) as log:
        log.topic("s/a").append([{"id": 4}], partition=1)
        assert ids(log) == [1, 3, 4]


def test_rows_of_its_new_life_come_back(given_up):
    data, before = given_up
    with opened(data) as log:
        (name,) = log.topics()
        log.topic(name).append([{"id": 5}], partition=1)
    back(data, before)
    with opened(data) as log:
        told = log.adopt_orphans()
        assert told.left == ()
    with opened(data) as log:
        assert log.status()["degraded"] == []
        assert ids(log) == [1, 3, 5]
        assert ids(log, 1) == [5]


def test_giving_up_another_orphan_keeps_the_rows_of_its_new_life(given_up):
    data, before = given_up
    with opened(data) as log:
        (name,) = log.topics()
        log.topic(name).append([{"id": 5}], partition=1)
        log.create_topic("s/b", {"id": "int64"}).append([{"id": 9}])
    back(data, before)
    with opened(data) as log:
        (other,) = [
            one for one in log.status()["orphans"] if not one["partition"].endswith("1")
        ]
        log.forget_orphan(other["partition"], other["created"])
        assert log.status()["orphans"]  # the new life of partition 1 is still there
    with opened(data) as log:
        assert log.adopt_orphans().left == ()
    with opened(data) as log:
        assert log.status()["degraded"] == []
        assert ids(log) == [1, 3, 5]


def test_giving_up_another_orphan_leaves_it_usable_too(given_up):
    data, before = given_up
    with opened(data) as log:
        log.create_topic("s/b", {"id": "int64"}).append([{"id": 9}])
    back(data, before)
    with opened(data) as log:
        for one in log.status()["orphans"]:
            log.forget_orphan(one["partition"], one["created"])
    with opened(data) as log:
        assert log.status()["degraded"] == []
        assert ids(log) == [1, 3]
        with pytest.raises(HeadraceError):
            log.topic("s/b")
