"""Fixtures for tests with an S3: import them where they are used, or into a conftest.

`s3` is one moto for all tests of a process; `bucket` is an empty bucket in it for each test;
`proxy` stands before it and breaks what it is told to. The environment of a test that uses
them has the keys, and nothing else of AWS.
"""

import os

import pytest

from headrace.spark.stores.location import location_of
from headrace_lab.spark.s3_proxy import S3Proxy
from headrace_lab.spark.s3_server import KEYS, an_s3, settings_of


@pytest.fixture(scope="session")
def s3():
    with an_s3() as server:
        yield server


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """Have an environment with keys, without what this machine says about AWS."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws" / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws" / "config"))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def bucket(s3, aws):
    return s3.make_bucket()


@pytest.fixture
def proxy(s3):
    with S3Proxy(s3.endpoint) as proxy:
        yield proxy


def s3_location(endpoint, bucket, prefix="tables/orders", **more):
    return location_of(f"s3://{bucket}/{prefix}", settings_of(endpoint, **more))
