"""The seam between a group and what it replicates: a deterministic state machine."""

from dataclasses import dataclass
from typing import Protocol

from headrace.journal.entry import Entry


@dataclass(frozen=True, slots=True)
class MachineState:
    """A machine's state as bytes: replicas in an equal state have equal `replicated`."""

    replicated: bytes
    local: bytes = b""  # where this node keeps things; not covered by the digest


class Machine(Protocol):
    """State that is a function of the log: it reads no clock, random source or file."""

    @property
    def bodiless(self) -> frozenset[int]:
        """The operations whose apply needs only the header: a replay reads no body."""

    def apply(self, entry: Entry) -> object:
        """Run one committed entry and return its result; never raise on a well-formed one."""

    def snapshot(self) -> MachineState:
        """Return the state now. Called right after the apply of a Seal; must be cheap."""

    def restore(self, state: MachineState | None) -> None:
        """Become `state`; None is the state before op 1."""

    def digest(self) -> bytes:
        """Return 16 bytes that are equal on two replicas if and only if their states are."""
