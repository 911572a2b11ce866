"""Frames: the framing of messages on a connection. Little-endian; docs/protocol.md.

    frame  := header  meta  body
    header := magic:4s=HRW1  kind:u16  flags:u16  id:u64  deadline_ms:u32
              meta_size:u32  body_size:u32  body_crc:u32  zeros:u32=0  head_crc:u32

`head_crc` is the CRC-32 of the 36 bytes before it and of the meta, `body_crc` that of the body.
Flag 1: there is no `body_crc`, because the message has a better checksum of the body.
The meta is a message (wire/codec.py); the body is rows, which are opaque here.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import BadFrame, BodyTooLarge
from headrace.wire.codec import decode, encode
from headrace.wire.messages import Message
from headrace.wire.msgpack import Buffer

MAGIC: Final = b"HRW1"
META_SIZE_MAX: Final = 16 * 1024 * 1024  # a topic with many schemas
BODY_SIZE_MAX: Final = (
    64 * 1024 * 1024 + 64 * 1024
)  # an entry's body, and the padding between rows
RECEIVE_SIZE: Final = 128 * 1024  # the most that one receive reads, outside of large bodies
# A larger incomplete body gets its own buffer; smaller ones wait here and are copied.
OWN_BUFFER_SIZE: Final = 64 * 1024
# The default initial size of such a buffer, which grows as bytes arrive: a batch of normal size
# is not moved, and a 40-byte header that claims the maximum size costs no more than this.
BODY_BUFFER_SIZE: Final = 1024 * 1024 + 64 * 1024
_BODY_GROWTH: Final = 4  # growth factor: few bytes are copied twice
DEADLINE_MS_MAX: Final = 2**32 - 1

_NO_BODY_CRC: Final = 1  # the only flag

# With less free space than this, the buffer's content is moved to its front.
_ROOM_SIZE_MIN: Final = 16 * 1024

_HEAD: Final = struct.Struct("<4sHHQIIIII")  # all but the last word, which is their CRC
_CRC: Final = struct.Struct("<I")
HEADER_SIZE: Final = _HEAD.size + _CRC.size
assert HEADER_SIZE == 40
assert HEADER_SIZE + OWN_BUFFER_SIZE <= RECEIVE_SIZE
assert RECEIVE_SIZE <= BODY_BUFFER_SIZE  # the part received with the header fits


@dataclass(frozen=True, slots=True)
class Frame:
    """A received frame: its head is verified, its message and its body are not yet."""

    kind: int
    id: int  # of the request; its answer has the same
    deadline_ms: int  # counted from its arrival; 0: none
    meta: bytes
    body: Buffer  # a separate buffer of exactly the body
    body_crc: int | None  # None: its message has another checksum of the body


class _Header(NamedTuple):
    kind: int
    id: int
    deadline_ms: int
    meta_size: int
    body_size: int
    body_crc: int | None
    crc: int  # of the header; continued over the meta
    head_crc: int


def encode_frame(
    message: Message,
    request_id: int,
    body: Sequence[Buffer] = (),
    deadline_ms: int = 0,
    *,
    has_crc: bool = True,
) -> list[Buffer]:
    """Encode a frame as pieces: header and meta in one, then the body's pieces, not copied.

    Without a CRC, the message must have a checksum of the body that the receiver can compute.
    """
    assert 0 <= request_id < 2**64
    assert deadline_ms >= 0
    meta = encode(message)
    body_size = body_crc = 0
    for piece in body:
        body_size += memoryview(piece).nbytes
        if has_crc:
            body_crc = zlib.crc32(piece, body_crc)
    if len(meta) > META_SIZE_MAX:
        raise BadFrame(
            f"{type(message).__name__} of {len(meta)} bytes is over the limit of "
            f"{META_SIZE_MAX}",
            hint="Nothing was sent; request less at once",
        )
    if body_size > BODY_SIZE_MAX:
        raise BodyTooLarge(body_size, BODY_SIZE_MAX)
    head = _HEAD.pack(
        MAGIC,
        message.kind,
        0 if has_crc else _NO_BODY_CRC,
        request_id,
        min(deadline_ms, DEADLINE_MS_MAX),
        len(meta),
        body_size,
        body_crc,
        0,
    )
    head_crc = zlib.crc32(meta, zlib.crc32(head))
    return [b"".join((head, _CRC.pack(head_crc), meta)), *body]


def decode_message(frame: Frame) -> Message:
    """Decode a frame's message. BadFrame if it is invalid."""
    return decode(frame.kind, frame.meta)


