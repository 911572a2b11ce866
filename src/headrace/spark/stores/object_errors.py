"""Errors of object stores in words of ours.

A library's error quotes the request and the answer, which may have credentials in them. So no
text of it is passed on: only a status, the name of a reason, and words that are listed here.
"""

import errno
import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadConfig, BadRequest, HeadraceError, StorageFailed
from headrace.spark.stores.credentials import no_credentials
from headrace.spark.stores.location import Location
from headrace.spark.stores.seam import CredentialsExpired, NotInStore, StoreRefused, joined

_STATUS: Final = re.compile(r"status code: (\d{3})\b")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,48})</Code>")
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "InvalidBucketName", "ContainerNotFound"})
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_WRONG_KEYS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed"}
)
_WRONG_REGION: Final = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}
)
# What a library says of a connection, as a number and in our words; the first that is found.
_CONNECTIONS: Final = (
    ("ConnectionRefused", errno.ECONNREFUSED, "it refuses connections"),
    ("dns error", errno.EHOSTUNREACH, "its name is not known"),
    ("InvalidCertificate", errno.EPROTO, "its certificate is not valid"),
    ("invalid peer certificate", errno.EPROTO, "its certificate is not valid"),
    ("TimedOut", errno.ETIMEDOUT, "it does not answer in time"),
    ("kind: Timeout", errno.ETIMEDOUT, "it does not answer in time"),
    ("NetworkUnreachable", errno.ENETUNREACH, "there is no network to it"),
    ("HostUnreachable", errno.EHOSTUNREACH, "there is no way to it"),
    ("HTTP error", errno.ECONNRESET, "the connection breaks"),
)
_ROLE: Final = ("169.254.169.254", "/latest/api/token", "metadata.google.internal")
_AGAIN: Final = "Check the endpoint and the network, then retry"


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Where a call failed, and at what."""

    location: Location
    name: str
    stage: str
    has_keys: bool  # so it did not fail for want of them

    @property
    def place(self) -> str:
        return joined(self.location.url, self.name)


def failure_of(error: Exception, failure: FailedCall) -> HeadraceError:
    """Return the error to raise for one of a library."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 404 if isinstance(error, FileNotFoundError) else 0
    if not failure.has_keys and any(word in text for word in _ROLE):
        return no_credentials()
    if type(error).__name__ == "InvalidPathError":
        return BadRequest(
            f"{failure.place}: the store does not take this name",
            hint="Use letters, digits and -_.=/ in names",
        )
    if type(error).__name__ == "UnauthenticatedError":
        status = 401
    if "NotPartial" in text:
        status = 416
    if "Received redirect" in text:
        return _wrong_region(failure)
    code = _CODE.search(text)
    if status:
        return answer_failed(failure, status, code[1] if code else "")
    return connection_failed(failure, text)


def answer_failed(failure: FailedCall, status: int, code: str) -> HeadraceError:
    """Return the error for an answer of the store. A range that is not there is an ERANGE."""
    found = _keys_failed(failure, status, code) or _place_failed(failure, status, code)
    if found is not None:
        return found
    is_busy = status >= 500 or status == 429
    number = errno.EIO if is_busy else errno.ERANGE if status == 416 else errno.EINVAL
    cause = OSError(number, f"the store answers {status} {code}".strip())
    hint = "Retry later" if is_busy else "Check the log of the store"
    return StorageFailed(failure.place, failure.stage, cause, hint=hint)


def _keys_failed(failure: FailedCall, status: int, code: str) -> HeadraceError | None:
    place, answer = failure.place, f"{status} {code}".strip()
    if code in _EXPIRED:
        cause = OSError(errno.EKEYEXPIRED, f"the credentials have expired ({answer})")
        hint = "Provide newer ones, then retry"
        return CredentialsExpired(place, failure.stage, cause, hint=hint)
    if code in _WRONG_KEYS or (status == 401 and not code):
        return BadConfig(
            "credentials",
            f"{failure.location.url} does not accept them ({answer})",
            hint="Check the key and its secret, and that they belong to this store",
        )
    if code == "RequestTimeTooSkewed":
        cause = OSError(errno.EPERM, f"the clocks differ too much ({answer})")
        return StorageFailed(place, failure.stage, cause, hint="Set the clock of this machine")
    if status in (401, 403):
        return StoreRefused(
            f"{place}: {failure.stage} is not allowed ({answer})",
            hint="Have the owner of the bucket allow it: reading, writing, listing and "
            "deleting are needed",
        )
    return None


def _place_failed(failure: FailedCall, status: int, code: str) -> HeadraceError | None:
    url = failure.location.url
    if code in _NO_BUCKET:
        hint = "Check its name and the endpoint, or create it"
        return BadConfig("location", f"{url}: there is no such bucket", hint=hint)
    if code in _WRONG_REGION:
        return _wrong_region(failure)
    return NotInStore(url, failure.name) if status == 404 else None


def connection_failed(failure: FailedCall, text: str) -> StorageFailed:
    """Return the error for a request without an answer."""
    unknown = (errno.EIO, "the call fails for a reason that is not known")
    found = (each[1:] for each in _CONNECTIONS if each[0] in text)
    number, flaw = next(found, unknown)
    server = failure.location.endpoint or "the endpoint"
    cause = OSError(number, f"{server} cannot be reached: {flaw}")
    return StorageFailed(failure.place, failure.stage, cause, hint=_AGAIN)


def _wrong_region(failure: FailedCall) -> BadConfig:
    return BadConfig(
        "region",
        f"{failure.location.url} is in another region than that of the request",
        hint="Set region to that of the bucket",
    )
