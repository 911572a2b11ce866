"""A location is plain data without secrets: what is not supported is refused by name."""

import pickle

import pytest

from headrace.errors import BadConfig
from headrace.spark.stores.location import Location, location_of

CANARY = "c4n4ryc4n4ry"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/data/orders", "/data/orders"),
        ("/data//orders/", "/data/orders"),
        ("/data/a:b%20c", "/data/a:b%20c"),
        ("file:///data/a%20b", "/data/a b"),
        ("file://localhost/data", "/data"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b=1/", "s3://bucket/a/b=1"),
        ("s3://bucket/a b%é", "s3://bucket/a b%é"),
        ("gs://bucket/a", "gs://bucket/a"),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            "abfss://box@account.dfs.core.windows.net/a",
        ),
    ],
)
def test_supported_places(text, url):
    assert location_of(text).url == url


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert location_of("orders") == Location(str(tmp_path / "orders"))
    assert location_of("./a:b") == Location(str(tmp_path / "a:b"))


def test_the_parts_of_a_url():
    s3 = location_of("s3://bucket/a/b")
    assert (s3.is_path, s3.scheme, s3.bucket, s3.prefix) == (False, "s3", "bucket", "a/b")
    azure = location_of("abfss://box@account.dfs.core.windows.net/a")
    assert (azure.bucket, azure.account, azure.prefix) == ("box", "account", "a")
    assert location_of("/data").is_path


@pytest.mark.parametrize(
    "text",
    [
        "s3a://bucket/a",
        "hdfs://host/a",
        "http://host/a",
        "file://host/a",
        "s3://",
        "s3:///a",
        "s3://bucket:9000/a",
        "s3://bucket:port/a",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "s3://bucket/a%20b",
        "abfss://account.dfs.core.windows.net/a",
        "abfss://@account.dfs.core.windows.net/a",
        "",
        "a\0b",
        "s3://[bucket/a",
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(text):
    with pytest.raises(BadConfig, match="location: "):
        location_of(text)


def test_the_refusal_names_the_scheme_and_what_is_supported():
    with pytest.raises(BadConfig, match=r"hdfs:// is not supported\. Use a path, file:///"):
        location_of("hdfs://host/a")


@pytest.mark.parametrize(
    "text",
    [
        f"s3://user:{CANARY}@bucket/a",
        f"s3://{CANARY}@bucket/a",
        f"https://user:{CANARY}@bucket/a",
        f"abfss://box:{CANARY}@account.dfs.core.windows.net/a",
        f"abfss://x:{CANARY}@box@account.dfs.core.windows.net/a",
        f"s3://bucket/a?X-Amz-Signature={CANARY}",
        f"s3://bucket/a#{CANARY}",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_quoted(text):
    with pytest.raises(BadConfig, match="the URL has a") as caught:
        location_of(text)
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)
    if "#" not in text:
        with pytest.raises(BadConfig) as caught:
            location_of("s3://bucket", {"endpoint": text, "allow_http": True})
        assert CANARY not in str(caught.value)


def test_settings_have_types_and_may_be_text():
    settings = {
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "path_style": "false",
        "allow_http": "true",
        "profile": "lake",
        "timeout": "30",
    }
    location = location_of("s3://bucket/a", settings)
    assert location == Location(
        "s3://bucket/a", "http://127.0.0.1:9000", "eu-west-1", False, True, "lake", 30.0
    )
    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.parametrize(
    ("name", "value", "flaw"),
    [
        ("secret_access_key", "x", "no such setting. Known are endpoint, region"),
        ("path_style", "yes", "the value must be true or false"),
        ("allow_http", 1, "the value must be true or false"),
        ("timeout", "soon", "the value must be a number of seconds"),
        ("timeout", 0.5, "the value must be a number of seconds"),
        ("timeout", "nan", "the value must be a number of seconds"),
        ("timeout", True, "the value must be a number of seconds"),
        ("region", 1, "the value must be text"),
        ("profile", "a\n", "the value must be text"),
        ("endpoint", "127.0.0.1:9000", "is not an address"),
        ("endpoint", "http://", "is not an address"),
        ("endpoint", "http://host:99999", "the URL is invalid"),
        ("endpoint", "http://host", "http://host is not encrypted. Use https"),
    ],
)
def test_a_wrong_setting_is_named(name, value, flaw):
    with pytest.raises(BadConfig, match=flaw) as caught:
        location_of("s3://bucket/a", {name: value})
    assert caught.value.key == name


def test_settings_of_another_kind_of_place_are_refused():
    with pytest.raises(BadConfig, match="endpoint: '/data' is a path"):
        location_of("/data", {"endpoint": "https://host"})
    with pytest.raises(BadConfig, match="region: a gs:// location has no such setting"):
        location_of("gs://bucket", {"region": "eu-west-1", "timeout": 5})
    assert location_of("gs://bucket", {"timeout": 5}).timeout == 5.0
