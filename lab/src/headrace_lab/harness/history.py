"""The oracle: the inputs and answers of one machine, kept outside of it.

An entry is *acknowledged* when the call that made it durable returned, or when a recovery
showed it to a reader. From then on it must stay permanently, unless a requested cut removes it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol, Self

from headrace.errors import HeadraceError
from headrace.journal.entry import Entry
from headrace.journal.group import Group
from headrace.journal.machine_seam import Machine
from headrace.model.ids import Op


class Broken(Exception):
    """A promise did not hold. The text says which."""


# What a life or a recovery may end with that has a bug, as its text tells.
BROKEN = (Broken, HeadraceError, AssertionError, OSError, KeyError)


class Recovered(Protocol):
    """A group of one replica that was opened: what a history is compared with."""

    @property
    def group(self) -> Group: ...

    @property
    def machine(self) -> Machine: ...


@dataclass(slots=True)
class History(ABC):
    """Everything ever submitted, and which of it was acknowledged."""

    submitted: dict[bytes, Entry] = field(default_factory=dict)  # by checksum
    acknowledged: list[bytes] = field(default_factory=list)  # checksums, by op from 1
    refused: set[bytes] = field(default_factory=set)  # surely not appended

    def copy(self) -> Self:
        return type(self)(dict(self.submitted), list(self.acknowledged), set(self.refused))

    @abstractmethod
    def model(self) -> Machine:
        """Return a machine before op 1, to run the log again."""

    def submit(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.submitted[entry.checksum] = entry

    def acknowledge(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert entry.op == len(self.acknowledged) + 1
            self.acknowledged.append(entry.checksum)

    def refuse(self, entries: list[Entry]) -> None:
        """Note what an append that raised Unavailable has surely not left behind."""
        self.refused.update(entry.checksum for entry in entries)

    def check(self, solo: Recovered) -> None:
        """Compare a recovered group with the history; what it shows is acknowledged by that."""
        chain = self._chain(solo)
        self._check_acknowledged(chain)
        self._check_nothing_invented(chain)
        self._check_state(solo, chain)
        self._check_reach(solo)
        self.acknowledged = chain

    def _chain(self, solo: Recovered) -> list[bytes]:
        """The log as the group shows it; what is drained is taken from the history."""
        journal = solo.group.journal
        chain: list[bytes] = []
        for number in range(1, journal.durable + 1):
            entry = journal.read(Op(number))
            if entry is not None:
                chain.append(entry.checksum)
            elif number > journal.ring.watermark or number > len(self.acknowledged):
                raise Broken(f"op {number} is not in the journal")
            else:
                chain.append(self.acknowledged[number - 1])
        return chain

    def _check_acknowledged(self, chain: list[bytes]) -> None:
        count = len(self.acknowledged)
        if len(chain) < count:
            raise Broken(f"acknowledged up to op {count}, recovered up to {len(chain)}")
        pairs = zip(self.acknowledged, chain, strict=False)
        for number, (was, now) in enumerate(pairs, start=1):
            if was != now:
                raise Broken(f"op {number} is not the entry that was acknowledged")

    def _check_nothing_invented(self, chain: list[bytes]) -> None:
        parent: bytes | None = None
        for number, checksum in enumerate(chain, start=1):
            entry = self.submitted.get(checksum)
            if entry is None or entry.op != number:
                raise Broken(f"op {number} was never submitted")
            if checksum in self.refused:
                raise Broken(f"op {number} was refused and is there all the same")
            if parent is not None and entry.header.parent != parent:
                raise Broken(f"op {number} does not chain to the op before it")
            parent = checksum

    def _check_state(self, solo: Recovered, chain: list[bytes]) -> None:
        model = self.model()
        for checksum in chain:
            model.apply(self.submitted[checksum])
        if model.digest() != solo.machine.digest():
            raise Broken("the state is not what the log says")

    def _check_reach(self, solo: Recovered) -> None:
        """The journal holds everything from the previous checkpoint on, that op included."""
        current = solo.group.superblock.current
        snapshots = solo.group.checkpoints.snapshots.ops()
        if current.previous_op and solo.group.journal.read(current.previous_op) is None:
            raise Broken(f"the journal does not reach back to op {current.previous_op}")
        for op in (current.previous_op, current.checkpoint.op):
            if op and op not in snapshots:
                raise Broken(f"the snapshot at op {op} is gone")
