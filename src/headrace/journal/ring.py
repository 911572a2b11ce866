"""The place of each live op: an array indexed by `op mod slots`, of durable entries only."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.journal.journal_file import JournalFile
from headrace.model.ids import Op


class Slot(NamedTuple):
    """One durable entry; replaced as a whole, so that no reader sees half of one."""

    op: Op
    file: JournalFile
    position: int  # of its frame
    sealed: bytes  # its header, so that questions about headers never touch the disk


@dataclass(slots=True)
class Ring:
    """The array. Slots of ops at or below the watermark are free."""

    count: int
    watermark: Op = Op(0)  # every op at or below it may be forgotten
    _slots: list[Slot | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert self.count > 0
        self._slots = [None] * self.count

    def collides(self, op: Op) -> bool:
        """Whether an older op that must be kept still needs the slot of `op`."""
        return op - self.watermark > self.count

    def put(self, slot: Slot) -> None:
        assert not self.collides(slot.op)
        self._slots[slot.op % self.count] = slot

    def get(self, op: Op) -> Slot | None:
        slot = self._slots[op % self.count]
        return slot if slot is not None and slot.op == op and op > self.watermark else None

    def between(self, first: Op, last: Op) -> Iterator[Slot]:
        """Yield the occupied slots of the ops from `first` to `last`, in order."""
        for op in range(max(first, self.watermark + 1), min(last, self._last) + 1):
            slot = self.get(Op(op))
            if slot is not None:
                yield slot

    def raise_watermark(self, op: Op) -> None:
        """Free every slot at or below `op`."""
        for old in range(self.watermark + 1, min(op, self._last) + 1):
            self._forget(Op(old))
        self.watermark = max(self.watermark, op)

    def forget_from(self, first: Op) -> None:
        """Free the slots of a cut suffix."""
        for op in range(max(first, self.watermark + 1), self._last + 1):
            self._forget(Op(op))

    @property
    def _last(self) -> Op:
        """The highest op that could have a slot."""
        return Op(self.watermark + self.count)

    def _forget(self, op: Op) -> None:
        slot = self._slots[op % self.count]
        if slot is not None and slot.op == op:
            self._slots[op % self.count] = None
