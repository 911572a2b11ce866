"""The requests of one connection that are not answered yet, counted and bounded."""

from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.server.limits import Limits
from headrace.server.traffic import Traffic
from headrace.wire.messages import Reply
from headrace.wire.msgpack import Buffer

Said = Callable[[int, Reply | HeadraceError, Sequence[Buffer]], None]


class InFlight:
    """How many there are, and how many bytes their bodies have."""

    __slots__ = ("_limits", "_traffic", "count", "size")

    def __init__(self, limits: Limits, traffic: Traffic) -> None:
        self.count = 0
        self.size = 0
        self._limits = limits
        self._traffic = traffic

    @property
    def has_room(self) -> bool:
        """One more may begin."""
        limits = self._limits
        return self.count < limits.in_flight_max and self.size < limits.in_flight_size_max

    @property
    def is_calm(self) -> bool:
        """Half of the room is free: reading on is worth it."""
        limits = self._limits
        return (
            self.count * 2 <= limits.in_flight_max
            and self.size * 2 <= limits.in_flight_size_max
        )

    def add(self, size: int) -> None:
        """Count a request that begins."""
        self.count += 1
        self.size += size
        self._traffic.in_flight += 1
        self._traffic.in_flight_size += size

    def remove(self, size: int) -> None:
        """Count it as over."""
        self.count -= 1
        self.size -= size
        assert self.count >= 0
        assert self.size >= 0
        self._traffic.in_flight -= 1
        self._traffic.in_flight_size -= size


class Pending:
    """The answer to one request, which the service gives once, maybe to a peer that left."""

    __slots__ = ("_id", "_in_flight", "_is_over", "_say", "_size")

    def __init__(self, in_flight: InFlight, request_id: int, size: int, say: Said) -> None:
        self._in_flight = in_flight
        self._id = request_id
        self._size = size
        self._say = say
        self._is_over = False
        in_flight.add(size)

    def __call__(self, said: Reply | HeadraceError, body: Sequence[Buffer] = ()) -> None:
        """Answer it."""
        assert not self._is_over
        self._is_over = True
        self._in_flight.remove(self._size)
        self._say(self._id, said, body)

    def forget(self) -> None:
        """Count it as over, though nothing can be said of it."""
        if not self._is_over:
            self._is_over = True
            self._in_flight.remove(self._size)
