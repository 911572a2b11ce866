"""What peers may ask of a node, in count, size and time."""

from dataclasses import dataclass
from typing import Final

from headrace.wire.frames import BODY_SIZE_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

# A peer that has not said who it is can make a node hold this much, and no body.
HANDSHAKE_META_SIZE_MAX: Final = 4 * KIB
# Less than this in one stall_timeout is no progress: a byte a second holds nothing open.
PROGRESS_SIZE_MIN: Final = 64 * KIB
# Answers beyond this wait to be written before more requests are begun.
UNSENT_SIZE_MAX: Final = MIB
# What was said last may still be on its way when a connection ends; in seconds.
LINGER_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Times are in seconds. The defaults are those of the config."""

    connection_count_max: int = 1024  # of one listener
    in_flight_max: int = 1024  # requests of one connection that are not answered yet
    in_flight_size_max: int = 64 * MIB  # bytes of their bodies, and of answers not taken yet
    queue_size_max: int = 256 * MIB  # the same over all connections, and of bodies that come
    fetch_size_max: int = 16 * MIB  # what the answer to one Fetch aims at
    meta_size_max: int = MIB  # of a request; answers may have more
    body_size_max: int = BODY_SIZE_MAX
    handshake_timeout: float = 5.0
    stall_timeout: float = 30.0  # without progress, in a frame or in taking answers
    frame_timeout: float = 300.0  # until a frame is whole, or what was unsent is taken
    idle_timeout: float = 300.0
    request_timeout: float = 30.0  # the deadline of a request that names none
    request_timeout_max: float = 300.0
    retry_after_ms: int = 100  # what a peer is told that comes when the node is full
    sweep_interval: float = 1.0  # how often every connection's times are looked at

    def __post_init__(self) -> None:
        assert self.in_flight_max > 0
        assert self.in_flight_size_max > 0
        assert self.sweep_interval > 0
