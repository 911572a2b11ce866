"""A consumer group's reader: goes on where the group's cursors are.

A cursor has one member at a time, the one that took it last. A new member claims each cursor
with a generation of its own that is above all before it. A claim names no offset: the log keeps
the one that is stored when the claim's turn comes, and answers with it. An earlier member's
commit comes before the claim and is kept, or after it and is refused. So:

    nothing claimed yet      the earlier member goes on; the newcomer's reading starts nowhere
    some cursors claimed     those partitions are the newcomer's, the others still the earlier's
    all claimed              the earlier member is refused at its next commit, by name

Where a group has no cursor yet, a member makes one with generation 0, which every claim is
above: of two members that begin at once, neither can replace what the other has claimed.

No one has to be told that a member died: a restart takes the cursors, and reads on behind what
was committed. A connection that is lost and made again changes no generation.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.client.read.feed import Feed, Slab
from headrace.client.read.prefetch import started
from headrace.client.read.rows import endless
from headrace.client.read.spans import EARLIEST, Spans, Where
from headrace.client.values.answers import Cursor
from headrace.client.values.parse import duration, word
from headrace.client.values.topic_view import View
from headrace.errors import Diverged, Refused
from headrace.model.ids import KEEP_NEXT
from headrace.model.namespace import check_name
from headrace.model.results import CursorStored
from headrace.wire.read_messages import StoreCursorRequest

CLAIMS_MAX: Final = 64  # cursors that are taken at once
_FENCED: Final = "fenced"
_GENERATION_STEP_MAX: Final = 1 << 20
_NO_CURSOR: Final = "cursor_unknown"

if TYPE_CHECKING:
    from headrace.client.topic import AsyncTopic


class AsyncConsumer:
    """Returns batches as they arrive. `commit` durably stores the place after the last one."""

    def __init__(
        self,
        topic: "AsyncTopic",
        group: str,
        *,
        partition: int | Sequence[int] | None,
        start: Where,
        columns: Sequence[str] | None,
        hold: bool,
        auto_commit: bool,
    ) -> None:
        self.group = check_name("consumer group", word(group, "consumer group"))
        self._topic = topic
        self._partition = partition
        self._start = start
        self._columns = columns
        self._hold = hold
        self._auto_commit = auto_commit
        # By partition: the next row to be given, and the one that is stored.
        self._next: dict[int, int] | None = None
        self._stored: dict[int, int] = {}
        self._is_ahead = False  # something was given since the last commit
        self._generation = 0  # of this member, once it has joined: no other has it
        self._fenced: Refused | None = None  # why this member is one no more
        self._slabs: AsyncGenerator[Slab, None] | None = None
        self._pending: asyncio.Task[Slab] | None = None

    def __repr__(self) -> str:
        return f"<consumer {self.group!r} of {self._topic.name!r}>"

    async def __aenter__(self) -> "AsyncConsumer":
        await self.positions()
        return self

    async def __aexit__(self, _kind: object, error: object, _trace: object) -> None:
        if self._auto_commit and self._is_ahead and error is None:
            await self.commit()
        await self.close()

    def __aiter__(self) -> "AsyncConsumer":
        return self

    async def __anext__(self) -> pa.RecordBatch:
        rows = await self._take(None)
        assert rows is not None
        return rows

    async def poll(self, wait: str | float = "1s") -> pa.RecordBatch | None:
        """Return the next batch, or None if none arrives within `wait`."""
        return await self._take(duration(wait, "wait").seconds)

    async def positions(self) -> dict[int, int]:
        """Return the next offset of each partition that this consumer will return."""
        return dict(await self._load())

    async def commit(self) -> dict[int, int]:
        """Mark everything returned so far as done. Returns the next offsets.

        Raises Refused if another consumer has taken the group over; this one then stops.
        """
        positions = await self._active()
        moved = {
            number: place
            for number, place in positions.items()
            if self._stored.get(number) != place
        }
        if not moved:
            await self._check_membership()
        for number, place in moved.items():
            await self._store(number, place, hold=self._hold)
        self._is_ahead = False
        return dict(positions)

    async def seek(self, where: Where) -> dict[int, int]:
        """Continue from another place: an offset, a time, `earliest`, `latest`, or a dict."""
        positions = await self._active()
        await self._stop()
        await self._grow()
        spans = Spans(self._topic.caller, self._topic.view)
        found = await spans.places(where, await spans.bounds(list(positions)))
        positions.update(found)
        return found

    async def close(self) -> None:
        """Stop reading. Uncommitted rows will be redelivered."""
        await self._stop()

    async def _take(self, wait: float | None) -> pa.RecordBatch | None:
        positions = await self._active()
        if self._auto_commit and self._is_ahead:
            await self.commit()
        if self._slabs is None:
            feeds = self._topic.feeds(positions, self._columns)
            self._slabs = endless(feeds, self._more if self._partition is None else None)
        if self._pending is None:
            self._pending = started(_next_of(self._slabs))
        done, _ = await asyncio.wait({self._pending}, timeout=wait)
        if not done:
            return None
        pending, self._pending = self._pending, None
        try:
            slab = pending.result()
        except BaseException:
            self._slabs = None
            raise
        positions[slab.partition] = slab.next
        self._is_ahead = True
        return slab.rows

    async def _active(self) -> dict[int, int]:
        """Join the group; raise if another member has taken it over since."""
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)  # it would grow with each raise
        return await self._load()

    async def _load(self) -> dict[int, int]:
        """Join the group where it is. Where it has no cursor, it begins at `start`."""
        if self._next is not None:
            return self._next
        view = await self._topic.refresh()
        self._next = await self._places(view, view.numbers(self._partition), self._start)
        return self._next

    async def _more(self) -> list[Feed]:
        return self._topic.feeds(await self._grow(), self._columns)

    async def _grow(self) -> dict[int, int]:
        """Take on the partitions that are new, from the group's cursors or their beginnings."""
        assert self._next is not None
        if self._partition is not None:
            return {}
        view = await self._topic.refresh()
        fresh = [number for number in view.numbers(None) if number not in self._next]
        found = await self._places(view, fresh, EARLIEST) if fresh else {}
        self._next.update(found)
        return found

    async def _places(self, view: View, numbers: Sequence[int], start: Where) -> dict[int, int]:
        spans = Spans(self._topic.caller, view)
        cursors = {each.partition: each for each in await self._topic.cursors(self.group)}
        bounds = await spans.bounds(numbers)
        newest = max((each.generation for each in cursors.values()), default=0)
        if not self._generation:
            # Behind a clock that was ahead, two that join at once must not be one member.
            above = newest + 1 + secrets.randbelow(_GENERATION_STEP_MAX)
            self._generation = max(above, time.time_ns())
        fresh = {number: each for number, each in bounds.items() if number not in cursors}
        places = await spans.places(start, fresh)
        for number in numbers:
            cursor = cursors.get(number)
            if cursor is not None:
                self._check(cursor, bounds[number].end)
                places[number] = cursor.next
        for start_at in range(0, len(numbers), CLAIMS_MAX):
            some = numbers[start_at : start_at + CLAIMS_MAX]
            claims = [self._claim(each, places[each], is_new=each in fresh) for each in some]
            places.update(zip(some, await asyncio.gather(*claims), strict=True))
        return {number: places[number] for number in numbers}

    async def _claim(self, number: int, start: int, *, is_new: bool) -> int:
        """Take a cursor over and return its offset, which is `start` if there was none."""
        while True:
            if is_new:
                await self._make(number, start)
            try:
                return await self._store(number, KEEP_NEXT, hold=self._hold)
            except Refused as error:
                if error.code != _NO_CURSOR:
                    raise
                is_new = True  # it was deleted meanwhile

    async def _make(self, number: int, start: int) -> None:
        """Make a cursor that has no member yet, unless there is one by now."""
        request = self._request(number, start, generation=0, hold=self._hold)
        try:
            await self._topic.caller.get(request, CursorStored)
        except Refused as error:
            if error.code != _FENCED:
                raise

    async def _check_membership(self) -> None:
        """Raise if another member has taken a cursor over; nothing is written."""
        assert self._next is not None
        for cursor in await self._topic.cursors(self.group):
            if cursor.partition in self._next and cursor.generation > self._generation:
                raise self._taken_over(cursor.partition)

    def _check(self, cursor: Cursor, end: int) -> None:
        if cursor.next > end:
            raise Diverged(
                f"consumer group {self.group!r} reads {cursor.next} next, beyond the end",
                path=f"partition {cursor.partition} of {self._topic.name!r}",
                expected=f"at most {end}",
                found=cursor.next,
                hint="Rows that were acknowledged are gone; delete the cursor, and begin anew",
            )

    async def _store(self, number: int, place: int, *, hold: bool) -> int:
        request = self._request(number, place, generation=self._generation, hold=hold)
        try:
            stored = await self._topic.caller.get(request, CursorStored)
        except Refused as error:
            if error.code != _FENCED:
                raise
            raise self._taken_over(number) from error
        self._stored[number] = stored.next
        return stored.next

    def _request(
        self, number: int, place: int, *, generation: int, hold: bool
    ) -> StoreCursorRequest:
        info = self._topic.view.partition(number)
        return StoreCursorRequest(
            namespace=info.namespace,
            created=info.created,
            group=self.group,
            next=place,
            generation=generation,
            hold=hold,
        )

    def _taken_over(self, number: int) -> Refused:
        """Return what this consumer raises from now on: it can never commit again."""
        self._fenced = Refused(
            _FENCED,
            f"commit refused: another consumer has taken over group {self.group!r} on "
            f"partition {number} of {self._topic.name!r} (or the group was reset)",
            hint="Run one consumer per partition, or use a different group. Uncommitted rows "
            "will be redelivered",
        )
        return self._fenced

    async def _stop(self) -> None:
        pending, self._pending = self._pending, None
        slabs, self._slabs = self._slabs, None
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        if slabs is not None:
            await slabs.aclose()


async def _next_of(slabs: AsyncGenerator[Slab, None]) -> Slab:
    return await anext(slabs)
