"""Judges batches before they are proposed: sizes, checksum, Arrow's own checks, schema.

Small bodies are judged at once, large ones in threads, beside the loop. They leave in the order
in which they came: a writer's versions must not overtake one another.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.errors import BadBatch, BodyTooLarge, HeadraceError
from headrace.journal.entry import BODY_SIZE_MAX, CHECKSUM_SIZE
from headrace.model import batch
from headrace.partition.operations import (
    APPEND,
    STAGE,
    STAGE_HEADER_SIZE,
    STAGE_ID_SIZE,
    encode_stage,
)
from headrace.storage.seam import Buffer
from headrace.vsr.messages import NOBODY, Request
from headrace.wire.writing import Append, Stage

INLINE_SIZE_MAX = 256 * 1024  # judged within a loop's turn: well under a millisecond
_VERSION_MAX = 2**63 - 1
_NUMBER_MAX = 2**32 - 1


class Kind(NamedTuple):
    """What a batch must be."""

    schema: pa.Schema
    layout: batch.Layout


Then = Callable[[Request | HeadraceError], None]


@dataclass(slots=True)
class _InLine:
    then: Then
    outcome: Request | HeadraceError | None = None


@dataclass(slots=True)
class Admission:
    """One line of batches. All but the judging happens on the loop's thread."""

    loop: asyncio.AbstractEventLoop
    threads: Executor
    _line: deque[_InLine] = field(default_factory=deque)

    def admit(self, judge: Callable[[], Request], size: int, then: Then) -> None:
        """Call `then` with what `judge` returns or raises, when all before it are through."""
        if size <= INLINE_SIZE_MAX:
            outcome = _outcome(judge)
            if not self._line:
                then(outcome)
                return
            self._line.append(_InLine(then, outcome))
            return
        place = _InLine(then)
        self._line.append(place)
        self.threads.submit(self._judge, judge, place)

    def _judge(self, judge: Callable[[], Request], place: _InLine) -> None:
        """In a thread."""
        self.loop.call_soon_threadsafe(self._judged, place, _outcome(judge))

    def _judged(self, place: _InLine, outcome: Request | HeadraceError) -> None:
        place.outcome = outcome
        while self._line and self._line[0].outcome is not None:
            through = self._line.popleft()
            assert through.outcome is not None
            through.then(through.outcome)


def _outcome(judge: Callable[[], Request]) -> Request | HeadraceError:
    try:
        return judge()
    except HeadraceError as error:
        return error
    except (MemoryError, pa.ArrowMemoryError):
        return BadBatch("this node has not enough memory for it", hint="Send smaller batches")


def judge_append(request: Append, body: Buffer, kind: Kind) -> Request:
    """Return what is proposed for an Append, or raise."""
    checksum = _judge(request, body, kind)
    return Request(
        APPEND,
        body,
        checksum,
        request.writer,
        request.version,
        request.namespace,
        request.created,
        request.schema_id,
        request.row_count,
    )


def judge_stage(request: Stage, body: Buffer, kind: Kind) -> Request:
    """Return what is proposed for a Stage, or raise."""
    if len(request.stage_id) != STAGE_ID_SIZE or not 0 <= request.number <= _NUMBER_MAX:
        raise BadBatch("the stage's id or number cannot be")
    _judge(request, body, kind, reserve=STAGE_HEADER_SIZE)
    return Request(
        STAGE,
        encode_stage(request.stage_id, request.number) + bytes(body),
        b"",
        request.writer,
        request.version,
        request.namespace,
        request.created,
        request.schema_id,
        request.row_count,
    )


def _judge(request: Append | Stage, body: Buffer, kind: Kind, reserve: int = 0) -> bytes:
    """Judge a batch, and return the checksum of its body."""
    if len(body) + reserve > BODY_SIZE_MAX:
        raise BodyTooLarge(len(body), BODY_SIZE_MAX - reserve)
    if len(request.writer) != len(NOBODY) or request.writer == NOBODY:
        raise BadBatch("a writer is 16 bytes, and not all zeros")
    if not 1 <= request.version <= _VERSION_MAX:
        raise BadBatch(f"{request.version} is no version: a writer counts from 1")
    if not 0 <= request.row_count <= _NUMBER_MAX:
        raise BadBatch(f"{request.row_count} is no number of rows")
    checksum = xxh3_128_digest(body)
    if request.checksum and (
        len(request.checksum) != CHECKSUM_SIZE or request.checksum != checksum
    ):
        raise BadBatch(
            f"the body's checksum is {checksum.hex()}, the sender's {request.checksum.hex()}",
            hint="Its bytes were changed on the way: send it again, and look at the network",
        )
    batch.admit(body, kind.schema, request.row_count, kind.layout)
    return checksum
