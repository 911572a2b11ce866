"""A store in a bucket: whole or absent, whatever becomes of requests and their answers."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.spark.object_stores import s3_location

from headrace.errors import BadConfig, BadRequest, StorageFailed
from headrace.spark.stores import object_store
from headrace.spark.stores.location import location_of
from headrace.spark.stores.object_store import MEMORY_MAX, PUT_MAX
from headrace.spark.stores.probe import refuse_unsafe
from headrace.spark.stores.seam import (
    CredentialsExpired,
    NotInStore,
    StoredFile,
    StoreRefused,
    Upload,
)
from headrace.spark.stores.store import store_of
from headrace_lab.spark.s3_proxy import Fault
from headrace_lab.spark.s3_server import free_port

BIG = b"0123456789abcdef" * (PUT_MAX // 16 * 3)
# What S3 and the proxies before it do to a put that was carried out, or was not.
AFTER = [
    (Fault.LOSE, {}),
    (Fault.ANSWER_AFTER, {"status": 503}),
    (Fault.ANSWER_AFTER, {"status": 500, "code": "InternalError"}),
]
BEFORE = [
    (Fault.CUT, {}),
    (Fault.ANSWER, {"status": 503}),
    (Fault.ANSWER, {"status": 409, "code": "ConditionalRequestConflict"}),
]


@pytest.fixture
def store(s3, bucket):
    return store_of(s3_location(s3.endpoint, bucket))


@pytest.fixture
def broken(proxy, bucket):
    """A store whose requests go through the proxy."""
    return store_of(s3_location(proxy.endpoint, bucket))


def impatient(proxy, bucket, seconds=1.5):
    return store_of(s3_location(proxy.endpoint, bucket, timeout=seconds))


def put(store, name, data):
    with store.write(name) as file:
        file.write(data)


class TestWriting:
    @pytest.mark.parametrize("data", [b"", b"12345", BIG], ids=["empty", "small", "big"])
    def test_a_written_file_is_there_whole(self, store, data):
        put(store, "a/b=c d%é~*'x.parquet", data)
        found = store.head("a/b=c d%é~*'x.parquet")
        assert (found.name, found.size) == ("a/b=c d%é~*'x.parquet", len(data))
        assert found.tag
        assert list(store.list()) == [found]
        assert store.read(found.name, 0, len(data)) == data
        assert list(store.uploads.list()) == []

    @pytest.mark.parametrize("data", [b"new", BIG], ids=["small", "big"])
    def test_it_never_replaces_a_file(self, store, data):
        put(store, "x", b"old")
        with pytest.raises(BadRequest, match="/orders/x: a file of that name is there already"):
            put(store, "x", data)
        assert store.tail("x", 10) == b"old"

    @pytest.mark.parametrize("data", [b"half", BIG], ids=["small", "big"])
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_nothing_is_left_if_the_block_raises(self, store, error, data):
        def write():
            with store.write("x") as file:
                file.write(data)
                raise error

        with pytest.raises(error):
            write()
        assert list(store.list()) == []
        assert list(store.uploads.list()) == []

    def test_a_library_may_close_the_file(self, store):
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pa.table({"n": list(range(1000))})
        with store.write("x.parquet") as file:
            pq.write_table(rows, file)
            file.close()
        data = store.tail("x.parquet", 10**6)
        assert pq.read_table(pa.BufferReader(data)) == rows

    def test_a_file_larger_than_memory_waits_on_the_disk(self, store, tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        piece = bytes(range(256)) * 4096
        count = MEMORY_MAX // len(piece) + 2
        with store.write("x") as file:
            for _ in range(count):
                file.write(piece)
            assert held_in(tmp_path) >= MEMORY_MAX
        assert store.head("x").size == count * len(piece)
        assert store.read("x", len(piece) * (count - 1), len(piece)) == piece

    def test_a_full_local_disk_is_named(self, store):
        def full():
            with store.write("x"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(StorageFailed, match="holding the new file x failed: No space left"):
            full()
        assert store.head("x") is None

    @pytest.mark.parametrize("good", [0, 2])
    def test_a_local_disk_that_cannot_be_read_is_named(self, store, monkeypatch, good):
        reads, read = [], object_store._Spool.read

        def failing(spool, *size):
            reads.append(size)
            if len(reads) > good:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(spool, *size)

        monkeypatch.setattr(object_store._Spool, "read", failing)
        with pytest.raises(StorageFailed, match="holding the new file x failed: Input/output"):
            put(store, "x", BIG)
        assert store.head("x") is None
        assert list(store.uploads.list()) == []


def held_in(directory):
    """Return the bytes of the files in a directory that this process has open."""
    size = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(each.readlink()).startswith(str(directory)):
                size += each.stat().st_size
    return size


class TestLostAnswers:
    @pytest.mark.parametrize(("fault", "more"), AFTER)
    def test_put_new_knows_its_own_file(self, broken, proxy, fault, more):
        proxy.add(fault, **more)
        assert broken.put_new("x", b"one")
        assert [each.fault for each in proxy.asked if each.method == "PUT"] == [fault, None]
        assert not broken.put_new("x", b"one")
        assert broken.tail("x", 9) == b"one"

    @pytest.mark.parametrize(("fault", "more"), BEFORE)
    def test_put_new_tries_again(self, broken, proxy, fault, more):
        proxy.add(fault, times=2, **more)
        assert broken.put_new("x", b"one")
        assert broken.tail("x", 9) == b"one"

    @pytest.mark.parametrize("data", [b"one", b"two"])
    def test_put_new_does_not_take_the_file_of_another(self, broken, store, proxy, data):
        assert store.put_new("x", b"one")
        for fault, more in AFTER + BEFORE:
            proxy.add(fault, **more)
            assert not broken.put_new("x", data)
        assert broken.tail("x", 9) == b"one"

    def test_one_of_many_writers_wins_though_answers_are_lost(self, proxy, bucket):
        for round_ in range(10):
            for fault, more in AFTER:
                proxy.add(fault, target=f"/{round_}", times=2, **more)
            stores = [store_of(s3_location(proxy.endpoint, bucket)) for _ in range(4)]
            with ThreadPoolExecutor(4) as writers:
                won = list(
                    writers.map(
                        lambda store, name, number: store.put_new(name, b"%d" % number),
                        stores,
                        [str(round_)] * 4,
                        range(4),
                    )
                )
            assert won.count(True) == 1
            assert stores[0].tail(str(round_), 9) == b"%d" % won.index(True)

    def test_a_put_without_an_answer_is_repeated(self, proxy, bucket):
        store = impatient(proxy, bucket)
        proxy.add(Fault.HANG)
        assert store.put_new("x", b"one")

    @pytest.mark.parametrize(("fault", "more"), AFTER + BEFORE[:2])
    @pytest.mark.parametrize("data", [b"12345", BIG], ids=["small", "big"])
    def test_a_file_is_written_all_the_same(self, broken, proxy, fault, more, data):
        proxy.add(fault, "PUT", **more)
        if data is BIG:
            proxy.add(fault, "POST", target="uploads", **more)
            proxy.add(fault, "POST", target="uploadId", **more)
        put(broken, "x", data)
        assert broken.read("x", 0, len(data)) == data
        assert [each.size for each in broken.list()] == [len(data)]

    def test_a_large_file_that_landed_is_known_after_a_refused_repeat(self, broken, proxy):
        proxy.add(
            Fault.ANSWER_AFTER, "POST", target="uploadId", status=404, code="NoSuchUpload"
        )
        put(broken, "x", BIG)
        assert broken.head("x").size == len(BIG)

    def test_a_store_without_metadata_is_refused(self, broken, store, proxy, bucket, s3):
        import boto3

        client = boto3.client("s3", endpoint_url=s3.endpoint)
        client.put_object(Bucket=bucket, Key="tables/orders/x", Body=b"one")
        with pytest.raises(BadRequest, match="the store does not keep the metadata of files"):
            broken.put_new("x", b"one")


class TestOutages:
    def test_a_short_one_is_waited_for(self, broken, proxy, s3, bucket):
        assert broken.put_new("before", b"1")  # the client has a connection
        proxy.away(4.0)  # longer than ten retries take
        start = time.monotonic()
        assert broken.put_new("x", b"one")
        assert 3.5 < time.monotonic() - start < 10
        assert broken.tail("x", 3) == b"one"

    def test_the_timeout_decides_when_it_is_given_up(self, bucket):
        store = store_of(s3_location(f"http://127.0.0.1:{free_port()}", bucket, timeout=5.0))
        start = time.monotonic()
        with pytest.raises(StorageFailed, match="it refuses connections") as caught:
            put(store, "x", b"12345")
        assert 4.0 < time.monotonic() - start < 12
        assert caught.value.cause.errno == errno.ECONNREFUSED

    def test_ctrl_c_ends_the_wait(self, bucket):
        store = store_of(s3_location(f"http://127.0.0.1:{free_port()}", bucket, timeout=60.0))
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            put(store, "x", b"12345")
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize(("fault", "more"), [(Fault.ANSWER, {"times": 99})])
    def test_an_upload_that_fails_leaves_nothing(self, proxy, bucket, s3, fault, more):
        proxy.add(fault, target="partNumber=2", **more)
        store = impatient(proxy, bucket)
        with pytest.raises(StorageFailed, match="the store answers 503 SlowDown"):
            put(store, "x", BIG)
        assert list(store.list()) == []
        assert list(store.uploads.list()) == []


class TestReading:
    def test_ranges_and_tails_are_exact(self, store):
        put(store, "x", b"0123456789")
        put(store, "empty", b"")
        assert store.read("x", 2, 3) == b"234"
        assert store.read("x", 10, 0) == b""
        assert store.tail("x", 4) == b"6789"
        assert store.tail("x", 11) == b"0123456789"
        assert store.tail("x", 0) == b""
        assert store.tail("empty", 8) == b""

    @pytest.mark.parametrize("start", [8, 10, 99])
    def test_a_file_that_is_too_short_is_an_error(self, store, start):
        put(store, "x", b"0123456789")
        with pytest.raises(StorageFailed, match=f"expected 3 bytes from {start} on, found"):
            store.read("x", start, 3)

    def test_a_missing_file_is_named(self, store, bucket):
        asked = (
            lambda: store.read("x/y", 0, 1),
            lambda: store.read("x/y", 0, 0),
            lambda: store.tail("x/y", 1),
            lambda: store.tail("x/y", 0),
        )
        for ask in asked:
            with pytest.raises(NotInStore, match=f"s3://{bucket}/.*/x/y: there is no"):
                ask()
        assert store.head("x/y") is None

    def test_all_files_are_listed_and_only_those_of_the_location(self, store, s3, bucket):
        assert list(store.list()) == []
        put(store_of(s3_location(s3.endpoint, bucket, "tables/orders2")), "x", b"")
        names = ["x", ".hidden", "_headrace/p/1.json", "a/b/c", "ab"]
        for name in names:
            put(store, name, name.encode())
        assert sorted(each.name for each in store.list()) == sorted(names)
        assert [each.name for each in store.list("a")] == ["a/b/c"]
        whole = store_of(s3_location(s3.endpoint, bucket, ""))
        assert "tables/orders2/x" in [each.name for each in whole.list()]

    def test_more_files_than_fit_one_answer_are_listed_and_removed(self, store):
        names = {f"{number:04}" for number in range(1005)}
        for name in names:
            assert store.put_new(name, b"")
        assert {each.name for each in store.list()} == names
        store.remove(names)
        assert list(store.list()) == []

    def test_removing_what_is_gone_is_fine(self, store):
        put(store, "a/x", b"")
        store.remove(["a/x", "a/x", "b/y"])
        store.remove(["a/x"])
        store.remove([])
        assert list(store.list()) == []
        store.durable(["nothing"])


class TestRefusals:
    def test_a_missing_bucket_is_named(self, s3, aws):
        store = store_of(s3_location(s3.endpoint, "not-there"))
        asked = (
            lambda: put(store, "x", b""),
            lambda: store.head("x"),
            lambda: store.tail("x", 1),
            lambda: list(store.list()),
            lambda: list(store.uploads.list()),
            lambda: refuse_unsafe(store, "1"),
        )
        for ask in asked:
            with pytest.raises(BadConfig, match="orders: there is no such bucket"):
                ask()

    @pytest.mark.parametrize(
        ("status", "code", "error", "words"),
        [
            (403, "AccessDenied", StoreRefused, "is not allowed"),
            (400, "ExpiredToken", CredentialsExpired, "the credentials have expired"),
            (403, "InvalidAccessKeyId", BadConfig, "does not accept them"),
            (403, "SignatureDoesNotMatch", BadConfig, "does not accept them"),
            (403, "RequestTimeTooSkewed", StorageFailed, "the clocks differ too much"),
            (400, "AuthorizationHeaderMalformed", BadConfig, "another region"),
            (307, "TemporaryRedirect", BadConfig, "another region"),
            (400, "Strange", StorageFailed, "the store answers 400 Strange"),
            (507, "InsufficientStorage", StorageFailed, "the store answers 507"),
        ],
    )
    def test_the_reason_decides_the_error(self, proxy, bucket, status, code, error, words):
        store = impatient(proxy, bucket)
        assert store.put_new("there", b"1")
        for method in ("GET", "PUT", "HEAD", "POST"):
            proxy.add(Fault.ANSWER, method, status=status, code=code, times=99)
        asked = (
            lambda: store.put_new("x", b""),
            lambda: put(store, "x", BIG),
            lambda: store.head("there"),
            lambda: store.tail("there", 1),
            lambda: list(store.list()),
            lambda: store.remove(["there"]),
            lambda: list(store.uploads.list()),
        )
        for ask in asked:
            with pytest.raises(error, match=words) as caught:
                ask()
            assert type(caught.value) is error
            assert caught.value.hint

    def test_each_way_not_to_reach_it_is_named(self, aws):
        for endpoint, words in (
            ("http://nowhere.invalid", "its name is not known"),
            (f"http://127.0.0.1:{free_port()}", "it refuses connections"),
        ):
            store = store_of(s3_location(endpoint, "bucket", timeout=1.0))
            for ask in (lambda s=store: s.tail("x", 1), lambda s=store: s.put_new("x", b"")):
                with pytest.raises(StorageFailed, match=words) as caught:
                    ask()
                assert endpoint in str(caught.value)

    def test_a_server_that_does_not_answer_is_a_timeout(self, proxy, bucket):
        store = impatient(proxy, bucket)
        proxy.add(Fault.HANG, "GET", times=99)
        with pytest.raises(StorageFailed, match="it does not answer in time") as caught:
            store.tail("x", 1)
        assert caught.value.cause.errno == errno.ETIMEDOUT

    @pytest.mark.parametrize("name", ["", "/x", "a//b", "../x", "a/./b", "a\nb", "x/"])
    def test_a_name_that_leads_outside_is_refused(self, store, name):
        for ask in (lambda: put(store, name, b""), lambda: store.head(name)):
            with pytest.raises(BadRequest, match="is not a valid name"):
                ask()


class TestProbe:
    def test_a_good_store_is_accepted_and_left_empty(self, store, tmp_path):
        for each in (store, store_of(location_of(str(tmp_path)))):
            refuse_unsafe(each, "1")
            refuse_unsafe(each, "1")
            assert list(each.list()) == []

    def test_a_store_that_ignores_conditions_is_refused(self, broken, proxy):
        proxy.add(Fault.IGNORE_CONDITION, times=99)
        with pytest.raises(BadRequest, match="this store replaces a file that is there"):
            refuse_unsafe(broken, "1")
        assert list(broken.list()) == []

    def test_lost_answers_do_not_make_a_good_store_look_bad(self, broken, proxy):
        for fault, more in AFTER + BEFORE:
            proxy.add(fault, **more)
        refuse_unsafe(broken, "1")

    def test_a_file_system_without_links_or_syncs_is_refused(self, tmp_path, monkeypatch):
        store = store_of(location_of(str(tmp_path)))
        for name, number, words in (
            ("link", errno.EPERM, "this file system has no hard links"),
            ("fsync", errno.EINVAL, "cannot sync"),
        ):

            def failed(*_, number=number):
                raise OSError(number, os.strerror(number))

            with monkeypatch.context() as patch:
                patch.setattr(os, name, failed)
                with pytest.raises(BadRequest, match=words):
                    refuse_unsafe(store, "1")
        assert list(store.list()) == []
        assert list(store.uploads.list()) == []


# Begins an upload, says so, and waits to be killed.
UPLOADER = """
import sys
from headrace.spark.stores import object_store
from headrace.spark.stores import object_store
from headrace.spark.stores.location import location_of
from headrace.spark.stores.store import store_of

