"""What went through a node's sockets, in numbers, and what they hold now."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """Counts of all listeners that were given this object. Its one writer is the loop."""

    connections_open: int = 0
    connections_total: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight: int = 0  # requests that the service has not answered yet
    in_flight_size: int = 0  # bytes of their bodies, and of answers that are not taken yet
    arriving_size: int = 0  # bytes of the buffers of large bodies that are not whole yet
    pauses: int = 0  # times that a connection was not read from, to let it catch up
    refused: Counter[str] = field(default_factory=Counter)  # answers, by the error's name
    cut_offs: Counter[str] = field(default_factory=Counter)  # connections, by reason
    # Who waits to send more of a large body, the first of them first; each is called when there
    # may be room.
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    overdrawn_by: object | None = None  # whose body has more room than there is

    @property
    def held_size(self) -> int:
        """Bytes that peers make the node hold, in flight and on their way."""
        return self.in_flight_size + self.arriving_size

    def call_next(self) -> None:
        """Have whoever waits longest look for room again."""
        if self.queue:
            self.queue[0]()
