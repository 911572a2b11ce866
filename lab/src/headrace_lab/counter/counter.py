"""A tiny real machine, named counters, that tests, harnesses and the demo run in groups."""

import struct
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_128_digest

from headrace.journal.entry import OPERATION_FIRST, SEAL, Entry
from headrace.journal.machine_seam import MachineState

ADD = OPERATION_FIRST  # body: amount:i64, name
_AMOUNT = struct.Struct("<q")


@dataclass(slots=True)
class CounterMachine:
    """Counters by name, and a chain over every entry applied: order counts too."""

    counters: dict[str, int] = field(default_factory=dict)
    applied: int = 0
    chain: bytes = bytes(16)
    bodiless: frozenset[int] = frozenset()  # an amount is in the body

    def apply(self, entry: Entry) -> int | str:
        """Add, and return the new value; a body without sense is rejected, not an error."""
        self.applied += 1
        self.chain = xxh3_128_digest(self.chain + entry.checksum)
        if entry.header.operation == SEAL:
            return "sealed"
        body = bytes(entry.body)
        if entry.header.operation != ADD or len(body) < _AMOUNT.size:
            return "rejected"
        name = body[_AMOUNT.size :].decode("utf-8", "replace")
        value = self.counters.get(name, 0) + int(_AMOUNT.unpack_from(body)[0])
        self.counters[name] = value
        return value

    def snapshot(self) -> MachineState:
        ordered = sorted(self.counters.items())
        return MachineState(
            msgspec.msgpack.encode((self.applied, self.chain, ordered)), b"counters"
        )

    def restore(self, state: MachineState | None) -> None:
        if state is None:
            self.applied, self.chain, self.counters = 0, bytes(16), {}
            return
        record = msgspec.msgpack.decode(
            state.replicated, type=tuple[int, bytes, list[tuple[str, int]]]
        )
        self.applied, self.chain, self.counters = record[0], record[1], dict(record[2])

    def digest(self) -> bytes:
        return xxh3_128_digest(self.snapshot().replicated)


def add(name: str, amount: int) -> bytes:
    """Return the body that adds `amount` to the counter `name`."""
    return _AMOUNT.pack(amount) + name.encode()
