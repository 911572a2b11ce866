"""What went through a node's sockets, in numbers."""

from collections import Counter
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
    in_flight_size: int = 0  # bytes of their bodies
    pauses: int = 0  # times that a connection was not read from, to let it catch up
    refused: Counter[str] = field(default_factory=Counter)  # answers, by the error's name
    cut_offs: Counter[str] = field(default_factory=Counter)  # connections, by reason
