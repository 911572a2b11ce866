"""One replica of a group as a machine: events in, effects out. It touches nothing else.

    on_request   somebody wants an op                  → Append
    on_durable   the journal has it, synced            → what the machine runs next
    on_applied   the machine has run it                → Reply
    on_failed    the journal surely has it not         → Reply, with the error

This one is alone (n = 1): it is always the primary of view 0, and what is on its disk is
committed. An acknowledgement cannot be early: a Reply leaves only after `on_applied`, that only
once the machine has run it, and the machine runs only ops at or below `durable`.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic

from headrace.errors import HeadraceError, Unknown
from headrace.model.ids import Op, View
from headrace.model.proposal import EntryProposal
from headrace.vsr.peer_messages import P, SealProposal, SoloAppend, SoloReply


@dataclass(slots=True)
class _InFlight(Generic[P]):
    prepare: P
    ticket: object | None  # None: it was answered, or nobody asked
    deadline: float
    size: int


@dataclass(slots=True)
class Replica(Generic[P]):
    """Invariants: applied <= committed <= durable <= op; `in_flight` is applied + 1 to op."""

    seal: SealProposal[P]
    op: Op  # newest prepare accepted
    tip: bytes  # its checksum
    timestamp: int  # of the newest prepare, in microseconds
    durable: Op = field(init=False)
    applied: Op = field(init=False)
    view: View = View(0)
    in_flight: deque[_InFlight[P]] = field(default_factory=deque)
    in_flight_size: int = 0  # body bytes
    applied_tip: bytes = field(init=False)  # its checksum

    def __post_init__(self) -> None:
        """A recovered log is durable and applied up to its head."""
        self.durable = self.applied = self.op
        self.applied_tip = self.tip

    @property
    def committed(self) -> Op:
        """Alone, what is on our disk is on a quorum of disks."""
        return self.durable

    def on_request(
        self, request: EntryProposal, now: int, *, ticket: object = None, deadline: float = 0.0
    ) -> SoloAppend[P]:
        """Give a request the next op. Time never stands still or goes back in one log."""
        self.timestamp = max(self.timestamp + 1, now)
        op = Op(self.op + 1)
        prepare = self.seal(
            request, op=op, parent=self.tip, view=self.view, timestamp=self.timestamp
        )
        self.op, self.tip = op, prepare.checksum
        size = len(request.body)
        self.in_flight.append(_InFlight(prepare, ticket, deadline, size))
        self.in_flight_size += size
        return SoloAppend([prepare])

    def on_durable(self, op: Op) -> list[P]:
        """All up to `op` is on our disk, synced: return what is to run, in order."""
        assert self.durable <= op <= self.op
        start, end = self.durable - self.applied, op - self.applied
        self.durable = op
        return [one.prepare for one in islice(self.in_flight, start, end)]

    def on_applied(self, op: Op, result: object) -> list[SoloReply]:
        """The machine has run `op`: whoever asked for it may know."""
        assert op == self.applied + 1
        assert op <= self.committed
        one = self.in_flight.popleft()
        self.applied, self.applied_tip = op, one.prepare.checksum
        self.in_flight_size -= one.size
        return [] if one.ticket is None else [SoloReply(one.ticket, result)]

    def on_failed(self, error: HeadraceError) -> list[SoloReply]:
        """What is above `durable` is surely not in the journal: go back to there.

        All that was durable must have been applied before.
        """
        assert self.applied == self.durable
        refused = [one.ticket for one in self.in_flight if one.ticket is not None]
        self.in_flight.clear()
        self.in_flight_size = 0
        self.op, self.tip = self.applied, self.applied_tip
        return [SoloReply(ticket, error) for ticket in refused]

    def on_tick(self, now: float) -> list[SoloReply]:
        """Tell those whose deadline is over that nobody knows yet what becomes of theirs."""
        late: list[SoloReply] = []
        for one in self.in_flight:
            if one.ticket is not None and now >= one.deadline:
                late.append(SoloReply(one.ticket, _late(one.prepare.op)))
                one.ticket = None
        return late

    def on_halted(self, error: HeadraceError) -> list[SoloReply]:
        """The disk or the machine is not trusted any more: nobody knows what is in flight."""
        unknown = Unknown(
            f"the group stopped before the write was confirmed: {error}",
            hint="Restart the node, then repeat it: an append with the same writer and "
            "version, a change of topics after a look at what is there",
        )
        refused = [one.ticket for one in self.in_flight if one.ticket is not None]
        for one in self.in_flight:
            one.ticket = None
        return [SoloReply(ticket, unknown) for ticket in refused]


def _late(op: Op) -> Unknown:
    return Unknown(
        f"op {op} is on its way to the disk, but the deadline is over",
        hint="Look whether it happened; an append may be repeated with its writer and version",
    )
