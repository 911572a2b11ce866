"""Traffic counters of a node's sockets, and what they hold now."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """Counters of all listeners that share this object. Written by the loop only."""

    connections_open: int = 0
    connections_total: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight: int = 0  # requests not yet answered by the service
    in_flight_size: int = 0  # bytes of their bodies, and of answers not yet received
    arriving_size: int = 0  # bytes of the buffers of incomplete large bodies
    pauses: int = 0  # times that reading a connection was paused
    refused: Counter[str] = field(default_factory=Counter)  # answers, by the error's name
    cut_offs: Counter[str] = field(default_factory=Counter)  # connections, by reason
    # Connections waiting for room for a large body, in order; each is called when there may be
    # room.
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    overdrawn_by: object | None = None  # the body that may exceed the limit

    @property
    def held_size(self) -> int:
        """Bytes that peers make the node hold, in flight and arriving."""
        return self.in_flight_size + self.arriving_size

    def call_next(self) -> None:
        """Let the longest waiter check for room again."""
        if self.queue:
            self.queue[0]()
