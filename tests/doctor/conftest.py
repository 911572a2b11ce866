"""Logs for all tests, each made once by a real node; each test harms a copy."""

import pytest
from tests.doctor import logs, two_shards


@pytest.fixture(scope="session")
def healthy(tmp_path_factory):
    """A log that was stopped cleanly, and what was appended to it."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    return path, logs.fill(path)


@pytest.fixture
def log(healthy, tmp_path):
    """A copy of that log, to be harmed."""
    return logs.copy_of(healthy[0], tmp_path / "data")


@pytest.fixture
def appended(healthy):
    return healthy[1]


@pytest.fixture(scope="session")
def twins(tmp_path_factory):
    """A small log of two shards as a clean stop and as a kill leave it, and its rows."""
    room = tmp_path_factory.mktemp("twins")
    return room / "stopped", room / "killed", two_shards.fill(room / "stopped", room / "killed")


@pytest.fixture
def stopped(twins, tmp_path):
    return logs.copy_of(twins[0], tmp_path / "stopped")


@pytest.fixture
def killed(twins, tmp_path):
    return logs.copy_of(twins[1], tmp_path / "killed")


@pytest.fixture
def counts(twins):
    return twins[2]
