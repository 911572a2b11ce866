"""Credentials: where they come from, and that they get nowhere else."""

import copy
import datetime
import pickle
import re
import socket
from urllib.parse import quote

import pytest
from tests.spark.object_stores import s3_location

from headrace.errors import BadConfig, HeadraceError, StorageFailed
from headrace.spark.stores import credentials
from headrace.spark.stores.credentials import AccessKeys, S3Access, access_of
from headrace.spark.stores.location import location_of
from headrace.spark.stores.options import storage_options
from headrace.spark.stores.s3_uploads import S3Uploads
from headrace.spark.stores.store import store_of
from headrace_lab.spark.s3_proxy import Fault, S3Proxy

CANARY = "C4N4RY/s3cr3t+Value"
FILE = f"""
[default]
aws_access_key_id = default-id
aws_secret_access_key = {CANARY}-default

[lake]
aws_access_key_id = lake-id
aws_secret_access_key = {CANARY}-lake%1
aws_session_token = {CANARY}-token

[half]
aws_access_key_id = half-id

[elsewhere]
credential_process = /bin/something {CANARY}
"""
CONFIG = """
[default]
region = eu-north-1
[profile lake]
region = eu-west-3
[profile sso]
sso_session = corp
"""
S3 = location_of("s3://bucket/tables")


@pytest.fixture
def files(aws, tmp_path):
    folder = tmp_path / "aws"
    folder.mkdir()
    (folder / "credentials").write_text(FILE)
    (folder / "config").write_text(CONFIG)
    return aws


@pytest.fixture
def no_keys(files):
    files.delenv("AWS_ACCESS_KEY_ID")
    files.delenv("AWS_SECRET_ACCESS_KEY")
    return files


def profile(name):
    return location_of("s3://bucket/tables", {"profile": name})


class TestLookup:
    def test_the_environment_comes_first(self, files):
        files.setenv("AWS_SESSION_TOKEN", "token")
        files.setenv("AWS_PROFILE", "lake")
        assert access_of(S3).keys == AccessKeys("headrace", "headrace-secret", "token")

    def test_a_profile_of_the_location_comes_before_it(self, files):
        found = access_of(profile("lake"))
        assert found.keys == AccessKeys("lake-id", f"{CANARY}-lake%1", f"{CANARY}-token")
        assert found.region == "eu-west-3"

    def test_a_profile_of_the_environment(self, no_keys):
        assert access_of(S3).keys.id == "default-id"
        assert access_of(S3).region == "eu-north-1"
        no_keys.setenv("AWS_PROFILE", "lake")
        assert access_of(S3).keys.id == "lake-id"

    def test_the_region_and_the_endpoint(self, files):
        assert access_of(S3) == S3Access("", "eu-north-1", access_of(S3).keys)
        files.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        files.setenv("AWS_ENDPOINT_URL", "https://own:9000/")
        assert access_of(S3).region == "eu-west-1"
        assert access_of(S3).endpoint == "https://own:9000"
        files.setenv("AWS_REGION", "eu-west-2")
        assert access_of(S3).region == "eu-west-2"
        more = {"region": "us-west-2", "endpoint": "https://mine", "path_style": False}
        found = access_of(location_of("s3://bucket/tables", more))
        assert (found.region, found.endpoint) == ("us-west-2", "https://bucket.mine")

    def test_an_endpoint_of_the_environment_keeps_the_rules(self, files):
        files.setenv("AWS_ENDPOINT_URL_S3", "http://own:9000")
        with pytest.raises(BadConfig, match="http://own:9000 is not encrypted"):
            access_of(S3)
        files.setenv("AWS_ENDPOINT_URL_S3", f"https://user:{quote(CANARY, safe='')}@own:9000")
        with pytest.raises(BadConfig, match="has a user or a password") as caught:
            access_of(S3)
        assert "C4N4RY" not in words_of(caught.value)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("nope", "'nope' has no credentials in "),
            ("half", "'half' has no credentials in "),
            ("elsewhere", "by credential_process, which is not supported"),
            ("sso", "by sso_session, which is not supported"),
        ],
    )
    def test_a_profile_without_credentials_is_named(self, files, name, words):
        with pytest.raises(BadConfig, match=words) as caught:
            access_of(profile(name))
        assert CANARY not in str(caught.value)

    def test_half_a_pair_is_refused(self, files):
        files.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(BadConfig, match="AWS_SECRET_ACCESS_KEY: not set, but"):
            access_of(S3)

    def test_a_token_of_other_credentials_is_refused(self, no_keys):
        no_keys.setenv("AWS_SESSION_TOKEN", CANARY)
        with pytest.raises(BadConfig, match="AWS_SESSION_TOKEN: set, but") as caught:
            access_of(S3)
        assert CANARY not in str(caught.value)
        assert access_of(profile("lake")).keys.token == f"{CANARY}-token"

    def test_a_file_that_is_none_is_not_quoted(self, files, tmp_path):
        (tmp_path / "aws" / "credentials").write_text(f"aws_secret_access_key {CANARY}\n")
        with pytest.raises(BadConfig, match="credentials: it is not an INI file") as caught:
            access_of(profile("lake"))
        assert CANARY not in words_of(caught.value)

    def test_none_at_all_is_said_soon(self, aws):
        aws.delenv("AWS_ACCESS_KEY_ID")
        aws.delenv("AWS_SECRET_ACCESS_KEY")
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = closed.getsockname()
        aws.setattr(credentials, "_MACHINE", address)
        for ask in (store_of, storage_options):
            with pytest.raises(BadConfig, match="there are none: not in the environment"):
                ask(S3)
        aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
        aws.delattr(credentials, "_MACHINE")  # it is not asked
        with pytest.raises(BadConfig, match="there are none: not in the environment"):
            store_of(S3)

    def test_a_role_is_left_to_the_library(self, aws):
        aws.delenv("AWS_ACCESS_KEY_ID")
        aws.delenv("AWS_SECRET_ACCESS_KEY")
        aws.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")
        assert access_of(S3).keys is None
        assert "AWS_ACCESS_KEY_ID" not in storage_options(S3)