store = store_of(location_of(sys.argv[1], {"endpoint": sys.argv[2], "allow_http": True}))
with store.write(sys.argv[3]) as file:
    file.write(b"z" * (5 * object_store.PUT_MAX))
print("written", flush=True)
"""


class TestUploads:
    def test_what_a_killed_writer_leaves_is_listed_and_aborted(self, store, proxy, bucket, s3):
        proxy.add(Fault.HANG, target="partNumber=3", times=99)
        where = f"s3://{bucket}/tables/orders"
        process = subprocess.Popen(
            [sys.executable, "-c", UPLOADER, where, proxy.endpoint, "a/b c%é"],
            stdout=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 60
            while not any("partNumber=3" in each.target for each in proxy.asked):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
            assert process.wait() == -signal.SIGKILL
            assert process.stdout.read() == b""
            process.stdout.close()
        assert list(store.list()) == []
        [upload] = store.uploads.list()
        assert upload.name == "a/b c%é"
        assert list(store.uploads.list("a")) == [upload]
        assert list(store.uploads.list("b")) == []
        store.uploads.abort(upload)
        store.uploads.abort(upload)
        assert list(store.uploads.list()) == []
        assert store.head("a/b c%é") is None

    def test_more_uploads_than_fit_one_answer_are_listed(self, store, bucket, s3, proxy):
        first = "<Upload><Key>tables/orders/x</Key><UploadId>1</UploadId></Upload>"
        more = "<IsTruncated>true</IsTruncated><NextKeyMarker>tables/orders/x</NextKeyMarker>"
        text = (
            '<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"{more}<NextUploadIdMarker>1</NextUploadIdMarker>{first}"
            "</ListMultipartUploadsResult>"
        )
        proxy.add(Fault.ANSWER, "GET", target="uploads", status=200, body=text)
        broken = store_of(s3_location(proxy.endpoint, bucket))
        assert list(broken.uploads.list()) == [Upload("x", "1")]
        assert "key-marker=tables/orders/x&prefix=tables/orders/&upload-id-marker=1" in (
            proxy.asked[-1].target
        )

    def test_the_role_of_a_machine_cannot_list_them(self, bucket, s3, aws):
        aws.delenv("AWS_ACCESS_KEY_ID")
        aws.delenv("AWS_SECRET_ACCESS_KEY")
        aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
        store = store_of(s3_location(s3.endpoint, bucket, timeout=1.0))
        with pytest.raises(BadRequest, match=r"needs keys.*lifecycle rule"):
            list(store.uploads.list())


def test_a_tag_changes_with_the_content(store):
    put(store, "x", b"one")
    before = store.head("x")
    store.remove(["x"])
    put(store, "x", b"two")
    assert before.tag != store.head("x").tag
    assert StoredFile("x", 3, store.head("x").tag) == store.head("x")
