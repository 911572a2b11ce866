"""Opening stores: a path needs no package, and what a URL needs is named."""

import json
import pickle
import subprocess
import sys
import time
import zipfile

import pytest
from tests.spark.object_stores import s3_location

from headrace.errors import BadConfig, BadRequest
from headrace.spark.spark_session import packed
from headrace.spark.stores.location import location_of
from headrace.spark.stores.options import storage_options
from headrace.spark.stores.store import store_of
from headrace_lab.spark.s3_proxy import Fault
from headrace_lab.spark.s3_server import free_port

# Runs with nothing but the standard library and the archive that executors get.
EXECUTOR = """
import sys
sys.path = [sys.argv[1]] + [each for each in sys.path if "site-packages" not in each]
from headrace.errors import Unavailable
from headrace.spark.stores.location import location_of
from headrace.spark.stores.probe import refuse_unsafe
from headrace.spark.stores.store import store_of
assert sys.argv[1] in sys.modules["headrace.spark.stores.store"].__file__

store = store_of(location_of(sys.argv[2]))
refuse_unsafe(store, "1")
with store.write("x") as file:
    file.write(b"12345")
assert store.tail("x", 10) == b"12345"
assert not {"obstore", "pyarrow", "deltalake", "pyspark"} & set(sys.modules)
try:
    store_of(location_of("s3://bucket/x"))
except Unavailable as error:
    print(error)
"""


def test_an_executor_needs_nothing_for_a_path_and_is_told_what_a_url_needs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-c", EXECUTOR, packed(), str(tmp_path / "table")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout == (
        "s3://bucket/x needs the package obstore, which is not installed here. Install it on "
        "this machine: pip install 'obstore>=0.12,<0.13'\n"
    )


def test_the_archive_of_executors_has_it_all():
    with zipfile.ZipFile(packed()) as archive:
        names = archive.namelist()
    assert "headrace/spark/stores/object_store.py" in names
    assert "headrace/spark/stores/__init__.py" in names


def test_a_location_that_was_sent_opens_the_same_store(s3, bucket, tmp_path):
    for location in (s3_location(s3.endpoint, bucket), location_of(str(tmp_path))):
        assert store_of(location).put_new("x", b"12345")
        there = store_of(pickle.loads(pickle.dumps(location)))
        assert there.url == location.url
        assert there.tail("x", 10) == b"12345"


def test_other_clouds_are_opened(aws, tmp_path):
    key = {"client_email": "a@b", "private_key_id": "1", "private_key": "C4N4RY"}
    aws.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    with pytest.raises(BadConfig, match="for gs://bucket/x cannot be used") as caught:
        store_of(location_of("gs://bucket/x"))
    assert "C4N4RY" not in repr(caught.value)
    aws.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    for url in ("gs://bucket/x", "abfss://box@account.dfs.core.windows.net/x"):
        store = store_of(location_of(url, {"timeout": 1}))
        assert store.url == url
        assert repr(store) == f"ObjectStore({url!r})"
        with pytest.raises(BadRequest, match="unfinished uploads cannot be listed"):
            list(store.uploads.list())
        assert storage_options(location_of(url, {"timeout": 1}))["retry_timeout"] == "1s"


