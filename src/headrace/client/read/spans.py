"""Resolves what users ask for to offsets of each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headrace.client.connect.retry import Caller
from headrace.client.values.answers import Bounds, Range
from headrace.client.values.parse import microseconds, whole
from headrace.client.values.topic_view import View
from headrace.errors import BadFrame, BadRequest, Behind
from headrace.wire import read_messages
from headrace.wire.read_messages import FoundOffset, GetBounds, GetOffset

# An offset, a time, `earliest`, `latest`, or an offset for each partition; None: the default.
Where = int | str | datetime | Mapping[int, int] | None

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True)
class Spans:
    """Finds offsets in the partitions of one topic."""

    caller: Caller
    view: View

    async def bounds(self, numbers: Sequence[int]) -> dict[int, Bounds]:
        """Return the bounds of the retained rows of these partitions."""
        if not numbers:
            return {}
        request = GetBounds(tuple(self.view.partition(number) for number in numbers))
        found = (await self.caller.get(request, read_messages.BoundsReply)).bounds
        if len(found) != len(numbers):
            raise BadFrame(
                f"requested bounds of {len(numbers)} partitions, received {len(found)}"
            )
        return {
            number: Bounds(number, one.first, one.end, one.size, one.sealed_end, one.versions)
            for number, one in zip(numbers, found, strict=True)
        }

    async def at(self, number: int, timestamp: int) -> int:
        """Return the first offset of a partition appended at `timestamp` or later."""
        info = self.view.partition(number)
        request = GetOffset(info.namespace, info.created, timestamp)
        return (await self.caller.get(request, FoundOffset)).offset

    async def places(self, where: Where, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Return the offset that `where` means in each partition."""
        if not isinstance(where, str | datetime | Mapping | None):
            offset = _offset(where)
            return dict.fromkeys(bounds, offset)
        if where is None or where == EARLIEST:
            return {number: each.first for number, each in bounds.items()}
        if where == LATEST:
            return {number: each.end for number, each in bounds.items()}
        if isinstance(where, Mapping):
            missing = [number for number in bounds if number not in where]
            if missing:
                hint = "Give an offset for each partition read, or choose some with partition="
                raise BadRequest(f"no offset for partition {missing[0]}", hint=hint)
            return {number: _offset(where[number]) for number in bounds}
        timestamp = microseconds(where)
        return {number: await self.at(number, timestamp) for number in bounds}

    async def ranges(
        self, numbers: Sequence[int], start: Where, end: Where, last: int | None
    ) -> tuple[Range, ...]:
        """Return the ranges of a bounded read. The default end is the current committed one."""
        count = None if last is None else whole(last, "last")
        bounds = await self.bounds(numbers)
        ends = await self.places(LATEST if end is None else end, bounds)
        if count is None:
            starts = await self.places(start, bounds)
        elif start is not None:
            raise BadRequest("start and last cannot be combined", hint="Use only one of them")
        elif count < 0:
            raise BadRequest(f"last must be 0 or more, got {count}")
        else:
            starts = {n: max(bounds[n].first, stop - count) for n, stop in ends.items()}
        for number in numbers:
            if ends[number] > bounds[number].end:
                raise Behind(str(number), ends[number], bounds[number].end)
        return tuple(_range(number, starts[number], ends[number], end) for number in numbers)


def _range(number: int, start: int, stop: int, end: Where) -> Range:
    if start <= stop:
        return Range(number, start, stop)
    if end is None:
        raise Behind(str(number), start, stop)
    raise BadRequest(f"partition {number}: the start {start} is after the end {stop}")


def _offset(given: object) -> int:
    number = whole(given, "an offset")
    if not 0 <= number < 2**63:
        hint = "Offsets start at 0; for the last rows use last=…"
        raise BadRequest(f"{number} is not a valid offset", hint=hint)
    return number
