"""What a replica is told and what it asks for: events are calls, effects are these values."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.model.ids import Op

Buffer = bytes | bytearray | memoryview
NOBODY = bytes(16)  # the writer of what a node asks of itself


class Prepare(Protocol):
    """An op on its way: sealed once, by the primary. The journal calls it an entry."""

    @property
    def op(self) -> Op: ...

    @property
    def checksum(self) -> bytes: ...


P = TypeVar("P", bound=Prepare)


class Request(NamedTuple):
    """What somebody wants in the log. A tuple: one is made for each append."""

    operation: int
    body: Buffer = b""
    body_checksum: bytes = b""  # empty: nobody has hashed the body yet
    writer: bytes = NOBODY
    version: int = 0
    namespace: int = 0
    created: int = 0
    schema_id: int = 0
    row_count: int = 0


@dataclass(frozen=True, slots=True)
class Append(Generic[P]):
    """Write these, in order, and say so with `on_durable`."""

    prepares: list[P]


@dataclass(frozen=True, slots=True)
class Apply(Generic[P]):
    """Run the machine on the next committed op, and say so with `on_applied`."""

    prepare: P


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the one who asked: with the machine's result, or with why it did not happen."""

    ticket: object
    result: object | HeadraceError


Effect = Append[P] | Apply[P] | Reply
