"""Files in a bucket, through obstore: each comes to be there with one request, or not at all.

A small file is one put on the condition that the name is free. The library repeats a put whose
answer was lost and then meets the file itself, so each file has a mark by which its writer
knows it again. A large file is a multipart upload, which no store makes visible before its
last request. Credentials are in the client only, so a store never leaves its process.
"""

import errno
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, BinaryIO, Final, NoReturn, TypeVar, cast

import obstore
from obstore.exceptions import AlreadyExistsError, NotSupportedError
from obstore.store import AzureStore, GCSStore, S3Store

from headrace.errors import BadConfig, BadRequest, HeadraceError, StorageFailed
from headrace.spark.stores.credentials import S3Access, access_of
from headrace.spark.stores.location import Location
from headrace.spark.stores.object_errors import FailedCall, failure_of
from headrace.spark.stores.options import RETRIES_MAX
from headrace.spark.stores.s3_uploads import NoUploads, S3Uploads
from headrace.spark.stores.seam import (
    NotInStore,
    StoredFile,
    Uploads,
    joined,
    refuse_bad_name,
    taken,
)

PUT_MAX: Final = 8 * 1024 * 1024  # larger files are uploaded in parts of this size
MEMORY_MAX: Final = 32 * 1024 * 1024  # of one file; a larger one waits on the local disk
_PARTS_AT_ONCE: Final = 4
_REQUEST_SECONDS: Final = 30.0
_BACKOFF_SECONDS: Final = 5.0
_REMOVED_AT_ONCE: Final = 1000
_LISTED_AT_ONCE: Final = 1000
_PAUSE_SECONDS: Final = 0.1
_MARK: Final = "headrace-mark"  # the metadata that tells who wrote a file

_T = TypeVar("_T")


