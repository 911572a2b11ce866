"""The memory that one connection makes a node hold, counted and bounded.

A request counts with its body until it is answered. The response to a Fetch or a FetchFile
counts from the start, with its target size, until the peer has received it. A Fetch that waits
for rows counts only once its response exists: waiting readers hold nothing and block no one. A
large body counts with its buffer, as that grows.
"""

from collections.abc import Callable, Sequence

from headrace.errors import Busy, HeadraceError
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.traffic import Traffic
from headrace.wire.file_messages import FetchFile
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import Fetch

# Sends an answer with its body, of which this many bytes count until it is received.
Say = Callable[[int, Reply | HeadraceError, Sequence[Buffer], int], None]


class PeerBudget:
    """The number of requests, and the bytes that they and their answers hold."""

    __slots__ = ("_limits", "_traffic", "count", "size")

    def __init__(self, limits: PeerLimits, traffic: Traffic) -> None:
        self.count = 0
        self.size = 0
        self._limits = limits
        self._traffic = traffic

    @property
    def has_room(self) -> bool:
        """Whether one more request may begin."""
        limits = self._limits
        return self.count < limits.in_flight_max and self.size < limits.in_flight_size_max

    @property
    def is_calm(self) -> bool:
        """Whether half of the budget is free, so that it is worth reading on."""
        limits = self._limits
        return (
            self.count * 2 <= limits.in_flight_max
            and self.size * 2 <= limits.in_flight_size_max
        )

    def answer_size(self, request: Request) -> int:
        """Return the bytes that a request's answer counts for before it exists."""
        if not isinstance(request, Fetch | FetchFile):
            return 0
        if isinstance(request, Fetch) and request.wait_ms > 0:
            return 0
        limits = self._limits
        room = min(limits.fetch_size_max, limits.in_flight_size_max, limits.queue_size_max)
        return max(1, min(request.size_max, room))

    def busy(self, size: int) -> Busy | None:
        """Return Busy if the node has no room for `size` bytes."""
        # Arriving bodies have a bound of their own: slow ones block no other request.
        held_size, limits = self._traffic.in_flight_size, self._limits
        if not size or held_size + size <= limits.queue_size_max:
            return None
        return Busy(f"{held_size} bytes are in flight on this node", limits.retry_after_ms)

    def add(self, size: int) -> None:
        """Count a new request, and its answer."""
        self.count += 1
        self._traffic.in_flight += 1
        self._hold(size)

    def remove(self, size: int) -> None:
        """Count a request as finished, with its `size`; its answer still counts."""
        self.count -= 1
        assert self.count >= 0
        self._traffic.in_flight -= 1
        self.release(size)

    def release(self, size: int) -> None:
        """Count bytes as released."""
        if size:
            self._hold(-size)
            assert self.size >= 0
            self._traffic.call_next()

    def correct(self, expected_size: int, size: int) -> Busy | None:
        """Count an answer with its real size; Busy if there is no room for it.

        An answer larger than the whole budget is still allowed alone.
        """
        self.release(expected_size)
        limits, held_size = self._limits, self._traffic.in_flight_size
        if size > expected_size:
            if busy := self.busy(size) if held_size else None:
                return busy
            if self.size and self.size + size > limits.in_flight_size_max:
                what = f"{self.size} bytes are in flight on this connection"
                return Busy(what, limits.retry_after_ms)
        self._hold(size)
        return None

    def _hold(self, size: int) -> None:
        self.size += size
        self._traffic.in_flight_size += size


class Pending:
    """The pending answer to one request; given once, even if the peer has left."""

    __slots__ = ("_answer_size", "_id", "_in_flight", "_is_over", "_say", "_size")

    def __init__(
        self, in_flight: PeerBudget, request_id: int, size: int, answer_size: int, say: Say
    ) -> None:
        self._in_flight = in_flight
        self._id = request_id
        self._size = size  # of the request's body
        self._answer_size = answer_size
        self._say = say
        self._is_over = False
        in_flight.add(size + answer_size)

    def __call__(self, said: Reply | HeadraceError, body: Sequence[Buffer] = ()) -> None:
        """Answer it."""
        assert not self._is_over
        self._is_over = True
        self._in_flight.remove(self._size)
        size = sum(map(len, body))
        if busy := self._in_flight.correct(self._answer_size, size):
            said, body, size = busy, (), 0
        self._say(self._id, said, body, size)

    def forget(self) -> None:
        """Count it as finished, without an answer."""
        if not self._is_over:
            self._is_over = True
            self._in_flight.remove(self._size + self._answer_size)


class Arrival:
    """A large body that is arriving: the room that it has, and the room that it waits for.

    Room is taken as the body's buffer grows, so that a mere size claim holds nothing. Partial
    bodies could all wait for each other: so one at a time may exceed the limit.
    """

    __slots__ = ("_limits", "_traffic", "_wake", "_wanted_size", "size")

    def __init__(self, limits: PeerLimits, traffic: Traffic) -> None:
        self.size = 0
        self._limits = limits
        self._traffic = traffic
        self._wanted_size = 0
        self._wake: Callable[[], None] | None = None  # None: there is nothing to wait for

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for room."""
        return self._wake is not None

    def grow(self, size: int, wake: Callable[[], None]) -> None:
        """Take room for a buffer of `size`, or queue for it; `wake` then calls `look`."""
        if size <= self.size or self.is_waiting:
            return
        self._wanted_size = size
        self._wake = wake
        if self._traffic.overdrawn_by is self:
            self._traffic.queue.appendleft(wake)  # all others wait for this one
        else:
            self._traffic.queue.append(wake)
        self.look()

    def look(self) -> None:
        """Take the room that it waits for, if available."""
        traffic = self._traffic
        if self._wake is None or traffic.queue[0] is not self._wake:
            return
        wanted = traffic.arriving_size - self.size + self._wanted_size
        if wanted > self._limits.queue_size_max:
            if traffic.overdrawn_by not in (None, self):
                return
            traffic.overdrawn_by = self
        traffic.queue.popleft()
        self._wake = None
        self.size = self._wanted_size
        traffic.arriving_size = wanted
        traffic.call_next()

    def end(self) -> None:
        """Release the room: the body now belongs to a request, or was dropped."""
        traffic = self._traffic
        if self._wake is not None:
            traffic.queue.remove(self._wake)
            self._wake = None
        if traffic.overdrawn_by is self:
            traffic.overdrawn_by = None
        traffic.arriving_size -= self.size
        assert traffic.arriving_size >= 0
        self.size = 0
        traffic.call_next()
