"""A lease on the segments of a topic: files that stay while somebody reads them directly.

The lease is renewed on the log's loop until it is released or the log is closed. What it cannot
outlive is a restart of the node, or a node that cannot be reached for as long as a lease lasts:
then files may be unlinked, and whoever opens one of them finds it missing.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from headrace.client.connect.retry import Caller, now
from headrace.client.values.topic_view import View
from headrace.errors import BadFrame, HeadraceError, Refused
from headrace.wire import lease_messages

_RENEWALS: Final = 3  # in the time that a lease lasts: two may be lost
_RELEASE_SECONDS: Final = 5.0  # a node that does not answer lets go by itself
_LOG: Final = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class LeasedFile:
    """A segment: the rows `start` to before `end`, of one schema version."""

    path: str  # on the node's machine
    start: int
    end: int
    version: int
    size: int
    row_digest: bytes  # in the file's footer, too, as `headrace.row_digest`


@dataclass(frozen=True, slots=True)
class LeasedPartition:
    """What is retained of one partition: rows `first` to before `end`.

    The files hold those before `sealed_end`, and maybe some before `first`.
    """

    partition: int
    first: int
    sealed_end: int
    end: int
    files: tuple[LeasedFile, ...]


class AsyncLease:
    """Files that stay. `partitions` and `view` are the topic as it was when it was taken."""

    def __init__(
        self,
        caller: Caller,
        lease_id: bytes,
        seconds: float,
        view: View,
        partitions: tuple[LeasedPartition, ...],
        is_needed: Callable[[], bool],
    ) -> None:
        self.view = view
        self.partitions = partitions
        self.lost: HeadraceError | None = None  # why files may be gone
        self._caller = caller
        self._id = lease_id
        self._seconds = seconds
        self._is_needed = is_needed
        self._renewing = asyncio.ensure_future(self._renew())
        self.is_released = False

    async def __aenter__(self) -> "AsyncLease":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def release(self) -> None:
        """Let the files go. A node that cannot be told does so when the time is over."""
        if self.is_released:
            return
        self.is_released = True
        if asyncio.current_task() is not self._renewing:
            self._renewing.cancel()
        with suppress(HeadraceError):
            await _release(self._caller, self._id)

    async def _renew(self) -> None:
        request = lease_messages.RenewLease(self._id, _ms(self._seconds))
        while self.lost is None:
            await asyncio.sleep(self._seconds / _RENEWALS)
            if not self._is_needed():
                await self.release()
                return
            deadline = now() + self._seconds / _RENEWALS
            try:
                await self._caller.get(request, lease_messages.LeaseRenewed, deadline=deadline)
            except Refused as error:
                self.lost = error
                _LOG.warning("lease on %s: %s", self.view.name, error)
            except HeadraceError as error:
                _LOG.info("lease on %s: not renewed yet: %s", self.view.name, error)


async def take_lease(
    caller: Caller,
    refresh: Callable[[], Awaitable[View]],
    seconds: float,
    is_needed: Callable[[], bool],
) -> AsyncLease:
    """Lease all segments of a topic, as it is in one moment."""
    view = await refresh()
    lease_id = secrets.token_bytes(lease_messages.LEASE_ID_SIZE)
    request = lease_messages.LeaseFiles(lease_id, _ms(seconds), view.info.partitions)
    answer = await caller.get(request, lease_messages.Leased)
    try:
        if len(answer.partitions) != len(view.info.partitions):
            raise BadFrame(f"{len(answer.partitions)} partitions came, others were asked for")
        partitions = tuple(
            _partition(number, one) for number, one in enumerate(answer.partitions)
        )
        # The last of these rows may have a schema that came after the first look.
        view = await refresh()
    except BaseException:
        with suppress(HeadraceError):
            await _release(caller, lease_id)
        raise
    return AsyncLease(caller, lease_id, seconds, view, partitions, is_needed)


async def _release(caller: Caller, lease_id: bytes) -> None:
    request = lease_messages.ReleaseLease(lease_id)
    await caller.get(request, lease_messages.LeaseReleased, deadline=now() + _RELEASE_SECONDS)


def _partition(number: int, one: lease_messages.PartitionFiles) -> LeasedPartition:
    """Take what a node says of a partition, if its files are without a gap."""
    files = tuple(
        LeasedFile(
            str(PurePath(one.directory, file.name)),
            file.first,
            file.end,
            file.version,
            file.size,
            file.row_digest,
        )
        for file in one.files
    )
    place = files[0].start if files else one.first
    for file in files:
        if file.start != place or file.end <= place:
            raise BadFrame(f"partition {number}: a file begins at {file.start}, not at {place}")
        place = file.end
    is_whole = place == one.sealed_end and one.first <= one.sealed_end <= one.end
    if not is_whole or (files and not files[0].start <= one.first < files[0].end):
        raise BadFrame(f"partition {number}: its files are not its rows up to the sealed end")
    return LeasedPartition(number, one.first, one.sealed_end, one.end, files)


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)
