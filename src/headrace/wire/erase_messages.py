"""The request to erase the rows of deleted topics, and its answer.

It is repeated until nothing is left: each time, the node takes the next step that is due.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class EraseDeleted:
    """Erase all rows of deleted topics from every file. Answered by Erasing."""

    kind: ClassVar[int] = 96
    revision: int  # deleted up to it; 0: up to now, returned in the answer


@dataclass(frozen=True, slots=True)
class UnerasedInfo:
    """A file that holds, or may hold, such rows."""

    path: str  # on the node's machine
    why: str  # why it still exists, and for how long


@dataclass(frozen=True, slots=True)
class Erasing:
    """The progress: done if nothing is left."""

    kind: ClassVar[int] = 97
    revision: int  # for the next request
    left_count: int
    left: tuple[UnerasedInfo, ...]  # the first of them