def words_of(error):
    """Return all that can be printed of an error and of what came before it."""
    found = ""
    while error is not None:
        found += f"{error} {error!r} {error.args!r} {vars(error)!r}"
        error = error.__cause__ or error.__context__
    return found


class TestSecrets:
    def test_they_are_neither_shown_nor_pickled(self, files):
        access = access_of(profile("lake"))
        store = store_of(profile("lake"))
        for each in (access, access.keys, store, store.uploads, store._client):
            assert CANARY not in repr(each)
            assert CANARY not in str(each)
        for each in (access, access.keys, store):
            with pytest.raises(TypeError):
                pickle.dumps(each)
            with pytest.raises(TypeError):
                copy.deepcopy(each)
        assert CANARY.encode() not in pickle.dumps(profile("lake"))

    @pytest.mark.parametrize(
        "fault", [Fault.ANSWER, Fault.CUT, Fault.HANG], ids=lambda fault: fault.name
    )
    def test_no_error_has_them_whatever_the_store_answers(self, bucket, proxy, aws, fault):
        aws.setenv("AWS_ACCESS_KEY_ID", f"ID-{CANARY}")
        aws.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        aws.setenv("AWS_SESSION_TOKEN", f"TOKEN-{CANARY}")
        store = store_of(s3_location(proxy.endpoint, bucket, timeout=1.0))
        asked = (
            lambda: store.put_new("x", b""),
            lambda: store.head("x"),
            lambda: store.tail("x", 1),
            lambda: list(store.list()),
            lambda: store.remove(["x"]),
            lambda: list(store.uploads.list()),
        )
        body = (
            f"<Error><Code>{CANARY}</Code><AWSAccessKeyId>ID-{CANARY}</AWSAccessKeyId></Error>"
        )
        statuses = (400, 403, 500) if fault is Fault.ANSWER else (0,)
        for status in statuses:
            proxy.clear()
            for method in ("GET", "PUT", "HEAD", "POST"):
                proxy.add(fault, method, status=status, body=body, times=999)
            for ask in asked if status else asked[:3]:
                with pytest.raises(HeadraceError) as caught:
                    ask()
                assert CANARY not in words_of(caught.value)
        assert any(CANARY in str(each.headers) for each in proxy.asked)  # it was sent

    def test_no_error_quotes_an_answer_that_is_not_understood(self, bucket, proxy, aws):
        aws.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
        store = store_of(s3_location(proxy.endpoint, bucket, timeout=1.0))
        cut = f"<ListBucketResult>{CANARY}"
        for body in (f"not XML: {CANARY}", cut):
            proxy.add(Fault.ANSWER, "GET", status=200, body=body)
            with pytest.raises(StorageFailed) as caught:
                list(store.list())
            assert CANARY not in words_of(caught.value)
        for body in (f"not XML: {CANARY}", cut, f"{cut}</ListBucketResult>"):
            proxy.add(Fault.ANSWER, "GET", status=200, body=body)
            with pytest.raises(StorageFailed, match="200 without a list") as caught:
                list(store.uploads.list())
            assert CANARY not in words_of(caught.value)

    def test_a_redirect_to_another_host_gets_none(self, bucket, proxy, s3):
        store = store_of(s3_location(proxy.endpoint, bucket, timeout=1.0))
        with S3Proxy(s3.endpoint) as other:
            for ask in (lambda: list(store.list()), lambda: list(store.uploads.list())):
                there = f"{other.endpoint}/elsewhere"
                proxy.add(Fault.ANSWER, "GET", status=307, location=there)
                with pytest.raises(HeadraceError):
                    ask()
            assert not any("authorization" in each.headers for each in other.asked)


class TestSignature:
    @pytest.mark.parametrize("token", ["", "a/token+="])
    @pytest.mark.parametrize(
        ("key", "query"),
        [
            ("", {"uploads": "", "prefix": "tables/a b+c%é~*'/"}),
            ("tables/a b=c d%é~*'/x", {"uploadId": "a/+=~b"}),
        ],
    )
    def test_it_is_as_amazons_own_library_makes_it(self, aws, key, query, token):
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        keys = AccessKeys("id", "secret", token)
        now = datetime.datetime(2026, 11, 20, 1, 2, 3, tzinfo=datetime.UTC)
        access = S3Access("http://127.0.0.1:9000", "eu-west-1", keys)
        uploads = S3Uploads(S3, access, now)
        ours = uploads._signed(keys, "GET", key, query)

        aws.setattr("botocore.auth.get_current_datetime", lambda: now.replace(tzinfo=None))
        theirs = AWSRequest("GET", ours.full_url, headers={})
        S3SigV4Auth(Credentials("id", "secret", token or None), "s3", "eu-west-1").add_auth(
            theirs
        )
        found = re.search(r"Signature=(\w+)", theirs.headers["Authorization"])[1]
        assert ours.get_header("Authorization").endswith(f"Signature={found}")
