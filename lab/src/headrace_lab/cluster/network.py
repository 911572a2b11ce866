"""The simulated network: late, lost, duplicated, reordered, garbled, cut, clogged, very old."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from headrace.journal.entry import Entry, decode
from headrace.model.ids import ReplicaId
from headrace.vsr import peer_codec
from headrace.vsr.peer_messages import Envelope
from headrace_lab.cluster.swarm import SeedCounts, Swarm


def encode_packet(envelope: Envelope[Entry]) -> bytes:
    return peer_codec.encode(envelope, bytes_of)


def decode_packet(data: bytes) -> Envelope[Entry] | str:
    """Read a packet, or say why it is none; every entry in it is checked."""
    return peer_codec.decode(data, entry_of)


def bytes_of(entry: Entry) -> bytes:
    return entry.sealed + bytes(entry.body)


def entry_of(data: bytes) -> Entry | None:
    found = decode(data)
    return found if isinstance(found, Entry) else None


Packet = Envelope[Entry]
Link = tuple[int, int]
RECORDED_MAX = 64  # packets kept for a late surprise


@dataclass(slots=True)
class Network:
    """Links between replicas. What it decides comes from a random stream of its own."""

    rng: Random
    swarm: Swarm
    tally: SeedCounts
    cuts: dict[Link, int] = field(default_factory=dict)  # until when nothing passes
    clogs: dict[Link, int] = field(default_factory=dict)  # until when all waits
    recorded: deque[tuple[ReplicaId, Packet]] = field(
        default_factory=lambda: deque(maxlen=RECORDED_MAX)
    )
    is_healed: bool = False
    filters: list[object] = field(default_factory=list)

    def route(self, now: int, to: ReplicaId, packet: Packet) -> list[tuple[int, Packet]]:
        """Return when what arrives of a packet that is sent now."""
        rng, swarm, link = self.rng, self.swarm, (packet.sender, to)
        if self.cuts.get(link, 0) > now:
            self.tally.landed["cut"] += 1
            return []
        delay = self._delay(now, link)
        if self.is_healed:
            return [(delay, packet)]
        chance = rng.random()
        if chance < swarm.drop:
            self.tally.landed["drop"] += 1
            return []
        if chance < swarm.drop + swarm.corrupt:
            return self._garbled(delay, packet)
        arrivals = [(delay, packet)]
        if rng.random() < swarm.duplicate:
            self.tally.landed["duplicate"] += 1
            arrivals.append((delay + self._delay(now, link), packet))
        if swarm.old and rng.random() < 0.02:
            self.recorded.append((to, packet))
        return arrivals

    def surprise(self) -> tuple[ReplicaId, Packet] | None:
        """Return a packet of long ago, if one was kept."""
        if not self.recorded:
            return None
        self.tally.landed["very old packet"] += 1
        return self.recorded[self.rng.randrange(len(self.recorded))]

    def cut(self, link: Link, until: int) -> None:
        self.cuts[link] = max(until, self.cuts.get(link, 0))

    def clog(self, link: Link, until: int) -> None:
        self.clogs[link] = max(until, self.clogs.get(link, 0))

    def heal(self) -> None:
        self.cuts.clear()
        self.clogs.clear()
        self.is_healed = True

    def _delay(self, now: int, link: Link) -> int:
        swarm, rng = self.swarm, self.rng
        delay = swarm.delay_min + int(rng.expovariate(1.0) * swarm.delay_mean)
        clogged = self.clogs.get(link, 0) - now
        if clogged > 0:
            self.tally.landed["clog"] += 1
            delay += clogged
        return delay

    def _garbled(self, delay: int, packet: Packet) -> list[tuple[int, Packet]]:
        """Flip or cut some of its bytes. It must not get past its own checksum."""
        data = bytearray(encode_packet(packet))
        if self.rng.random() < 0.3:
            del data[self.rng.randrange(len(data)) :]
        else:
            for _ in range(self.rng.randrange(1, 4)):
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        self.tally.landed["corrupt"] += 1
        found = decode_packet(bytes(data))
        return [] if isinstance(found, str) else [(delay, found)]
