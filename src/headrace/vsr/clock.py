"""The time that entries carry: never back, and no great step on one clock's word alone."""

from dataclasses import dataclass, field
from typing import Final

from headrace.model.ids import ReplicaId

STEP_MAX: Final = 60_000_000  # microseconds: a larger step needs a majority that agrees
TICK: Final = 10_000  # microseconds of monotonic time


@dataclass(slots=True)
class Clock:
    """Wall time, followed as far as monotonic time or a majority's clocks vouch for it."""

    count: int = 1  # replicas
    wall: int = 0  # what this machine's clock says
    trusted: int = 0  # what we go by
    tick: int = 0
    is_set: bool = False
    was_vouched: bool = False  # a majority's clocks agreed with ours since the start
    offsets: dict[ReplicaId, int] = field(default_factory=dict)  # theirs - ours, as heard last

    def observe(self, wall: int, tick: int) -> None:
        """Take a reading of both clocks."""
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
            # Since the start nobody took our side: go by the clock in the middle.
            offsets = sorted([0, *self.offsets.values()])
            self.trusted = wall + offsets[(len(offsets) - 1) // 2]

    def hear(self, peer: ReplicaId, wall: int) -> None:
        if self.is_set:
            self.offsets[peer] = wall - self.wall

    @property
    def in_doubt(self) -> bool:
        """The machine's clock is far from what we go by, or nobody took its side yet."""
        return not self.was_vouched or abs(self.wall - self.trusted) > STEP_MAX

    def _is_vouched(self) -> bool:
        """Our clock and those near it are a majority of all clocks."""
        near = sum(abs(offset) <= STEP_MAX for offset in self.offsets.values())
        return near + 1 > self.count // 2
