"""A replica's view of its own log: the entries and their condition, without bodies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.model.ids import Op
from headrace.vsr.peer_messages import PrepareHeader


class Condition(Enum):
    PENDING = "pending"  # being written, not durable yet
    DURABLE = "durable"
    FAULTY = "faulty"  # was durable, but cannot be read


@dataclass(slots=True)
class OpSlot:
    """One op. The header of a faulty one may be unknown, and even its checksum."""

    checksum: bytes | None
    header: PrepareHeader | None
    condition: Condition
    ticket: int = 0  # of the append that writes it


@dataclass(slots=True)
class OpLog:
    """Invariants: anchor <= whole <= head; each op from anchor + 1 to head has a slot."""

    anchor: Op  # entries at or below it are no longer held here
    anchor_checksum: bytes | None
    head: Op = field(init=False)
    whole: Op = field(init=False)  # durable without a gap, or covered by the machine's state
    slots: dict[Op, OpSlot] = field(default_factory=dict)
    faulty: set[Op] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.head = self.whole = self.anchor

    def checksum(self, op: Op) -> bytes | None:
        """Return the checksum of a held op or of the anchor; None if unknown."""
        if op == self.anchor:
            return self.anchor_checksum
        slot = self.slots.get(op)
        return None if slot is None else slot.checksum

    def header(self, op: Op) -> PrepareHeader | None:
        slot = self.slots.get(op)
        return None if slot is None else slot.header

    def is_durable(self, op: Op) -> bool:
        slot = self.slots.get(op)
        return slot is not None and slot.condition is Condition.DURABLE

    def add(self, header: PrepareHeader, ticket: int) -> None:
        """Add the next entry, which is being written."""
        assert header.op == self.head + 1
        self.slots[header.op] = OpSlot(header.checksum, header, Condition.PENDING, ticket)
        self.head = header.op

    def found(self, op: Op, header: PrepareHeader | None, checksum: bytes | None) -> None:
        """Add an entry found by recovery: whole, or faulty without a header."""
        assert op == self.head + 1
        condition = Condition.FAULTY if header is None else Condition.DURABLE
        self.slots[op] = OpSlot(checksum, header, condition)
        self.head = op
        if header is None:
            self.faulty.add(op)
        self._advance()

    def durable(self, first: Op, last: Op, ticket: int) -> None:
        """An append has completed. Ignores ops cut or rewritten meanwhile."""
        for op in range(first, last + 1):
            slot = self.slots.get(Op(op))
            if slot is not None and slot.ticket == ticket:
                slot.condition = Condition.DURABLE
        self._advance()

    def mended(self, header: PrepareHeader) -> None:
        slot = self.slots.get(header.op)
        if slot is not None and slot.checksum == header.checksum and header.op in self.faulty:
            slot.header, slot.condition = header, Condition.DURABLE
            self.faulty.discard(header.op)
        self._advance()

    def spoiled(self, op: Op) -> None:
        """A durable entry has become unreadable."""
        slot = self.slots.get(op)
        if slot is None or slot.condition is not Condition.DURABLE:
            return
        slot.condition = Condition.FAULTY
        self.faulty.add(op)
        self.whole = min(self.whole, Op(op - 1))

    def common(self, headers: Sequence[PrepareHeader]) -> Op | None:
        """The highest op at which these headers match our log: all ops below match, too.

        A faulty op without a checksum matches nothing: it may have been another entry.
        """
        for header in reversed(headers):
            if self.checksum(header.op) == header.checksum:
                return header.op
            below = Op(header.op - 1)
            if below <= self.head and self.checksum(below) == header.parent:
                return below
        return None

    def adopt(self, headers: Sequence[PrepareHeader], common: Op) -> Op:
        """Set the checksums of faulty ops in the common part, and of unknown ones after it.

        Return the last op that matches the headers now.
        """
        for header in headers:
            slot = self.slots.get(header.op)
            if header.op > common and (slot is None or slot.checksum is not None):
                break
            self.name(header.op, header.checksum)
            common = max(common, header.op)
        return common

    def name(self, op: Op, checksum: bytes) -> None:
        """Set the checksum of a faulty op, if unknown."""
        slot = self.slots.get(op)
        if slot is not None and slot.checksum is None:
            slot.checksum = checksum

    def cut(self, first: Op) -> None:
        for op in range(first, self.head + 1):
            del self.slots[Op(op)]
            self.faulty.discard(Op(op))
        self.head = min(self.head, Op(first - 1))
        self.whole = min(self.whole, self.head)

    def trim(self, through: Op) -> None:
        """Drop ops covered by a checkpoint."""
        if through <= self.anchor:
            return
        assert through <= self.head
        checksum = self.checksum(through)
        for op in range(self.anchor + 1, through + 1):
            del self.slots[Op(op)]
            self.faulty.discard(Op(op))
        self.anchor, self.anchor_checksum = through, checksum
        self.cover(through)

    def cover(self, op: Op) -> None:
        """The machine's state covers everything up to `op`: faulty ops below do not matter."""
        self.whole = max(self.whole, min(op, self.head))
        self._advance()

    def reset(self, header: PrepareHeader) -> None:
        """Reset the log to the entry at a snapshot."""
        self.slots.clear()
        self.faulty.clear()
        self.anchor = self.head = self.whole = Op(header.op - 1)
        self.anchor_checksum = header.parent
        self.found(header.op, header, header.checksum)

    def headers(self, first: Op, last: Op) -> Iterator[PrepareHeader]:
        """Yield the headers from `first` on up to the first unknown one."""
        for op in range(max(first, self.anchor + 1), min(last, self.head) + 1):
            header = self.slots[Op(op)].header
            if header is None:
                return
            yield header

    def _advance(self) -> None:
        while self.is_durable(Op(self.whole + 1)):
            self.whole = Op(self.whole + 1)