def check_body(frame: Frame) -> None:
    """Verify the CRC-32 of a frame's body. BadFrame if it does not match."""
    if frame.body_crc is None:
        raise BadFrame(f"the body of request {frame.id} has no CRC-32")
    if (found := zlib.crc32(frame.body)) != frame.body_crc:
        raise BadFrame(
            f"the body of request {frame.id}: expected CRC-32 {frame.body_crc:08x}, "
            f"found {found:08x}"
        )


class FrameReader:
    """Parses frames from received bytes, without doing I/O itself.

    Receive into the buffer from `get_buffer`, then pass the number of bytes to `received`. The
    limits may be changed at any time, and apply to frames whose header has not arrived yet.
    """

    def __init__(
        self,
        *,
        meta_size_max: int = META_SIZE_MAX,
        body_size_max: int = BODY_SIZE_MAX,
        reserved_size: int = BODY_BUFFER_SIZE,
        reserve: Callable[[int], memoryview] = lambda size: memoryview(bytearray(size)),
    ) -> None:
        """Create a reader. A body's own buffer starts at `reserved_size`, from `reserve`."""
        self.meta_size_max = meta_size_max
        self.body_size_max = body_size_max
        self._reserved_size = reserved_size
        self._reserve = reserve
        self._is_refusing = False
        # Received bytes of the buffer from `start` to before `end` are in no frame yet.
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._header: _Header | None = None  # of the incomplete frame
        self._meta: bytes | None = None  # its meta, once received and verified
        self._body: memoryview | None = None  # its body's own buffer, if it has one
        self._body_end = 0  # bytes of it received
        self._is_head_taken = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no incomplete frame."""
        return self._header is None and self._start == self._end

    @property
    def room_size(self) -> int:
        """The size of a body's own buffer, or the size needed to continue; 0: none."""
        if self._body is None:
            return 0
        size = len(self._body)
        return self._grown_size(size) if self._body_end == size else size

    @property
    def held_size(self) -> int:
        """Bytes of memory held: the buffer, and the incomplete frame."""
        return len(self._buffer) + len(self._meta or b"") + len(self._body or b"")

    def take_head(self) -> Frame | None:
        """Return the frame whose body is arriving, once, without the body; or None."""
        header, meta = self._header, self._meta
        if header is None or meta is None or self._is_head_taken:
            return None
        self._is_head_taken = True
        return Frame(header.kind, header.id, header.deadline_ms, meta, b"", header.body_crc)

    def get_buffer(self, size_hint: int) -> memoryview:
        """Return the buffer for the next bytes, never empty; `size_hint` is ignored."""
        if self._body is not None:
            if self._body_end == len(self._body):
                self._grow_body(self._body)
            return self._body[self._body_end :]
        if len(self._buffer) - self._end < _ROOM_SIZE_MIN:
            self._make_room()
        return self._view[self._end :]

    def received(self, size: int) -> list[Frame]:
        """Process `size` received bytes; return the frames completed by them.

        BadFrame: the peer violates the protocol. Frames received together with the bad bytes
        are dropped, and the reader refuses everything from then on.
        """
        if self._is_refusing:
            raise BadFrame("more bytes after a protocol error")
        try:
            return self._into_buffer(size) if self._body is None else self._into_body(size)
        except BadFrame:
            self._refuse()
            raise

    def _into_buffer(self, size: int) -> list[Frame]:
        self._end += size
        assert self._end <= len(self._buffer)
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > RECEIVE_SIZE:
                self._use_buffer(RECEIVE_SIZE)
        return frames

    def _into_body(self, size: int) -> list[Frame]:
        assert self._body is not None
        assert self._header is not None
        self._body_end += size
        assert self._body_end <= len(self._body)
        if self._body_end < self._header.body_size:
            return []
        body, self._body = self._body, None
        return [self._whole(body)]

    def _next(self) -> Frame | None:
        """Parse the next frame from the buffer, as far as it has arrived."""
        header = self._header
        if header is None:
            header = self._header = self._take_header()
            if header is None:
                return None
        if self._meta is None:
            self._meta = self._take_meta(header)
            if self._meta is None:
                return None
        end = self._start + header.body_size
        if end <= self._end:
            body = bytes(self._view[self._start : end])
            self._start = end
            return self._whole(body)
        if header.body_size > OWN_BUFFER_SIZE:
            self._begin_body(header.body_size)
        return None

    def _take_header(self) -> _Header | None:
        start = self._start
        if self._end - start < HEADER_SIZE:
            opening = bytes(self._view[start : min(self._end, start + len(MAGIC))])
            if not MAGIC.startswith(opening):
                raise _not_ours(opening)
            return None
        magic, kind, flags, request_id, deadline_ms, meta_size, body_size, body_crc, zeros = (
            _HEAD.unpack_from(self._buffer, start)
        )
        if magic != MAGIC:
            raise _not_ours(magic)
        if flags & ~_NO_BODY_CRC or zeros or (flags and body_crc):
            raise BadFrame(f"reserved bits: expected none, found {flags:#x} and {zeros:#x}")
        if meta_size > self.meta_size_max:
            raise BadFrame(
                f"a meta of {meta_size} bytes is over the limit of {self.meta_size_max}"
            )
        if body_size > self.body_size_max:
            raise BadFrame(
                f"a body of {body_size} bytes is over the limit of {self.body_size_max}"
            )
        crc = zlib.crc32(self._view[start : start + _HEAD.size])
        (head_crc,) = _CRC.unpack_from(self._buffer, start + _HEAD.size)
        self._start = start + HEADER_SIZE
        known = None if flags else body_crc
        return _Header(
            kind, request_id, deadline_ms, meta_size, body_size, known, crc, head_crc
        )

    def _take_meta(self, header: _Header) -> bytes | None:
        end = self._start + header.meta_size
        if end > self._end:
            return None
        meta = bytes(self._view[self._start : end])
        if (found := zlib.crc32(meta, header.crc)) != header.head_crc:
            raise BadFrame(f"a head: expected CRC-32 {header.head_crc:08x}, found {found:08x}")
        self._start = end
        return meta

    def _begin_body(self, size: int) -> None:
        """Receive the rest of the body directly into its own buffer."""
        came = self._view[self._start : self._end]
        self._body, self._body_end = self._reserve(min(size, self._reserved_size)), len(came)
        self._body[: len(came)] = came
        self._start = self._end

    def _grow_body(self, full: memoryview) -> None:
        """Move to a new, larger buffer: the transport may hold a view of the old one."""
        self._body = self._reserve(self._grown_size(len(full)))
        self._body[: len(full)] = full

    def _grown_size(self, size: int) -> int:
        assert self._header is not None
        return min(self._header.body_size, _BODY_GROWTH * size)

    def _whole(self, body: Buffer) -> Frame:
        header, meta = self._header, self._meta
        assert header is not None
        assert meta is not None
        self._header = self._meta = None
        self._is_head_taken = False
        return Frame(header.kind, header.id, header.deadline_ms, meta, body, header.body_crc)

    def _make_room(self) -> None:
        """Move the buffer's content to its front, or to a larger one for a large meta."""
        capacity = len(self._buffer)
        wanted = 0 if self._header is None or self._meta is not None else self._header.meta_size
        if wanted > capacity:
            self._use_buffer(min(wanted, 2 * capacity))
        elif self._start:
            size = self._end - self._start
            self._buffer[:size] = self._view[self._start : self._end]
            self._start, self._end = 0, size

    def _use_buffer(self, capacity: int) -> None:
        came = self._view[self._start : self._end]
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._view[: len(came)] = came
        self._start, self._end = 0, len(came)

    def _refuse(self) -> None:
        """Drop everything; keep a small buffer for `get_buffer`."""
        self._is_refusing = True
        self._header = None
        self._start = self._end = 0
        self._use_buffer(_ROOM_SIZE_MIN)


def _not_ours(opening: bytes) -> BadFrame:
    return BadFrame(f"a frame: expected {MAGIC!r} first, found {opening!r}")
