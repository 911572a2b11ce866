"""Unfinished multipart uploads of an S3: of writers that were killed.

obstore has no call for them, so these two requests are signed here, with version 4 of Amazon's
signatures.
"""

import datetime
import hashlib
import hmac
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as Xml

from headrace.errors import BadRequest
from headrace.spark.stores.credentials import AccessKeys, S3Access
from headrace.spark.stores.location import Location
from headrace.spark.stores.object_errors import FailedCall, answer_failed, connection_failed
from headrace.spark.stores.seam import Upload

_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_CODE: Final = re.compile(rb"<Code>([A-Za-z]{1,48})</Code>")
_LIST: Final = "ListMultipartUploadsResult"
_SECONDS: Final = 30.0
_ANSWER_MAX: Final = 16 * 1024 * 1024
_HINT: Final = (
    "Have the bucket remove unfinished uploads after some days, by a lifecycle rule of the "
    "store"
)


class NoUploads:
    """Stands for the uploads of a store in which they cannot be listed from here."""

    def __init__(self, url: str) -> None:
        self._url = url

    def list(self, prefix: str = "") -> Iterator[Upload]:
        raise BadRequest(f"{self._url}: unfinished uploads cannot be listed", hint=_HINT)

    def abort(self, upload: Upload) -> None:
        raise BadRequest(f"{self._url}: unfinished uploads cannot be aborted", hint=_HINT)


@dataclass(frozen=True, slots=True, repr=False)
class S3Uploads:
    """The unfinished uploads below a location."""

    _location: Location
    _access: S3Access
    _now: "datetime.datetime | None" = field(default=None)  # of tests

    def list(self, prefix: str = "") -> Iterator[Upload]:
        own = self._location.prefix
        below = "/".join(each for each in (own, prefix) if each)
        query = {"uploads": "", "prefix": f"{below}/" if below else ""}
        while True:
            answer = self._parsed(self._request("GET", "", query, "listing uploads"))
            for each in answer.iter("Upload"):
                key = each.findtext("Key", "")
                name = key.removeprefix(f"{own}/") if own else key
                yield Upload(name, each.findtext("UploadId", ""))
            if answer.findtext("IsTruncated") != "true":
                return
            query["key-marker"] = answer.findtext("NextKeyMarker", "")
            query["upload-id-marker"] = answer.findtext("NextUploadIdMarker", "")

    def abort(self, upload: Upload) -> None:
        own = self._location.prefix
        key = f"{own}/{upload.name}" if own else upload.name
        self._request("DELETE", key, {"uploadId": upload.id}, "aborting an upload")

    def _request(self, method: str, key: str, query: dict[str, str], stage: str) -> bytes:
        """Send one signed request and return the body of its answer."""
        failure = FailedCall(self._location, key, stage, has_keys=True)
        keys = self._access.keys
        if keys is None:
            raise BadRequest(
                f"{self._location.url}: {stage} needs keys, and this process has only the role "
                "of its machine",
                hint=_HINT,
            )
        request = self._signed(keys, method, key, query)
        text = ""
        try:
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(request, timeout=_SECONDS) as answer:
                found: bytes = answer.read(_ANSWER_MAX)
                return found
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read(_ANSWER_MAX)
        except (OSError, http.client.HTTPException) as error:
            status, body, text = 0, b"", _words_of(error)
        code = _CODE.search(body)
        reason = code[1].decode() if code else ""
        if method == "DELETE" and (status, reason) == (404, "NoSuchUpload"):
            return b""
        if status:
            raise answer_failed(failure, status, reason)
        raise connection_failed(failure, text)

    def _parsed(self, body: bytes) -> Xml.Element:
        try:
            found = Xml.fromstring(body)
        except Xml.ParseError:
            found = Xml.Element("")
        for each in found.iter():
            each.tag = each.tag.rpartition("}")[2]
        if found.tag != _LIST:
            failure = FailedCall(self._location, "", "listing uploads", has_keys=True)
            raise answer_failed(failure, 200, "without a list")
        return found

    def _signed(
        self, keys: AccessKeys, method: str, key: str, query: dict[str, str]
    ) -> urllib.request.Request:
        base, path = self._base()
        path += quote(f"/{key}" if key else "", safe="/-_.~")
        words = "&".join(
            f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(query.items())
        )
        now = self._now or datetime.datetime.now(datetime.UTC)
        headers = {
            "host": urlsplit(base).netloc,
            "x-amz-content-sha256": _EMPTY,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        headers["authorization"] = _signature(
            keys, self._access.region, (method, path or "/", words), headers
        )
        return urllib.request.Request(
            f"{base}{path or '/'}?{words}", method=method, headers=headers
        )

    def _base(self) -> tuple[str, str]:
        """Return the server's address, and the path of the bucket there."""
        bucket, region = self._location.bucket, self._access.region
        if not self._location.path_style:
            usual = f"https://{bucket}.s3.{region}.amazonaws.com"
            return self._access.endpoint or usual, ""
        usual = f"https://s3.{region}.amazonaws.com"
        return self._access.endpoint or usual, f"/{bucket}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the signature is for one host, and is no other's business."""

    def redirect_request(self, *_: object) -> None:
        """Have it raised as an error."""


def _signature(
    keys: AccessKeys, region: str, asked: tuple[str, str, str], headers: dict[str, str]
) -> str:
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([*asked, lines, names, _EMPTY])
    day = headers["x-amz-date"][:8]
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            headers["x-amz-date"],
            scope,
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    secret = f"AWS4{keys.secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        secret = hmac.digest(secret, word.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    return (
        f"AWS4-HMAC-SHA256 Credential={keys.id}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _words_of(error: Exception) -> str:
    """Return the word by which a failed connection is known, and nothing else of it."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ConnectionRefusedError):
        return "ConnectionRefused"
    return "TimedOut" if isinstance(reason, TimeoutError) else "HTTP error"
