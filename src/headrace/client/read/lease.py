"""A lease on the segments of a topic: keeps files that are read directly from being deleted.

The lease is renewed on the log's loop until it is released or the log is closed. If the node
has forgotten it, after a restart or because it was unreachable for too long, the lease is taken
again under the same id. If a file is gone by then, the lease is lost.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from headrace.client.connect.retry import Caller, now
from headrace.client.values.topic_view import View
from headrace.errors import BadFrame, HeadraceError, Refused, Rejected, VersionUnknown
from headrace.wire import lease_messages
from headrace.wire.file_messages import FileDigests, GetFileDigests
from headrace.wire.topic_messages import PartitionInfo

_RENEWALS: Final = 3  # per lease length, at least: two may be lost
_RENEW_SECONDS_MAX: Final = 5.0  # how long a restarted node may be without the lease
_RELEASE_SECONDS: Final = 5.0  # if the node does not answer, the lease expires
_LOG: Final = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class LeasedFile:
    """A segment: the rows from `start` to `end` (exclusive), of one schema version."""

    path: str  # on the node's machine
    start: int
    end: int
    version: int
    size: int
    row_digest: bytes  # also in the file's footer, as `headrace.row_digest`
    digest: bytes | None  # xxh3-128 of the whole file; None: the node is too old to tell


@dataclass(frozen=True, slots=True)
class LeasedPartition:
    """The retained rows of one partition: from `first` to `end` (exclusive).

    The files hold the rows before `sealed_end`, and possibly some before `first`.
    """

    partition: int
    namespace: int
    created: int
    first: int
    sealed_end: int
    end: int
    files: tuple[LeasedFile, ...]


class AsyncLease:
    """Files that stay. `partitions` and `view` show the topic as of taking the lease."""

    def __init__(
        self,
        caller: Caller,
        id: bytes,  # noqa: A002 - what it is called everywhere
        seconds: float,
        view: View,
        partitions: tuple[LeasedPartition, ...],
        is_needed: Callable[[], bool],
    ) -> None:
        self.view = view
        self.partitions = partitions
        self.lost: HeadraceError | None = None  # why files may be deleted
        self.id = id  # executors fetch the files under it
        self._caller = caller
        self._seconds = seconds
        self._is_needed = is_needed
        self._renewing = asyncio.ensure_future(self._renew())
        self.is_released = False

    async def __aenter__(self) -> "AsyncLease":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def release(self) -> None:
        """Release the files. If the node cannot be reached, the lease expires there."""
        if self.is_released:
            return
        self.is_released = True
        if asyncio.current_task() is not self._renewing:
            self._renewing.cancel()
        with suppress(HeadraceError):
            await _release(self._caller, self.id)

    async def _renew(self) -> None:
        interval = min(self._seconds / _RENEWALS, _RENEW_SECONDS_MAX)
        while self.lost is None:
            await asyncio.sleep(interval)
            if not self._is_needed():
                await self.release()
                return
            try:
                await self._renew_once(now() + interval)
            except Rejected as error:
                self.lost = error
                _LOG.warning("lease on %s: %s", self.view.name, error)
            except HeadraceError as error:
                _LOG.info("lease on %s: not renewed yet: %s", self.view.name, error)

    async def _renew_once(self, deadline: float) -> None:
        request = lease_messages.RenewLease(self.id, _ms(self._seconds))
        try:
            await self._caller.get(request, lease_messages.LeaseRenewed, deadline=deadline)
        except Refused as error:
            if error.code != lease_messages.LEASE_UNKNOWN:
                raise
            infos = tuple(PartitionInfo(one.namespace, one.created) for one in self.partitions)
            found = await _leased(self._caller, self.id, self._seconds, infos, deadline)
            there = {file for one in found for file in one.files}
            if not all(file in there for one in self.partitions for file in one.files):
                with suppress(HeadraceError):
                    await _release(self._caller, self.id)
                raise
            _LOG.info("lease on %s: taken again", self.view.name)


async def take_lease(
    caller: Caller,
    refresh: Callable[[], Awaitable[View]],
    seconds: float,
    is_needed: Callable[[], bool],
) -> AsyncLease:
    """Lease all segments of a topic at one point in time."""
    view = await refresh()
    lease_id = secrets.token_bytes(lease_messages.LEASE_ID_SIZE)
    try:
        partitions = await _leased(
            caller, lease_id, seconds, view.info.partitions, caller.deadline()
        )
        # The last of these rows may have a schema that is newer than the first view.
        view = await refresh()
    except BaseException:
        with suppress(HeadraceError):
            await _release(caller, lease_id)
        raise
    return AsyncLease(caller, lease_id, seconds, view, partitions, is_needed)


async def _leased(
    caller: Caller,
    lease_id: bytes,
    seconds: float,
    infos: tuple[PartitionInfo, ...],
    deadline: float,
) -> tuple[LeasedPartition, ...]:
    """Take a lease with this id, or take it again."""
    request = lease_messages.LeaseFiles(lease_id, _ms(seconds), infos)
    answer = await caller.get(request, lease_messages.Leased, deadline=deadline)
    if len(answer.partitions) != len(infos):
        raise BadFrame(f"received {len(answer.partitions)} partitions, not those requested")
    count = sum(len(one.files) for one in answer.partitions)
    digests: tuple[bytes | None, ...]
    try:
        found = await caller.get(GetFileDigests(lease_id), FileDigests, deadline=deadline)
    except VersionUnknown:
        digests = (None,) * count
    else:
        digests = found.digests
    if len(digests) != count:
        raise BadFrame(f"received {len(digests)} digests of {count} files")
    each = iter(digests)
    return tuple(
        _partition(number, info, one, [next(each) for _ in one.files])
        for number, (info, one) in enumerate(zip(infos, answer.partitions, strict=True))
    )


async def _release(caller: Caller, lease_id: bytes) -> None:
    request = lease_messages.ReleaseLease(lease_id)
    await caller.get(request, lease_messages.LeaseReleased, deadline=now() + _RELEASE_SECONDS)


def _partition(
    number: int,
    info: PartitionInfo,
    one: lease_messages.PartitionFiles,
    digests: Sequence[bytes | None],
) -> LeasedPartition:
    """Convert a node's answer for a partition, if its files have no gap."""
    files = tuple(
        LeasedFile(
            str(PurePath(one.directory, file.name)),
            file.first,
            file.end,
            file.version,
            file.size,
            file.row_digest,
            digest,
        )
        for file, digest in zip(one.files, digests, strict=True)
    )
    place = files[0].start if files else one.first
    for file in files:
        if file.start != place or file.end <= place:
            raise BadFrame(f"partition {number}: a file starts at {file.start}, not at {place}")
        place = file.end
    is_whole = place == one.sealed_end and one.first <= one.sealed_end <= one.end
    if not is_whole or (files and not files[0].start <= one.first < files[0].end):
        raise BadFrame(
            f"partition {number}: its files do not cover its rows up to the sealed end"
        )
    return LeasedPartition(
        number, info.namespace, info.created, one.first, one.sealed_end, one.end, files
    )


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)
