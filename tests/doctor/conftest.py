"""One log for all tests, made once by a real node; each test harms a copy."""

import pytest
from tests.doctor import logs


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
