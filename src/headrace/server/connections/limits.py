"""Limits on peers, in count, size and time."""

from dataclasses import dataclass
from typing import Final

from headrace.wire.frames import BODY_SIZE_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

# The most that a peer can make a node hold before its handshake, without a body.
HANDSHAKE_META_SIZE_MAX: Final = 4 * KIB
# Less than this per stall_timeout counts as no progress: trickling bytes keep nothing open.
PROGRESS_SIZE_MIN: Final = 64 * KIB
# With more unsent answers than this, no more requests are begun.
UNSENT_SIZE_MAX: Final = MIB
# Seconds for the last answer to arrive when a connection ends.
LINGER_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Times are in seconds. The defaults match the config."""

    connection_count_max: int = 1024  # of one listener
    in_flight_max: int = 1024  # unanswered requests per connection
    in_flight_size_max: int = 64 * MIB  # bytes of their bodies, and of answers not yet received
    queue_size_max: int = 256 * MIB  # the same for all connections, and for arriving bodies
    fetch_size_max: int = 16 * MIB  # target size of the response to a Fetch
    meta_size_max: int = MIB  # of a request; answers may be larger
    body_size_max: int = BODY_SIZE_MAX
    handshake_timeout: float = 5.0
    stall_timeout: float = 30.0  # without progress, in a frame or in receiving answers
    frame_timeout: float = 300.0  # to complete a frame, or to receive unsent answers
    idle_timeout: float = 300.0
    request_timeout: float = 30.0  # default deadline of a request
    request_timeout_max: float = 300.0
    retry_after_ms: int = 100  # hint for a peer refused because the node is full
    sweep_interval: float = 1.0  # how often the timeouts of all connections are checked

    def __post_init__(self) -> None:
        assert self.in_flight_max > 0
        assert self.in_flight_size_max > 0
        assert self.sweep_interval > 0
