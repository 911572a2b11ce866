"""A deliberately slow crowd: many connections, a byte at a time, never a whole frame."""

import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from headrace.wire.codec import encode
from headrace.wire.frames import encode_frame
from headrace.wire.greeting import VERSION, Hello
from headrace.wire.topic_messages import PartitionInfo
from headrace_lab.hostile.frames import DEADLINE_MS, frame_of
from headrace_lab.hostile.peer import Peer
from headrace_lab.hostile.rows import GoodClient, append_to
from headrace_lab.hostile.server import MIB, Gone

BYTE_SECONDS: Final = 0.2
BODY_SIZE: Final = 64 * MIB
PIPELINE: Final = 16  # appends in flight of the good client
# Below this, the good client has lost more than its share.
SHARE_MIN: Final = 0.5


@dataclass(slots=True)
class _Slow:
    peer: Peer
    rest: bytes  # goes out byte by byte, then zeros do
    sent: int = 0


@dataclass(slots=True)
class Crowd:
    """Slow peers of three kinds. Use it as a context: they are there inside the block."""

    port: int
    where: PartitionInfo
    size: int
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _slow: list[_Slow] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Crowd":
        self._slow = [self._join(number) for number in range(self.size)]
        self._is_over.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._is_over.set()
        self._thread.join()
        for one in self._slow:
            one.peer.close(reset=True)

    def _join(self, number: int) -> _Slow:
        self.counts["connections"] += 1
        peer = Peer(self.port)
        if number % 3 == 0:  # a stranger that never ends its Hello
            self.counts["strangers"] += 1
            hello = Hello(VERSION, VERSION, "slow" * 500, secrets.token_bytes(16))
            return _Slow(peer, b"".join(encode_frame(hello, 1)))
        peer.greet()
        meta = encode(append_to(self.where, 1))
        head = frame_of(48, meta, body_size=BODY_SIZE, deadline_ms=DEADLINE_MS)
        if number % 3 == 1:
            self.counts["within a header"] += 1
            return _Slow(peer, head)
        self.counts["within a body of 64 MiB"] += 1
        peer.send(head + bytes(100_000))
        return _Slow(peer, b"")

    def _run(self) -> None:
        """In a thread of its own."""
        try:
            while not self._is_over.is_set():
                began = time.monotonic()
                for number, one in enumerate(self._slow):
                    self._dribble(number, one)
                self._is_over.wait(max(0.0, BYTE_SECONDS - (time.monotonic() - began)))
        except Gone as error:
            self.problems.append(f"the crowd: {error}")

    def _dribble(self, number: int, one: _Slow) -> None:
        byte = one.rest[one.sent : one.sent + 1] or b"\0"
        one.sent += 1
        self.counts["bytes, one at a time"] += 1
        if not one.peer.send(byte) or one.peer.look():
            self.counts["cut off, and came again"] += 1
            one.peer.close()
            self._slow[number] = self._join(number)


@dataclass(frozen=True, slots=True)
class Rates:
    """Appends in a second of the good client, window by window."""

    alone: list[float]
    crowded: list[float]

    @property
    def share(self) -> float:
        """What the crowd leaves of the rate."""
        return median(self.crowded) / median(self.alone)


def rates(good: GoodClient, crowd: Crowd, windows: int, seconds: float) -> Rates:
    """Measure the good client alone and beside the crowd, by turns."""
    alone, crowded = [], []
    for _ in range(windows):
        alone.append(_rate(good, seconds))
        with crowd:
            crowded.append(_rate(good, seconds))
    return Rates(alone, crowded)


def _rate(good: GoodClient, seconds: float) -> float:
    began, before = time.monotonic(), good.append_count
    while time.monotonic() - began < seconds:
        good.append(PIPELINE)
    return (good.append_count - before) / (time.monotonic() - began)
