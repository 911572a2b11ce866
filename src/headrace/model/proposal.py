"""What somebody wants in a group's log: the part of an entry that its proposer chooses."""

from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview
NO_WRITER: Final = bytes(16)  # of what a node asks of itself


class EntryProposal(NamedTuple):
    """An entry before it has its place. A tuple: one is made for each append."""

    operation: int
    body: Buffer = b""
    body_checksum: bytes = b""  # empty: nobody has hashed the body yet
    writer: bytes = NO_WRITER
    version: int = 0
    namespace: int = 0
    created: int = 0
    schema_id: int = 0
    row_count: int = 0