class ObjectStore:
    """The files below a prefix of a bucket."""

    def __init__(self, location: Location) -> None:
        self._location = location
        access = access_of(location) if location.scheme == "s3" else None
        self._has_keys = access is None or access.keys is not None
        client, error = _interruptible(lambda: _client(location, access))
        if client is None:
            raise _unusable(location, error)
        self._client = client
        self._uploads: Uploads = (
            S3Uploads(location, access) if access else NoUploads(location.url)
        )

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store has credentials: send its location, and open it there")

    @property
    def url(self) -> str:
        return self._location.url

    @property
    def uploads(self) -> Uploads:
        return self._uploads

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        self._key(name)
        waiting = _Spool(MEMORY_MAX)
        try:
            with waiting.held(name):
                yield cast(BinaryIO, waiting)
                waiting.seek(0)
                first = waiting.read(PUT_MAX + 1)
            if len(first) <= PUT_MAX:
                is_new = self.put_new(name, first)
            else:
                is_new = self._upload(name, chain([first], waiting.pieces(name)))
        finally:
            waiting.end()
        if not is_new:
            raise taken(self.url, name)

    def put_new(self, name: str, data: bytes) -> bool:
        key, mark = self._key(name), secrets.token_hex(16)
        deadline = time.monotonic() + self._location.timeout

        def put() -> bool:
            try:
                obstore.put(self._client, key, data, mode="create", attributes={_MARK: mark})
            except AlreadyExistsError:
                return False
            return True

        while True:
            try:
                if self._call(name, "writing", put):
                    return True
                if (is_ours := self._is_ours(name, mark, data)) is not None:
                    return is_ours
                # It is gone again, or the store was busy with another put of that name.
                self._refuse_late(name, deadline)
            except StorageFailed as error:
                # The library repeats no put without an answer; the mark makes it safe here.
                if error.cause.errno != errno.ETIMEDOUT or time.monotonic() > deadline:
                    raise

    def head(self, name: str) -> StoredFile | None:
        key = self._key(name)
        try:
            found = self._call(name, "the look", lambda: obstore.head(self._client, key))
        except HeadraceError as error:
            if isinstance(error, StorageFailed) and error.cause.errno != errno.EINVAL:
                raise
            # An answer to HEAD has no reason in it: a missing bucket is like a missing file.
            self._explain(name)
            if isinstance(error, NotInStore):
                return None
            raise
        return StoredFile(name, found["size"], found["e_tag"] or "")

    def read(self, name: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise BadRequest(f"{length} bytes from {start} on are not a range of a file")
        key = self._key(name)
        if length == 0:
            self._required(name)
            return b""

        def get() -> bytes:
            return bytes(obstore.get_range(self._client, key, start=start, length=length))

        try:
            found = self._call(name, "reading", get)
        except StorageFailed as error:
            if error.cause.errno != errno.ERANGE:
                raise
            found = b""  # it begins after the end
        if len(found) != length:
            short = OSError(f"expected {length} bytes from {start} on, found {len(found)}")
            raise StorageFailed(
                joined(self.url, name), "reading", short, hint="The file is shorter than it was"
            )
        return found

    def tail(self, name: str, length: int) -> bytes:
        if length < 0:
            raise BadRequest(f"{length} bytes are not a range of a file")
        key = self._key(name)

        def get() -> bytes | None:
            try:
                found = obstore.get(self._client, key, options={"range": {"suffix": length}})
            except NotSupportedError:
                return None  # Azure has no ranges from the end
            return bytes(found.bytes())

        try:
            found = self._call(name, "reading", get) if length else None
        except StorageFailed as error:
            if error.cause.errno != errno.ERANGE:
                raise
            found = None  # an empty file has no range
        if found is not None:
            return found
        size = self._required(name).size
        return self.read(name, max(size - length, 0), min(size, length))

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        key = self._key(prefix) if prefix else self._location.prefix
        stream = obstore.list(self._client, key or None, chunk_size=_LISTED_AT_ONCE)
        skipped = len(self._location.prefix) + 1 if self._location.prefix else 0
        while found := self._call(prefix, "listing", lambda: next(stream, None)):
            for each in found:
                yield StoredFile(each["path"][skipped:], each["size"], each["e_tag"] or "")

    def remove(self, names: Iterable[str]) -> None:
        waiting = list(names)
        for first in range(0, len(waiting), _REMOVED_AT_ONCE):
            some = waiting[first : first + _REMOVED_AT_ONCE]
            try:
                self._delete(some[0], [self._key(name) for name in some])
            except NotInStore:  # of a store that minds
                for name in some:
                    self._remove_one(name)

    def durable(self, names: Iterable[str]) -> None:
        """Do nothing: what a store has acknowledged is durable."""

    def _remove_one(self, name: str) -> None:
        try:
            self._delete(name, [self._key(name)])
        except NotInStore:
            return

    def _delete(self, name: str, keys: Sequence[str]) -> None:
        self._call(name, "removing", lambda: obstore.delete(self._client, keys))

    def _upload(self, name: str, pieces: Iterator[bytes]) -> bool:
        """Upload a large file in parts. The library aborts what it cannot finish."""
        if self.head(name) is not None:
            return False
        key, mark = self._key(name), secrets.token_hex(16)

        def put() -> None:
            obstore.put(
                self._client,
                key,
                pieces,
                use_multipart=True,
                chunk_size=PUT_MAX,
                max_concurrency=_PARTS_AT_ONCE,
                attributes={_MARK: mark},
            )

        try:
            self._call(name, "writing", put)
        except HeadraceError:
            # The last request may have been carried out, and its repeat refused.
            if not self._has_mark(name, mark):
                raise
        return True

    def _is_ours(self, name: str, mark: str, data: bytes) -> bool | None:
        """Say whether the file of a name is the one that was put. None: there is none."""
        key = self._key(name)

        def get() -> tuple[str | None, bytes]:
            found = obstore.get(self._client, key)
            return found.attributes.get(_MARK), bytes(found.bytes())

        try:
            found, content = self._call(name, "reading back", get)
        except NotInStore:
            return None
        if found is None and content == data:
            raise BadRequest(
                f"{joined(self.url, name)}: the store does not keep the metadata of files, so "
                "that a lost answer cannot be told from the file of another writer",
                hint="Use a store that keeps user-defined metadata, as S3 does",
            )
        return found == mark and content == data

    def _has_mark(self, name: str, mark: str) -> bool:
        key = self._key(name)

        def get() -> str | None:
            options: Any = {"head": True}
            return obstore.get(self._client, key, options=options).attributes.get(_MARK)

        try:
            return self._call(name, "the look", get) == mark
        except HeadraceError:
            return False

    def _refuse_late(self, name: str, deadline: float) -> None:
        if time.monotonic() > deadline:
            busy = OSError(errno.EBUSY, "other writers put and remove a file of that name")
            raise StorageFailed(joined(self.url, name), "writing", busy, hint="Retry later")
        time.sleep(_PAUSE_SECONDS)

    def _required(self, name: str) -> StoredFile:
        found = self.head(name)
        if found is None:
            raise NotInStore(self.url, name)
        return found

    def _explain(self, name: str) -> None:
        """Ask for a list, only to get an error that has its reason in it."""
        stream = obstore.list(self._client, self._key(name), chunk_size=1)
        self._call(name, "the look", lambda: next(stream, None))

    def _key(self, name: str) -> str:
        refuse_bad_name(self.url, name)
        prefix = self._location.prefix
        return f"{prefix}/{name}" if prefix else name

    def _call(self, name: str, stage: str, call: Callable[[], _T]) -> _T:
        """Call the library, and raise an error of ours that has no words of its error."""
        result, error = _interruptible(call)
        if error is None:
            return cast(_T, result)
        if not isinstance(error, Exception):
            raise error
        # Outside any handler: the library's error, which may quote secrets, is not kept.
        raise failure_of(error, FailedCall(self._location, name, stage, self._has_keys))


def _interruptible(call: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    """Call in a thread, so that Ctrl-C ends the wait: the library does not look for it.

    The call itself goes on behind the scenes until its time is over.
    """

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:  # noqa: BLE001 (handed to the caller)
            done.append((None, error))

    done: list[tuple[_T | None, BaseException | None]] = []
    if threading.current_thread() is threading.main_thread():
        thread = threading.Thread(target=run, name="object store", daemon=True)
        thread.start()
        thread.join()
    else:
        run()
    return done[0]


def _client(location: Location, access: S3Access | None) -> S3Store | GCSStore | AzureStore:
    """Open the library's client, so that time alone decides when a call ends."""
    settings: dict[str, Any] = {
        "client_options": {
            "allow_http": location.allow_http,
            # So that one request without an answer leaves time for others.
            "timeout": timedelta(seconds=min(location.timeout / 3, _REQUEST_SECONDS)),
        },
        "retry_config": {
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=location.timeout),
            "backoff": {"max_backoff": timedelta(seconds=_BACKOFF_SECONDS)},
        },
    }
    if location.scheme == "gs":
        return GCSStore(location.bucket, **settings)
    if access is None:
        return AzureStore(location.bucket, account_name=location.account, **settings)
    config: dict[str, Any] = {
        "region": access.region,
        "virtual_hosted_style_request": not location.path_style,
        "conditional_put": "etag",
        "skip_signature": False,
    }
    if access.endpoint:
        config["aws_endpoint_url_s3"] = access.endpoint
    if access.keys is not None:
        config["access_key_id"] = access.keys.id
        config["secret_access_key"] = access.keys.secret
        if access.keys.token:
            config["session_token"] = access.keys.token
    return S3Store(location.bucket, config=cast(Any, config), **settings)


def _unusable(location: Location, error: BaseException | None) -> BaseException:
    """Return the error of a client that cannot be made. What the library says is not kept."""
    if not isinstance(error, Exception):
        return error or KeyboardInterrupt()
    return BadConfig(
        "credentials",
        f"those of the environment for {location.url} cannot be used",
        hint="Check the variables of that cloud, and the files that they name",
    )


class _Spool(tempfile.SpooledTemporaryFile[bytes]):
    """A file that waits to be uploaded: in memory, and on the local disk once it is large.

    Libraries that write files close them, which must not lose this one.
    """

    def close(self) -> None:
        """Stay open."""

    def end(self) -> None:
        """Close it."""
        super().close()

    def pieces(self, name: str) -> Iterator[bytes]:
        """Give the rest of it."""
        with self.held(name):
            while piece := self.read(PUT_MAX):
                yield piece

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Raise StorageFailed if the local disk fails."""
        try:
            yield
        except OSError as error:
            stage = f"holding the new file {name}"
            raise StorageFailed(tempfile.gettempdir(), stage, error) from error
