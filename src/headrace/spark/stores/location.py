"""A location as plain data: what a task may be sent, and any message may show."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.errors import BadConfig

TIMEOUT_SECONDS: Final = 180.0
_OBJECT_STORES: Final = ("s3", "gs", "abfss")
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_SUPPORTED: Final = (
    "Use a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
_NO_SECRETS: Final = (
    "Credentials come from the environment, a profile or the machine's role, "
    "never from a location"
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where files are. It names credentials and never holds them, so it is safe to show."""

    url: str  # or an absolute path
    endpoint: str = ""  # of an S3 that is not Amazon's; empty: found by the region
    region: str = ""  # empty: that of the environment or the profile
    path_style: bool = True  # the bucket is in the path of requests, not in their host
    allow_http: bool = False
    profile: str = ""  # of the shared credentials file; empty: AWS_PROFILE, if it is set
    timeout: float = TIMEOUT_SECONDS  # for which a call that fails is repeated

    @property
    def scheme(self) -> str:
        """The scheme of the URL; empty for a path."""
        return "" if self.url.startswith("/") else urlsplit(self.url).scheme

    @property
    def is_path(self) -> bool:
        return not self.scheme

    @property
    def bucket(self) -> str:
        """The bucket or container of an object store."""
        return urlsplit(self.url).netloc.partition("@")[0]

    @property
    def account(self) -> str:
        """The account of an `abfss` URL, without its domain."""
        return urlsplit(self.url).netloc.partition("@")[2].partition(".")[0]

    @property
    def prefix(self) -> str:
        """What comes before each name in the bucket."""
        return urlsplit(self.url).path.strip("/")


_SETTINGS: Final = {field.name: field.type for field in fields(Location) if field.name != "url"}


def location_of(text: str, settings: Mapping[str, object] | None = None) -> Location:
    """Return the location that a path or URL and its named settings describe."""
    given = {name: _setting(name, value) for name, value in (settings or {}).items()}
    if ":" not in text.partition("/")[0]:
        return _path(text, given)
    try:
        url = urlsplit(text)
        has_port = url.port is not None
    except ValueError:
        raise BadConfig("location", "the URL is invalid", hint=_SUPPORTED) from None
    _refuse_secrets("location", url, text)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return _path(unquote(url.path), given)
    if url.scheme not in _OBJECT_STORES:
        raise BadConfig("location", f"{url.scheme}:// is not supported", hint=_SUPPORTED)
    if not url.netloc or has_port:
        raise BadConfig("location", f"{text!r} names no bucket", hint=_SUPPORTED)
    if (url.scheme == "abfss") != ("@" in url.netloc) or url.netloc.startswith("@"):
        raise BadConfig("location", f"{_shown(url)!r} is incomplete", hint=_SUPPORTED)
    made = Location(f"{url.scheme}://{url.netloc}/{url.path.strip('/')}".rstrip("/"))
    _refuse_bad_prefix(made)
    return _with(made, given)


def _path(text: str, given: dict[str, object]) -> Location:
    if not text or "\0" in text:
        raise BadConfig("location", "the path is empty or invalid", hint=_SUPPORTED)
    if given:
        raise BadConfig(
            next(iter(given)), f"{text!r} is a path, which has no such setting",
            hint="Remove the setting: it is for object stores",
        )  # fmt: skip
    return Location(str(Path(text).absolute()))


def _with(made: Location, given: dict[str, object]) -> Location:
    values = {field.name: getattr(made, field.name) for field in fields(made)}
    location = Location(**(values | given))
    if location.scheme != "s3" and (named := set(given) - {"timeout"}):
        raise BadConfig(
            min(named), f"a {location.scheme}:// location has no such setting",
            hint="Remove it: it is for s3:// locations",
        )  # fmt: skip
    if location.endpoint:
        refuse_bad_endpoint(location.endpoint, allow_http=location.allow_http)
    return location


def _refuse_bad_prefix(location: Location) -> None:
    """Raise BadConfig for what libraries do not all understand as the same place."""
    parts = location.prefix.split("/") if location.prefix else []
    is_plain = location.url.isprintable() and not _ESCAPE.search(location.url)
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or not is_plain:
        raise BadConfig(
            "location", f"{location.url!r} is ambiguous",
            hint="Use parts separated by one /, none of them . or .., and no escapes like %20",
        )  # fmt: skip


def refuse_bad_endpoint(endpoint: str, *, allow_http: bool) -> None:
    """Raise BadConfig unless it is the address of a server, encrypted if it has to be."""
    hint = "Use the form https://host or https://host:port"
    try:
        url = urlsplit(endpoint)
        is_whole = bool(url.hostname) and url.port != 0
    except ValueError:
        raise BadConfig("endpoint", "the URL is invalid", hint=hint) from None
    _refuse_secrets("endpoint", url, endpoint)
    if url.scheme not in ("http", "https") or not is_whole or not endpoint.isprintable():
        raise BadConfig("endpoint", f"{_shown(url)!r} is not an address", hint=hint)
    if url.scheme == "http" and not allow_http:
        raise BadConfig(
            "endpoint", f"{endpoint} is not encrypted",
            hint="Use https, or set allow_http = true in a network that you trust",
        )  # fmt: skip


def _refuse_secrets(key: str, url: SplitResult, text: str) -> None:
    """Raise BadConfig, without quoting them, for parts of a URL that may hold secrets."""
    host = url.netloc.rpartition("@")[0]
    if ":" in host or (host and url.scheme != "abfss"):
        raise BadConfig(key, "the URL has a user or a password in it", hint=_NO_SECRETS)
    if url.scheme != "file" and ("?" in text or "#" in text):
        raise BadConfig(key, "the URL has a query or a fragment (? or #)", hint=_NO_SECRETS)


def _shown(url: SplitResult) -> str:
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def _setting(name: str, value: object) -> object:
    """Return the value of a setting, also if it was given as text."""
    kind = _SETTINGS.get(name)
    if kind is None:
        raise BadConfig(name, "no such setting", hint=f"Known are {', '.join(_SETTINGS)}")
    if kind is bool:
        words = {"true": True, "false": False}
        found = words.get(value.lower()) if isinstance(value, str) else value
        if isinstance(found, bool):
            return found
        raise BadConfig(name, "the value must be true or false")
    if kind is float:
        return _seconds(name, value)
    if isinstance(value, str) and value.isprintable():
        return value
    raise BadConfig(name, "the value must be text")


def _seconds(name: str, value: object) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        found = math.nan
    if isinstance(value, bool) or not 1 <= found <= 86_400:
        raise BadConfig(name, "the value must be a number of seconds from 1 to 86400")
    return found
