"""A log as a function of a seed: what each op must hold is known without a ledger.

The writer builds its entries from it, and the witness builds them again to compare. Nothing
that the writer reports about contents is needed, so no report can hide a wrong one.
"""

import struct
from dataclasses import dataclass, field
from functools import cache

from xxhash import xxh3_64_intdigest

from headrace.journal.entry import SEAL, Entry, root, seal
from headrace.model.ids import Op, View
from headrace.model.proposal import EntryProposal
from headrace_lab.counter.counter import ADD, CounterMachine, add
from headrace_lab.counter.solo import SOLO

COUNTER_COUNT = 32  # a bounded state: snapshots stay small however long the log gets

_CHANCE = struct.Struct("<QQ16s")
_AMOUNT_MAX = 1000


@dataclass(frozen=True, slots=True)
class GroupWorkload:
    """What is written. Equal values make equal logs."""

    seed: int
    group_count_max: int = 8  # entries in a commit group
    body_size_max: int = 2048
    seal_every: int = 97  # each such op is a Seal and so a checkpoint; all others add

    def is_seal(self, op: Op) -> bool:
        return op % self.seal_every == 0

    def body(self, op: Op) -> bytes:
        """Return the body of the entry at `op`."""
        if self.is_seal(op):
            return b""
        index = self._chance("counter", op) % COUNTER_COUNT
        amount = self._chance("amount", op) % (2 * _AMOUNT_MAX) - _AMOUNT_MAX
        return add(_name(self, index), amount)

    def next_group(self, head: Op) -> list[bytes]:
        """Return the bodies of the commit group behind `head`; a Seal is a group of its own."""
        if self.is_seal(Op(head + 1)):
            return [b""]
        wanted = 1 + self._chance("group", head) % self.group_count_max
        until_seal = self.seal_every - 1 - head % self.seal_every
        return [self.body(Op(head + 1 + at)) for at in range(min(wanted, until_seal))]

    def _chance(self, what: str, number: int) -> int:
        return xxh3_64_intdigest(_CHANCE.pack(self.seed, number, what.encode()))


@cache
def _name(workload: GroupWorkload, index: int) -> str:
    """A counter's name, padded: mostly short bodies, a few near the largest."""
    share = (workload._chance("size", index) % 1000 / 1000) ** 2
    return f"counter-{index:02}".ljust(int(share * workload.body_size_max), ".")


@dataclass(slots=True)
class Replay:
    """The log and the state as they must be, made from the seed alone."""

    workload: GroupWorkload
    _tips: list[bytes] = field(default_factory=lambda: [root(SOLO)])
    _machine: CounterMachine = field(default_factory=CounterMachine)

    def tip(self, op: Op) -> bytes:
        """Return the checksum of the entry at `op`, which covers all entries before it."""
        for number in range(len(self._tips), op + 1):
            self._tips.append(self._entry(Op(number)).checksum)
        return self._tips[op]

    def digest(self, op: Op) -> bytes:
        """Return the digest of the state after `op`."""
        self.tip(op)
        if op < self._machine.applied:
            self._machine = CounterMachine()
        for number in range(self._machine.applied + 1, op + 1):
            self._machine.apply(self._entry(Op(number)))
        return self._machine.digest()

    def _entry(self, op: Op) -> Entry:
        operation = SEAL if self.workload.is_seal(op) else ADD
        return seal(
            SOLO,
            EntryProposal(operation, self.workload.body(op)),
            op=op,
            parent=self._tips[op - 1],
            view=View(0),
            timestamp=op,
        )
