"""A proposal for a group's log: the part of an entry that its proposer chooses."""

from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview
NO_WRITER: Final = bytes(16)  # of a node's own proposals


class EntryProposal(NamedTuple):
    """An entry before it has a position. A tuple, as each append creates one."""

    operation: int
    body: Buffer = b""
    body_checksum: bytes = b""  # empty: not computed yet
    writer: bytes = NO_WRITER
    version: int = 0
    namespace: int = 0
    created: int = 0
    schema_id: int = 0
    row_count: int = 0
