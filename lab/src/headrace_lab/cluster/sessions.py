"""Sessions of group 0: a client's request runs once, however often it is sent.

A session is opened through the log; its number is the op that opened it. Opening another one
for the same client fences the older. Each session keeps the results of its newest requests, so
that a repeat gets the first answer. When the table is full, the least recently used session is
evicted. All of it is a function of the log alone: equal on all replicas, and part of snapshots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headrace.model.ids import Op

SESSIONS_MAX: Final = 4096
WINDOW: Final = 8  # results kept of one session: a client has at most so many on their way

Result = int | str
Folded = tuple[tuple[bytes, int, int, int, tuple[tuple[int, Result], ...]], ...]


class Refusal(Enum):
    """Why a request is not run."""

    EVICTED = "session-evicted"  # no such session, or not any more: open another
    FENCED = "session-fenced"  # the client opened a newer one
    FORGOTTEN = "result-forgotten"  # it ran once, and its result is not kept any more


@dataclass(slots=True)
class Session:
    number: Op
    used: Op  # the op that used it last
    newest: int = 0  # highest request number that ran
    results: dict[int, Result] = field(default_factory=dict)


@dataclass(slots=True)
class Sessions:
    """Invariant: at most `size` sessions; no two were used last by the same op."""

    size: int = SESSIONS_MAX
    window: int = WINDOW
    table: dict[bytes, Session] = field(default_factory=dict)

    def register(self, client: bytes, op: Op) -> Op:
        """Open a session for `client`; an older one of it is fenced."""
        self.table.pop(client, None)
        if len(self.table) >= self.size:
            oldest = min(self.table, key=lambda one: self.table[one].used)
            del self.table[oldest]
        self.table[client] = Session(op, op)
        return op

    def judge(self, client: bytes, number: int, request: int) -> Result | Refusal | None:
        """Return the first result of a repeat, why it cannot run, or None: it is new."""
        session = self.table.get(client)
        if session is None or number > session.number:
            return Refusal.EVICTED
        if number < session.number:
            return Refusal.FENCED
        found = session.results.get(request)
        if found is not None or len(session.results) < self.window:
            return found  # nothing was forgotten yet: what is not here never ran
        return None if request > min(session.results) else Refusal.FORGOTTEN

    def record(self, client: bytes, request: int, result: Result, op: Op) -> None:
        """Keep the result of a request that just ran, at `op`."""
        session = self.table[client]
        session.newest, session.used = max(session.newest, request), op
        session.results[request] = result
        while len(session.results) > self.window:
            del session.results[min(session.results)]

    def fold(self) -> Folded:
        """Return the table as plain values, in one order on every replica."""
        return tuple(
            (client, one.number, one.used, one.newest, tuple(sorted(one.results.items())))
            for client, one in sorted(self.table.items())
        )

    def unfold(
        self, folded: Sequence[tuple[bytes, int, int, int, Sequence[tuple[int, Result]]]]
    ) -> None:
        self.table = {
            client: Session(Op(number), Op(used), newest, dict(results))
            for client, number, used, newest, results in folded
        }