class TestOptionsOfDeltalake:
    def test_a_path_needs_none(self, tmp_path):
        assert storage_options(location_of(str(tmp_path))) == {}

    def test_a_table_is_written_and_read_at_the_same_place(self, s3, bucket, aws):
        import pyarrow as pa
        from deltalake import DeltaTable, write_deltalake

        # What the environment says besides must not lead elsewhere.
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            aws.setenv(name, f"http://127.0.0.1:{free_port()}")
        aws.setenv("AWS_REGION", "eu-west-1")
        location = s3_location(s3.endpoint, bucket, "tables/a b=c%é")
        options = storage_options(location)
        write_deltalake(location.url, pa.table({"n": [1, 2]}), storage_options=options)
        table = DeltaTable(location.url, storage_options=options)
        assert table.to_pyarrow_table().num_rows == 2
        store = store_of(location)
        assert store.head("_delta_log/00000000000000000000.json")
        [data] = [each for each in store.list() if each.name.endswith(".parquet")]
        assert store.tail(data.name, 4) == b"PAR1"

    def test_the_condition_of_a_commit_is_sent(self, proxy, bucket):
        import pyarrow as pa
        from deltalake import write_deltalake

        location = s3_location(proxy.endpoint, bucket)
        options = storage_options(location)
        write_deltalake(location.url, pa.table({"n": [1]}), storage_options=options)
        [entry] = [each for each in proxy.asked if each.target.endswith("0.json")
                   and each.method == "PUT"]  # fmt: skip
        assert entry.headers["if-none-match"] == "*"

    def test_the_timeout_decides_how_long_an_outage_is_waited_for(self, proxy, bucket):
        import pyarrow as pa
        from deltalake import write_deltalake

        location = s3_location(proxy.endpoint, bucket, timeout=20.0)
        options = storage_options(location)
        rows = pa.table({"n": [1]})
        write_deltalake(location.url, rows, storage_options=options)
        proxy.away(5.0)  # longer than ten retries take
        start = time.monotonic()
        write_deltalake(location.url, rows, storage_options=options, mode="append")
        assert 4 < time.monotonic() - start < 20

        proxy.stop()
        short = storage_options(s3_location(proxy.endpoint, bucket, timeout=4.0))
        start = time.monotonic()
        with pytest.raises(OSError, match="retry_timeout"):
            write_deltalake(location.url, rows, storage_options=short, mode="append")
        assert 3 < time.monotonic() - start < 15

    def test_credentials_of_a_profile_are_used(self, proxy, bucket, aws, tmp_path):
        import pyarrow as pa
        from deltalake import write_deltalake

        (tmp_path / "aws").mkdir()
        (tmp_path / "aws" / "credentials").write_text(
            "[lake]\naws_access_key_id = lake-id\naws_secret_access_key = s\n"
            "aws_session_token = lake-token\n"
        )
        aws.setenv("AWS_SESSION_TOKEN", "of-others")
        location = s3_location(proxy.endpoint, bucket, profile="lake")
        write_deltalake(
            location.url, pa.table({"n": [1]}), storage_options=storage_options(location)
        )
        assert store_of(location).put_new("x", b"")
        list(store_of(location).uploads.list())
        assert len(proxy.asked) > 3
        for each in proxy.asked:
            assert "Credential=lake-id/" in each.headers["authorization"]
            assert each.headers["x-amz-security-token"] == "lake-token"

    def test_virtual_hosts_have_the_bucket_in_the_endpoint(self, aws):
        more = {"endpoint": "https://host", "path_style": False}
        options = storage_options(location_of("s3://bucket/x", more))
        assert options["AWS_ENDPOINT_URL"] == "https://bucket.host"
        assert options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "true"


def test_virtual_hosts_are_asked_by_that_name(proxy, aws):
    proxy.add(Fault.ANSWER, "GET", status=404, code="NoSuchBucket", times=2)
    aws.setenv("HTTP_PROXY", proxy.endpoint)  # so that the host needs no address
    aws.setenv("http_proxy", proxy.endpoint)
    more = {"path_style": False, "timeout": 2.0}
    store = store_of(s3_location("http://s3.example", "bucket", **more))
    for ask in (lambda: list(store.list()), lambda: list(store.uploads.list())):
        with pytest.raises(BadConfig, match="there is no such bucket"):
            ask()
    assert [each.method for each in proxy.asked] == ["GET", "GET"]
    assert {each.headers["host"] for each in proxy.asked} == {"bucket.s3.example"}
    assert all(each.target.startswith("http://bucket.s3.example/?") for each in proxy.asked)
