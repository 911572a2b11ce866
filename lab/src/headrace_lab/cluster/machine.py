"""The machine of a simulated group: named counters behind sessions, as group 0 has them."""

import struct
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_128_digest

from headrace.journal.entry import OPERATION_FIRST, REGISTER, SEAL, Entry
from headrace.journal.machine_seam import MachineState
from headrace_lab.cluster.sessions import Refusal, Sessions

ADD = OPERATION_FIRST  # body: amount:i64, name; `created` is the session, `version` the request
SESSIONS_SIZE = 5  # fewer than there are clients in some seeds, so that some are evicted
_AMOUNT = struct.Struct("<q")
_Folded = list[tuple[bytes, int, int, int, list[tuple[int, int | str]]]]


@dataclass(slots=True)
class SessionMachine:
    """Counters by name. What was run once in a session is answered, not run again."""

    counters: dict[str, int] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=lambda: Sessions(SESSIONS_SIZE))
    chain: bytes = bytes(16)
    bodiless: frozenset[int] = frozenset()

    def apply(self, entry: Entry) -> int | str:
        header = entry.header
        self.chain = xxh3_128_digest(self.chain + header.checksum)
        if header.operation == SEAL:
            return "sealed"
        if header.operation == REGISTER:
            return self.sessions.register(header.writer, header.op)
        if header.operation != ADD or len(entry.body) < _AMOUNT.size:
            return "rejected"
        judged = self.sessions.judge(header.writer, header.created, header.version)
        if isinstance(judged, Refusal):
            return judged.value
        if judged is not None:
            return judged
        value = self._add(bytes(entry.body))
        self.sessions.record(header.writer, header.version, value, header.op)
        return value

    def _add(self, body: bytes) -> int:
        name = body[_AMOUNT.size :].decode("utf-8", "replace")
        value = self.counters.get(name, 0) + int(_AMOUNT.unpack_from(body)[0])
        self.counters[name] = value
        return value

    def snapshot(self) -> MachineState:
        ordered = sorted(self.counters.items())
        return MachineState(msgspec.msgpack.encode((self.chain, ordered, self.sessions.fold())))

    def restore(self, state: MachineState | None) -> None:
        if state is None:
            self.chain, self.counters = bytes(16), {}
            self.sessions.unfold(())
            return
        chain, counters, folded = msgspec.msgpack.decode(
            state.replicated, type=tuple[bytes, list[tuple[str, int]], _Folded]
        )
        self.chain, self.counters = chain, dict(counters)
        self.sessions.unfold(folded)

    def digest(self) -> bytes:
        return xxh3_128_digest(self.snapshot().replicated)


def add(name: str, amount: int) -> bytes:
    """Return the body that adds `amount` to the counter `name`."""
    return _AMOUNT.pack(amount) + name.encode()
