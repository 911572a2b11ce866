"""Invariants checked at every step of a simulated group, with full knowledge of its state."""

from dataclasses import dataclass, field
from typing import Any

from headrace.journal.entry import REGISTER, SEAL, Entry
from headrace.journal.superblock import Superblock
from headrace.model.ids import Op, ReplicaId
from headrace.vsr import peer_messages as vm
from headrace.vsr.member_state import MemberStatus
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.machine import ADD, SESSIONS_SIZE
from headrace_lab.cluster.sessions import WINDOW


class Violation(Exception):
    """An oracle saw what must never be."""

    def __init__(self, oracle: str, what: str) -> None:
        super().__init__(f"{oracle}: {what}")
        self.oracle = oracle


@dataclass(slots=True)
class Model:
    """What the log means, written a second time and as plainly as possible."""

    values: dict[bytes, int] = field(default_factory=dict)
    open: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # client: session, used
    ran: dict[tuple[bytes, int, int], int] = field(default_factory=dict)

    def run(self, entry: Entry) -> object:
        header = entry.header
        if header.operation == SEAL:
            return "sealed"
        if header.operation == REGISTER:
            return self._register(header.writer, header.op)
        assert header.operation == ADD
        session = self.open.get(header.writer)
        if session is None or header.created > session[0]:
            return "session-evicted"
        if header.created < session[0]:
            return "session-fenced"
        key = (header.writer, header.created, header.version)
        if key in self.ran:
            newer = sum(one[:2] == key[:2] and one[2] > key[2] for one in self.ran)
            return self.ran[key] if newer < WINDOW else "result-forgotten"
        body = bytes(entry.body)
        amount = int.from_bytes(body[:8], "little", signed=True)
        self.values[body[8:]] = self.values.get(body[8:], 0) + amount
        self.ran[key] = self.values[body[8:]]
        self.open[header.writer] = (session[0], header.op)
        return self.ran[key]

    def _register(self, client: bytes, op: int) -> int:
        self.open.pop(client, None)
        if len(self.open) >= SESSIONS_SIZE:
            used = {last: one for one, (_, last) in self.open.items()}
            del self.open[used[min(used)]]
        self.open[client] = (op, op)
        return op


@dataclass(slots=True)
class Committed:
    """One op as the first replica that ran it saw it."""

    checksum: bytes
    parent: bytes
    result: object
    digest: bytes | None


