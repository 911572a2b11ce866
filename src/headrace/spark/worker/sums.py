"""Checksums of rows sent and received: xxh3-128 if xxhash is installed, else CRC-32.

xxhash is optional on executors. If it is installed, the node is told so and sends rows with the
checksums that their producers computed. Then neither side computes a CRC-32, which takes six
times as long.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.errors import BadFrame, BadRequest
from headrace.model.results import FetchedPiece
from headrace.wire.file_messages import FileChunk
from headrace.wire.frames import Frame, check_body
from headrace.wire.messages import Message
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import FetchReply

if TYPE_CHECKING:
    from xxhash import xxh3_128

_ALIGNMENT: Final = 64  # of the pieces of a body


def _xxh3_128() -> Callable[[Buffer], bytes] | None:
    try:
        from xxhash import xxh3_128_digest
    except ImportError:
        return None
    return xxh3_128_digest


_digest: Final = _xxh3_128()
NEEDS_CRC: Final = _digest is None  # sent in Hello


def checksum_of(body: Buffer) -> bytes:
    """Return the xxh3-128 of rows to send; empty if their frame needs a CRC-32."""
    return b"" if _digest is None else _digest(body)


def has_file_digest() -> bool:
    """Whether whole files can be checked here."""
    return _digest is not None


def file_digest() -> "xxh3_128":
    """Return a new hash for the digest of a whole file. It needs xxhash."""
    try:
        from xxhash import xxh3_128
    except ImportError:
        raise BadRequest(
            "a file can be fetched only where xxhash is installed: it checks the copy",
            hint="Install xxhash for the Python of the executors",
        ) from None
    return xxh3_128()


def check(frame: Frame, message: Message) -> None:
    """Verify the checksums of everything in a frame's body. Raises BadFrame on a mismatch."""
    if isinstance(message, FileChunk) and _digest is not None:
        if _digest(frame.body) != message.checksum:
            raise BadFrame(f"bytes of a file from {message.position} on are not what was sent")
        return
    if frame.body_crc is not None:
        check_body(frame)
        return
    if _digest is None or not isinstance(message, FetchReply):
        raise BadFrame("received a body without its CRC-32")
    for piece, data in pieces_of(message, frame.body):
        if _digest(data) != piece.checksum:
            raise BadFrame(f"rows from {piece.first} on are not what was sent")


def pieces_of(fetched: FetchReply, body: Buffer) -> Iterator[tuple[FetchedPiece, memoryview]]:
    """Yield each piece of an answer with its bytes."""
    view, position = memoryview(body), 0
    for piece in fetched.pieces:
        data = view[position : position + piece.size]
        if data.nbytes != piece.size:
            raise BadFrame(f"expected {piece.size} bytes of rows, got {data.nbytes}")
        yield piece, data
        position += -(-piece.size // _ALIGNMENT) * _ALIGNMENT
