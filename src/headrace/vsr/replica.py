"""One replica of a group as a pure machine: events in, effects out.

    on_request   a client submits an op                → Append
    on_durable   the journal has it, synced            → the entries to apply next
    on_applied   the machine has applied it            → Reply
    on_failed    the journal certainly lacks it        → Reply, with the error

This is the solo replica (n = 1): always the primary of view 0; everything on its disk is
committed. An acknowledgement cannot be early: a Reply is emitted only by `on_applied`, after
the machine has applied the op, and the machine applies only ops at or below `durable`.
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
    ticket: object | None  # None: already answered, or no caller
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
        """Solo: our disk is a quorum of disks."""
        return self.durable

    def on_request(
        self, request: EntryProposal, now: int, *, ticket: object = None, deadline: float = 0.0
    ) -> SoloAppend[P]:
        """Assign the next op to a request. Timestamps within a log strictly increase."""
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
        """Everything up to `op` is synced: return the entries to apply, in order."""
        assert self.durable <= op <= self.op
        start, end = self.durable - self.applied, op - self.applied
        self.durable = op
        return [one.prepare for one in islice(self.in_flight, start, end)]

    def on_applied(self, op: Op, result: object) -> list[SoloReply]:
        """The machine has applied `op`: answer its caller."""
        assert op == self.applied + 1
        assert op <= self.committed
        one = self.in_flight.popleft()
        self.applied, self.applied_tip = op, one.prepare.checksum
        self.in_flight_size -= one.size
        return [] if one.ticket is None else [SoloReply(one.ticket, result)]

    def on_failed(self, error: HeadraceError) -> list[SoloReply]:
        """Nothing above `durable` is in the journal: roll back to there.

        All durable ops must have been applied before.
        """
        assert self.applied == self.durable
        refused = [one.ticket for one in self.in_flight if one.ticket is not None]
        self.in_flight.clear()
        self.in_flight_size = 0
        self.op, self.tip = self.applied, self.applied_tip
        return [SoloReply(ticket, error) for ticket in refused]

    def on_tick(self, now: float) -> list[SoloReply]:
        """Answer expired requests with Unknown: their outcome is undecided."""
        late: list[SoloReply] = []
        for one in self.in_flight:
            if one.ticket is not None and now >= one.deadline:
                late.append(SoloReply(one.ticket, _late(one.prepare.op)))
                one.ticket = None
        return late

    def on_halted(self, error: HeadraceError) -> list[SoloReply]:
        """The disk or machine is no longer trusted: the outcome of ops in flight is unknown."""
        unknown = Unknown(
            f"the group stopped before the write was confirmed: {error}",
            hint="Restart the node, then retry: an append with the same writer and version, "
            "a change of topics after checking their state",
        )
        refused = [one.ticket for one in self.in_flight if one.ticket is not None]
        for one in self.in_flight:
            one.ticket = None
        return [SoloReply(ticket, unknown) for ticket in refused]


def _late(op: Op) -> Unknown:
    return Unknown(
        f"op {op} is being written, but the deadline has passed",
        hint="Check whether it happened; an append can be retried with its writer and version",
    )