@dataclass(slots=True)
class Oracles:
    """All of them. Each raises Violation at the step that breaks it."""

    log: dict[int, Committed] = field(default_factory=dict)
    top: int = 0
    time: int = 0
    model: Model = field(default_factory=Model)
    quorum: int = 1  # replicas that must hold what is committed
    committed: dict[int, bytes] = field(default_factory=dict)  # by a quorum, run or not
    settled: int = 0  # the newest of them
    settled_in: dict[int, int] = field(default_factory=dict)  # by view: the newest of then
    acks: dict[int, dict[int, int]] = field(default_factory=dict)  # view: replica: op
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)  # view: replica, life
    wiped: dict[int, int] = field(default_factory=dict)  # replica: newest op it may have held
    restored: dict[int, tuple[int, int]] = field(default_factory=dict)  # and its last boot
    promised: dict[int, int] = field(default_factory=dict)  # replica: newest op acknowledged
    traceless: set[int] = field(default_factory=set)  # whose newest entries may be gone so
    heights: dict[int, dict[str, int]] = field(default_factory=dict)
    blocks: dict[int, Superblock] = field(default_factory=dict)  # as looked at last
    acknowledged: dict[tuple[bytes, int, int], tuple[int, object]] = field(default_factory=dict)

    def sent(self, host: Host, message: vm.Message[Entry]) -> None:
        """No ack before its sync; no message of a view before the view is durable."""
        process = host.process
        assert process is not None
        block = process.group.superblock.current
        view = getattr(message, "view", None)
        if isinstance(message, vm.PrepareOk):
            self._acked(host, message)
        if (
            isinstance(message, vm.StartViewChange | vm.DoViewChange | vm.GetStartView)
            and block.view < message.view
        ):
            raise Violation(
                "view durable", f"{type(message).__name__} of view {view} too early"
            )
        if isinstance(message, vm.DoViewChange) and message.log_view != block.log_view:
            raise Violation("view durable", f"log view {message.log_view} is not on disk")
        leads = (vm.StartView, vm.Heartbeat, vm.Prepares, vm.PrepareOk)
        if isinstance(message, leads) and block.log_view != view:
            what = f"{type(message).__name__} of view {view}, log view on disk {block.log_view}"
            raise Violation("view durable", what)
        silent = block.recovering or block.syncing_to is not None
        votes = vm.StartViewChange | vm.DoViewChange | vm.PrepareOk
        if silent and isinstance(message, votes):
            raise Violation("who may vote", f"replica {host.me} sent {type(message).__name__}")
        if host.me in self.wiped and isinstance(message, votes):
            if process.state.log.whole < self.wiped[host.me]:
                what = f"replica {host.me} was wiped, and sent {type(message).__name__}"
                raise Violation("who may vote", what)
            del self.wiped[host.me]

    def _acked(self, host: Host, message: vm.PrepareOk) -> None:
        assert host.process is not None
        journal = host.process.group.journal
        if message.op > journal.durable:
            raise Violation("ack after sync", f"op {message.op}, durable {journal.durable}")
        slot = journal.slot(message.op)
        known = slot.sealed[:16] if slot else None
        if known is not None and known != message.checksum:
            raise Violation("ack after sync", f"op {message.op} is another entry on disk")
        acks = self.acks.setdefault(message.view, {})
        acks[host.me] = max(acks.get(host.me, 0), message.op)
        self.promised[host.me] = max(self.promised.get(host.me, 0), message.op)

    def applied(self, host: Host, entry: Entry, result: object) -> None:
        """The committed log is one, its chain is whole, and it means the same everywhere."""
        assert host.process is not None
        op, header = entry.op, entry.header
        known = self.log.get(op)
        digest = host.process.machine.chain if op % 4 else host.process.machine.digest()
        if known is None:
            if op != self.top + 1:
                raise Violation("committed log", f"op {op} was run before op {self.top + 1}")
            if self.top and self.log[self.top].checksum != header.parent:
                raise Violation("committed log", f"op {op} does not chain")
            if header.timestamp <= self.time:
                raise Violation("time", f"op {op} is not later than the one before it")
            self.time = header.timestamp
            expected = self.model.run(entry)
            if expected != result:
                what = f"op {op}: the model says {expected!r}, the machine {result!r}"
                raise Violation("meaning of the log", what)
            self.log[op] = Committed(entry.checksum, header.parent, result, digest)
            self.top = op
            return
        if known.checksum != entry.checksum:
            raise Violation("committed log", f"op {op} differs on replica {host.me}")
        if known.digest not in (digest, None) or known.result != result:
            raise Violation("state digest", f"op {op} on replica {host.me}")

    def stepped(self, host: Host) -> None:
        """Watermarks are in order; one primary, in one life, commits in a view, by a quorum."""
        process = host.process
        if process is None:
            return
        state = process.state
        if state.leads:
            self._led(host)
        elif self.restored and state.status is MemberStatus.VIEW_CHANGE:
            self.decided(host)
        if state.commit > self.settled:
            what = f"replica {host.me} takes op {state.commit} for committed"
            raise Violation("commit by a quorum", what)
        self.checked_disk(host)
        if not state.applied <= state.commit or not state.applied <= state.log.head:
            raise Violation("watermarks", f"applied {state.applied}, commit {state.commit}")

    def _led(self, host: Host) -> None:
        assert host.process is not None
        state = host.process.state
        leader = self.leaders.get(state.view)
        if leader is None:
            self.leaders[state.view] = (host.me, host.life)
            self._started(host)
        elif leader != (host.me, host.life):
            what = f"view {state.view}: replica and life {leader} and {(host.me, host.life)}"
            raise Violation("one primary per view", what)
        if state.commit > self.settled:
            self._committed(host)

    def _started(self, host: Host) -> None:
        """The log of a view that starts has all that views before it have committed.

        One that was decided, and then paused, may start late and find nobody who follows.
        """
        assert host.process is not None
        state = host.process.state
        before = [op for view, op in self.settled_in.items() if view < state.view]
        log, last = state.log, max(before, default=0)
        if log.head < last:
            what = f"view {state.view} starts with head {log.head}, op {last} is committed"
            raise Violation("committed ops survive", what)
        checksum = log.checksum(Op(last)) if last > log.anchor else None
        if checksum is not None and checksum != self.committed[last]:
            what = f"view {state.view} starts with another op {last} than was committed"
            raise Violation("committed ops survive", what)

    def _committed(self, host: Host) -> None:
        """What the primary takes for committed is on the disks of a quorum."""
        assert host.process is not None
        state, journal = host.process.state, host.process.group.journal
        acks = self.acks.get(state.view, {})
        holders = {one for one, op in acks.items() if op >= state.commit}
        if journal.durable >= state.commit:
            holders.add(host.me)
        if len(holders) < self.quorum:
            what = f"op {state.commit} is held by {sorted(holders)}"
            raise Violation("commit by a quorum", what)
        self._settle(host, state.commit)

    def _settle(self, host: Host, through: Op) -> None:
        assert host.process is not None
        log = host.process.state.log
        for op in range(self.settled + 1, through + 1):
            checksum = log.checksum(Op(op))
            assert checksum is not None
            self.committed[op] = checksum
        self.settled = max(self.settled, through)
        self.settled_in[host.process.state.view] = self.settled

    def checked_disk(self, host: Host) -> None:
        """What is durable never goes back, across restarts."""
        assert host.process is not None
        block = host.process.group.superblock.current
        if block is self.blocks.get(host.me):
            return
        self.blocks[host.me] = block
        before = self.heights.get(host.me, {})
        now = {
            "view": block.view,
            "log view": block.log_view,
            "commit": block.commit,
            "checkpoint": block.checkpoint.op,
        }
        for name, value in now.items():
            if value < before.get(name, 0):
                what = f"replica {host.me}: {name} fell from {before[name]} to {value}"
                raise Violation("monotone", what)
        self.heights[host.me] = now

    def forgot(self, host: Host) -> None:
        """Its disk was wiped or is an old one: what it knew does not bind it."""
        self.heights.pop(host.me, None)
        self.promised.pop(host.me, None)

    def booted(self, host: Host, *, is_damaged: bool) -> None:
        """What was acknowledged is found again; what was replayed belongs to the log."""
        assert host.process is not None
        group = host.process.group
        if host.process.report.superblock_rebuilt:
            # Both copies were damaged: it knows no view any more, and knows that.
            if not group.superblock.current.recovering:
                raise Violation("recovery", f"replica {host.me} votes without a superblock")
            self.heights.pop(host.me, None)
        promised = self.promised.get(host.me, 0)
        if group.journal.durable < promised and not is_damaged:
            what = f"replica {host.me} acknowledged op {promised}, has {group.journal.durable}"
            raise Violation("acknowledged is durable", what)
        self._remembers(host, promised)
        if self.quorum == 1:  # what the only disk holds is committed
            self._settle(host, group.journal.durable)
        self.holds(host)
        for op in range(self.top + 1, group.applied + 1):
            entry = group.journal.read(Op(op))
            assert entry is not None
            result = self.model.run(entry)
            self.log[op] = Committed(entry.checksum, entry.parent, result, None)
            self.top, self.time = op, entry.timestamp

    def _remembers(self, host: Host, promised: int) -> None:
        """It never says that it did not have what it acknowledged: damage may hide that.

        But a write of another place that covers a whole frame may leave nothing to see.
        """
        assert host.process is not None
        state = host.process.state
        head, suspect = state.log.head, state.suspect
        if promised <= head or not state.may_vote or self.quorum == 1:
            self.traceless.discard(host.me)
            return
        if host.me in self.traceless:
            return
        if suspect is None or not suspect[0] <= head + 1 <= promised <= suspect[1]:
            what = f"replica {host.me} acknowledged op {promised}, has {head}, knows {suspect}"
            raise Violation("acknowledged is durable", what)

    def holds(self, host: Host) -> None:
        """What a start replayed, or a snapshot brought, is the committed log and its state."""
        assert host.process is not None
        group, machine = host.process.group, host.process.machine
        for op in range(group.journal.ring.watermark + 1, group.applied + 1):
            slot = group.journal.slot(Op(op))
            expected = self.log[op].checksum if op in self.log else self.committed.get(op)
            if slot is not None and expected not in (slot.sealed[:16], None):
                raise Violation("replay", f"op {op} differs on replica {host.me}")
        known = self.log.get(group.applied)
        if known is None or known.digest is None:
            return
        if known.digest != (machine.chain if group.applied % 4 else machine.digest()):
            raise Violation("replay", f"state at op {group.applied} of replica {host.me}")

    def heard(self, host: Host, packet: vm.Envelope[Entry], before: tuple[object, ...]) -> None:
        """Nothing of a peer's life is counted before that life is durable here."""
        if host.process is None or self.counted(host, packet.sender) == before:
            return
        peers = dict(host.process.group.superblock.current.peers)
        if peers.get(packet.sender, 0) < packet.life:
            what = f"replica {host.me} counts life {packet.life} of replica {packet.sender}"
            raise Violation("life durable", what)

    def counted(self, host: Host, sender: int) -> tuple[object, ...]:
        """What a replica has counted of one peer."""
        if host.process is None:
            return ()
        state = host.process.state
        election, one = state.election, ReplicaId(sender)
        return state.acked[sender], one in election.started, election.votes.get(one)

    def cut(self, host: Host, first: int) -> None:
        """A view's log does not have it: it cannot have been committed."""
        self.promised[host.me] = min(self.promised.get(host.me, 0), first - 1)

    def was_restored(self, host: Host) -> None:
        """It does not know that it forgot: others must not count what it says of its log."""
        block = self.blocks.get(host.me)
        boot = block.starts[-1][1] if block is not None and block.starts else 0
        self.forgot(host)
        self.wiped.pop(host.me, None)
        self.restored[host.me] = (self.settled, boot)

    def decided(self, host: Host) -> None:
        """The log of a view is not decided by one who forgot."""
        assert host.process is not None
        state = host.process.state
        if state.election.merged is None:
            return
        for one, vote in state.election.votes.items():
            top, boot = self.restored.get(one, (0, 0))
            is_later = state.election.voters[one].boot != boot  # else it had not forgotten yet
            if vote.op < top and vote.suspect is None and is_later:
                what = f"view {state.view} was decided by replica {one}, which forgot op {top}"
                raise Violation("who may vote", what)

    def was_wiped(self, host: Host) -> None:
        """Nothing is left of it: it must not vote before it holds what it may have held."""
        self.forgot(host)
        self.wiped[host.me] = self.settled

    def replied(self, key: tuple[bytes, int, int], op: int, result: object, since: int) -> None:
        """A reply is true, unique, and not older than what was known when it was asked."""
        known = self.log.get(op)
        if known is None or known.result != result:
            raise Violation(
                "reply", f"{key[1:]} got {result!r} for op {op}, which says another"
            )
        first = self.acknowledged.setdefault(key, (op, result))
        if first[1] != result:
            raise Violation("at most once", f"{key[1:]} got {first[1]!r} and then {result!r}")
        if op <= since:
            raise Violation("linearizable", f"op {op} was there before the request was sent")

    def ended(self, hosts: list[Host]) -> None:
        """All hold one log and one state; every acknowledged request ran, once."""
        tops = {host.me: _height(host) for host in hosts}
        if len(set(tops.values())) != 1:
            raise Violation("convergence", f"heights differ at the end: {tops}")
        for key, (_, result) in self.acknowledged.items():
            ran: Any = self.model.ran.get(key, self.log.get(key[1]))
            value = ran.result if isinstance(ran, Committed) else ran
            if value != result:
                raise Violation("acknowledged", f"{key[1:]} answered {result!r}, ran {value!r}")


def _height(host: Host) -> tuple[int, bytes, bytes]:
    assert host.process is not None
    state = host.process.state
    checksum = state.log.checksum(state.log.head) or b""
    if state.log.faulty and max(state.log.faulty) > state.applied:
        raise Violation("convergence", f"replica {host.me} has faulty slots at the end")
    return state.applied, checksum, host.process.machine.digest()
