"""The answers to one peer: gathered for a loop turn, then written at once."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError
from headrace.server.connections.limits import PROGRESS_SIZE_MIN, UNSENT_SIZE_MAX, PeerLimits
from headrace.server.connections.traffic import Traffic
from headrace.wire.error_codes import to_failed
from headrace.wire.file_messages import FileChunk
from headrace.wire.frames import encode_frame
from headrace.wire.greeting import Accepted, Welcome
from headrace.wire.messages import Reply
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import FetchReply


@dataclass(slots=True)
class Progress:
    """Detects a stalled transfer. Sizes are running totals of a connection."""

    since: float
    target: int | None  # the size that must be reached in frame_timeout; None: unknown
    mark_size: int
    mark_at: float

    @classmethod
    def begin(cls, now: float, size: int, target: int | None = None) -> "Progress":
        """Start observing at a total of `size`."""
        return cls(now, target, size, now)

    def is_stuck(self, now: float, size: int, limits: PeerLimits) -> bool:
        """Return whether progress is too slow, or the whole took too long."""
        if now - self.since >= limits.frame_timeout:
            return True
        if now - self.mark_at < limits.stall_timeout:
            return False
        if size - self.mark_size < PROGRESS_SIZE_MIN:
            return True
        self.mark_size, self.mark_at = size, now
        return False

    def is_through(self, size: int) -> bool:
        """Return whether the target is reached."""
        return self.target is not None and size >= self.target


JOIN_SIZE_MAX: Final = 64 * 1024  # copying this little is cheaper than many pieces

Said = Reply | Welcome | Accepted | HeadraceError


def encode_answer(
    traffic: Traffic,
    request_id: int,
    said: Said,
    body: Sequence[Buffer] = (),
    *,
    needs_crc: bool = True,
) -> list[Buffer]:
    """Encode an answer as a frame. Only here do errors become ErrorReply."""
    if not isinstance(said, HeadraceError):
        has_crc = needs_crc or not _is_covered(said)
        try:
            return encode_frame(said, request_id, body, has_crc=has_crc)
        except HeadraceError as error:  # larger than a frame can be
            said = error
    failed = to_failed(said)
    traffic.refused[failed.code] += 1
    return encode_frame(failed, request_id)


def _is_covered(said: Said) -> bool:
    """Return whether an answer has checksums for all of its body."""
    if isinstance(said, FileChunk):
        return bool(said.checksum)
    return isinstance(said, FetchReply) and all(piece.checksum for piece in said.pieces)


class WriteQueue:
    """The answers of one connection."""

    __slots__ = (
        "_answers",
        "_counted_size",
        "_progress",
        "_traffic",
        "_written_size",
        "needs_crc",
        "size",
    )

    def __init__(self, traffic: Traffic) -> None:
        self.needs_crc = True  # the peer supports no other checksum
        self.size = 0  # of the bodies to be written
        self._traffic = traffic
        # Each with the bytes that count until the peer has received it.
        self._answers: deque[tuple[int, Said, Sequence[Buffer], int]] = deque()
        self._counted_size = 0  # of the written answers
        self._written_size = 0  # of everything given to the transport
        self._progress: Progress | None = None  # of what the transport still holds

    def __bool__(self) -> bool:
        return bool(self._answers)

    def add(
        self, request_id: int, said: Said, body: Sequence[Buffer] = (), counted_size: int = 0
    ) -> None:
        """Queue an answer for the write of this turn, or a later one."""
        self._answers.append((request_id, said, body, counted_size))
        for piece in body:
            self.size += len(piece)

    def clear(self) -> int:
        """Drop answers that cannot be sent. Returns the bytes that counted for them."""
        size = self.taken() + sum(counted_size for *_, counted_size in self._answers)
        self._answers.clear()
        self.size = 0
        return size

    def write(self, transport: asyncio.Transport) -> None:
        """Pass the next answers to the transport in one call, up to a size limit."""
        pieces: list[Buffer] = []
        size = 0
        while self._answers and size < UNSENT_SIZE_MAX:
            request_id, said, body, counted_size = self._answers.popleft()
            frame = encode_answer(
                self._traffic, request_id, said, body, needs_crc=self.needs_crc
            )
            pieces += frame
            size += sum(map(len, frame))
            self.size -= sum(map(len, body))
            self._counted_size += counted_size
            self._traffic.frames_out += 1
        self._traffic.bytes_out += size
        self._written_size += size
        if size <= JOIN_SIZE_MAX:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)

    def taken(self) -> int:
        """Return the bytes that counted for written answers, now that they are received."""
        size, self._counted_size = self._counted_size, 0
        return size

    def is_stuck(self, transport: asyncio.Transport, now: float, limits: PeerLimits) -> bool:
        """Return whether the peer has stopped reading its answers."""
        unsent_size = transport.get_write_buffer_size()
        if not unsent_size:
            self._progress = None
            return False
        sent_size = self._written_size - unsent_size
        if self._progress is None or self._progress.is_through(sent_size):
            self._progress = Progress.begin(now, sent_size, self._written_size)
        return self._progress.is_stuck(now, sent_size, limits)
