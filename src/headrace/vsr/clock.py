"""The timestamps of entries: monotonic, and no large step based on a single clock."""

from dataclasses import dataclass, field
from typing import Final

from headrace.model.ids import ReplicaId

STEP_MAX: Final = 60_000_000  # microseconds: a larger step needs a majority that agrees
TICK: Final = 10_000  # microseconds of monotonic time


@dataclass(slots=True)
class Clock:
    """Wall time, trusted as far as monotonic time or a majority of clocks confirm it."""

    count: int = 1  # replicas
    wall: int = 0  # this machine's clock
    trusted: int = 0  # the time to use
    tick: int = 0
    is_set: bool = False
    was_vouched: bool = False  # a majority of clocks has agreed with ours since the start
    offsets: dict[ReplicaId, int] = field(default_factory=dict)  # theirs - ours, last received

    def observe(self, wall: int, tick: int) -> None:
        """Update with a reading of both clocks."""
        passed = (tick - self.tick) * TICK
        self.tick = tick
        if self.is_set:
            step = wall - self.wall
            self.offsets = {
                one: offset - (step - passed) for one, offset in self.offsets.items()
            }
        self.wall, self.is_set = wall, True
        self.trusted += passed
        is_vouched = self._is_vouched()
        self.was_vouched = self.was_vouched or is_vouched
        if is_vouched or (self.was_vouched and abs(wall - self.trusted) <= STEP_MAX):
            self.trusted = wall
        elif not self.was_vouched:
            # No majority has confirmed our clock since the start: use the median.
            offsets = sorted([0, *self.offsets.values()])
            self.trusted = wall + offsets[(len(offsets) - 1) // 2]

    def hear(self, peer: ReplicaId, wall: int) -> None:
        if self.is_set:
            self.offsets[peer] = wall - self.wall

    @property
    def in_doubt(self) -> bool:
        """Whether the machine's clock is far from the trusted time, or not yet confirmed."""
        return not self.was_vouched or abs(self.wall - self.trusted) > STEP_MAX

    def _is_vouched(self) -> bool:
        """Return whether our clock and those near it are a majority."""
        near = sum(abs(offset) <= STEP_MAX for offset in self.offsets.values())
        return near + 1 > self.count // 2
