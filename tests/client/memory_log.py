"""A log in memory that keeps the writer rule, behind a channel that loses things as told.

It is written from the rule's own words, not from the machine's code: version 1 begins a writer,
the next one is taken, a known one is answered again, a gap is refused. Copies of requests whose
answer was lost may arrive as late as the script says.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.client.connect.channel import begin_task
from headrace.errors import (
    BadBatch,
    Busy,
    ConnectionLost,
    HeadraceError,
    NotYet,
    Refused,
    Unknown,
    WriterUnknown,
)
from headrace.model.results import AppendResult
from headrace.wire.write_messages import AppendRequest

REMEMBERED = 64

# What the channel does with a request:
DELIVER = "deliver"
LOSE = "lose the request"  # it was never sent
LOSE_ANSWER = "lose the answer"  # it arrived, and nobody heard
LATE = "deliver late"  # the answer is lost, and the request arrives some time later
BUSY = "busy"
REJECT = "reject"
# Only those whose version 1 was answered, and of which no copy is under way: a log forgets who
# was silent for a week, and nothing is repeated or late for so long.
FORGET = "forget the writers, then deliver"
FAULTS = (LOSE, LOSE_ANSWER, LATE, BUSY, REJECT, FORGET)


@dataclass
class MemoryPartition:
    """One partition: its batches in their order, and what it remembers of its writers."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    writers: dict[bytes, dict[int, tuple[bytes, int, int]]] = field(default_factory=dict)

    def apply(self, request: AppendRequest, body: bytes) -> AppendResult:
        known = self.writers.get(request.writer)
        if known is None:
            if request.version != 1:
                raise WriterUnknown(f"version {request.version} of an unknown writer")
            known = self.writers[request.writer] = {}
        newest = max(known, default=0)
        if request.version > newest + 1:
            raise NotYet("out_of_order", f"{request.version} came before {newest + 1}")
        if request.version == newest + 1:
            start, self.end = self.end, self.end + request.row_count
            known[request.version] = (body, start, self.end)
            known.pop(request.version - REMEMBERED, None)
            self.batches.append(body)
            return AppendResult(start, self.end, repeated=False)
        if request.version not in known:
            raise Refused("too_old", "below what is remembered")
        earlier, start, end = known[request.version]
        if earlier != body:
            raise Refused("writer_conflict", "written before with other content")
        return AppendResult(start, end, repeated=True)


@dataclass
class MemoryChannel:
    """Delivers, or not, as the script says; after its end, everything arrives."""

    script: Iterator[str]
    partition: MemoryPartition = field(default_factory=MemoryPartition)
    address: str = "memory"
    body_size_max: int = 1024 * 1024
    seen: list[tuple[str, int]] = field(default_factory=list)  # deeds and versions
    answered: set[bytes] = field(default_factory=set)  # writers that know of their version 1
    late: list[bytes] = field(default_factory=list)  # the writer of each copy under way

    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        assert isinstance(request, AppendRequest)
        assert timeout > 0
        deed = next(self.script, DELIVER)
        self.seen.append((deed, request.version))
        data = b"".join(bytes(each) for each in body)
        await asyncio.sleep(0.001)
        if deed == LOSE:
            raise ConnectionLost("lost on the way")
        if deed == BUSY:
            raise Busy("too much at once", retry_after_ms=30)
        if deed == REJECT:
            raise BadBatch("not to the node's taste")
        if deed == LATE:
            self.late.append(request.writer)
            asyncio.get_running_loop().call_later(0.05, self._apply_late, request, data)
            raise Unknown("the answer was lost")
        if deed == FORGET:
            for writer in self.answered.difference(self.late):
                self.partition.writers.pop(writer, None)
        reply = self.partition.apply(request, data)
        if deed == LOSE_ANSWER:
            raise Unknown("the answer was lost")
        if request.version == 1:
            self.answered.add(request.writer)
        return reply, b""

    def begin(self, request, body, *, deadline, done):
        timeout = deadline - asyncio.get_running_loop().time()
        return begin_task(self.call(request, body, timeout=timeout), done)

    async def close(self):
        return

    def _apply_late(self, request, data):
        self.late.remove(request.writer)
        try:
            self.partition.apply(request, data)
        except HeadraceError:
            return  # nobody hears it


def a_channel(script: Iterable[str] = ()) -> MemoryChannel:
    return MemoryChannel(iter(script))
