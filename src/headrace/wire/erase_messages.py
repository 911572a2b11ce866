"""The request that has the rows of deleted topics erased, and its answer.

It is repeated until nothing is left: each time the node takes the next step, if one is due.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class EraseDeleted:
    """Have all that deleted topics held go from every file. Answered by Erasing."""

    kind: ClassVar[int] = 96
    revision: int  # deleted up to it; 0: up to now, and the answer says what that is


@dataclass(frozen=True, slots=True)
class UnerasedInfo:
    """A file that holds, or may hold, such rows."""

    path: str  # as the node's machine calls it
    why: str  # it is there, and for how long


@dataclass(frozen=True, slots=True)
class Erasing:
    """How far it is: done if nothing is left."""

    kind: ClassVar[int] = 97
    revision: int  # to be named in the next request
    left_count: int
    left: tuple[UnerasedInfo, ...]  # the first of them
