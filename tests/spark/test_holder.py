"""A directory that no process holds: a node is started for Spark, and ends by itself."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spark.conftest import SCHEMA, rows

import headrace
from headrace.errors import BadRequest, DirectoryHeld, Unavailable
from headrace.spark import holder
from headrace.spark.holder import address_at
from headrace.wire.address import SOCKET_NAME


@pytest.fixture
def data(tmp_path):
    """A log that was closed; whoever holds it at the end is stopped."""
    with headrace.open(tmp_path / "data") as log:
        log.create_topic("shop/orders", SCHEMA).append(rows(0, 10))
    yield tmp_path / "data"
    pid = holder_of(tmp_path / "data")
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


def holder_of(data):
    try:
        headrace.open(data).close()
    except DirectoryHeld as error:
        return error.pid
    return None


def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_spark_reads_a_directory_that_nobody_holds(spark, data):
    frame = spark.read.format("headrace").option("topic", "shop/orders")
    assert frame.option("path", str(data)).load().count() == 10
    assert holder_of(data) not in (None, os.getpid())


def test_of_several_that_come_at_once_one_holds_it_and_all_use_it(data):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(address_at, [str(data)] * 4))
    assert len(found) == 1
    with headrace.connect(found.pop()) as log:
        assert log.topic("shop/orders").read().row_count == 10


def test_one_that_was_killed_leaves_a_socket_that_nobody_listens_on(data):
    address = address_at(str(data))
    os.kill(holder_of(data), signal.SIGKILL)
    until(lambda: not holder._answers(data / SOCKET_NAME))
    assert (data / SOCKET_NAME).exists()
    assert address_at(str(data)) == address
    with headrace.connect(address) as log:
        assert log.topic("shop/orders").read().row_count == 10


def test_it_ends_when_nobody_is_there_any_more(data, monkeypatch):
    monkeypatch.setattr(holder, "IDLE_EXIT", "1s")
    address_at(str(data))
    until(lambda: holder_of(data) is None)


def test_what_cannot_be_started_is_told_by_its_own_words(data, tmp_path, monkeypatch):
    with pytest.raises(Unavailable, match="nowhere holds no log"):
        address_at(str(tmp_path / "nowhere"))
    monkeypatch.setenv("HEADRACE_SEAL__SIZE", "nonsense")
    with pytest.raises(Unavailable, match=r"did not come: .*nonsense"):
        address_at(str(data))
    with pytest.raises(BadRequest, match="too long for a socket"):
        address_at(str(tmp_path / ("x" * 120)))
