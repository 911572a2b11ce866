"""One Spark session for all tests, and real nodes that they read from."""

import os

import pytest
from tests.client.doors import RunningNode
from tests.spark.object_stores import aws, bucket, proxy, s3  # noqa: F401 - fixtures

import headrace
from headrace_lab.spark.s3_server import KEYS

SCHEMA = {"id": "int64", "name": "string"}


@pytest.fixture(scope="session")
def keys():
    """The keys of an S3, in the environment that Spark's workers inherit."""
    os.environ.update(KEYS)
    yield
    for name in KEYS:
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def spark(keys, headrace_spark):
    headrace_spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    return headrace_spark


@pytest.fixture
def log(tmp_path):
    with headrace.open(tmp_path / "data") as log:
        yield log


@pytest.fixture
def node(tmp_path):
    with RunningNode(tmp_path / "node") as node:
        yield node


@pytest.fixture
def topic(log):
    return log.create_topic("shop/orders", SCHEMA, partitions=2)


def rows(start, end):
    return [{"id": number, "name": f"n{number}"} for number in range(start, end)]
