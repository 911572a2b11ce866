"""A whole group in one process: real replicas on simulated disks, network, clocks and clients.

One seed decides everything. A seed has two phases: first faults strike while clients work; then
a core of replicas is healed and must answer everything and end in one state. If it does not get
there, that is a failure with its reason.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

from xxhash import xxh3_64

from headrace.journal.entry import Entry
from headrace.model.ids import GroupId, Identity, Op, ReplicaId
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace.vsr.quorum import quorum_of
from headrace_lab.cluster.faults import Faults, is_whole
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.network import Network
from headrace_lab.cluster.oracles import Oracles, Violation
from headrace_lab.cluster.swarm import SeedCounts, Swarm, draw
from headrace_lab.cluster.workload import Workload

CLUSTER = b"headrace-cluster"
SAFETY_MS = 40_000  # a safety phase without enough progress ends here
LIVENESS_MS = 25_000
LIVENESS_REQUESTS = 12
GIVE_UPS_MAX = 3  # how often the operator helps
TRACE_LENGTH = 200
LOOK_EVERY = 16  # events between two looks at whether a phase is over


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """How one seed ended."""

    seed: int
    tally: SeedCounts
    violation: str | None  # the oracle and what it saw
    trace_hash: str
    trace: tuple[str, ...]  # the last events, if something is wrong
    halts: tuple[str, ...]  # named ends, in the mode without a budget


@dataclass(slots=True)
class World:
    """The simulation of one seed."""

    seed: int
    swarm: Swarm
    tally: SeedCounts = field(default_factory=SeedCounts)
    now: int = 0
    hosts: list[Host] = field(default_factory=list)
    oracles: Oracles = field(default_factory=Oracles)
    halts: list[str] = field(default_factory=list)
    _heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = field(
        default_factory=list
    )
    _order: int = 0
    _views: int = 0
    _trace: deque[tuple[object, ...]] = field(
        default_factory=lambda: deque(maxlen=TRACE_LENGTH)
    )
    _hash: Any = field(default_factory=xxh3_64)
    network: Network = field(init=False)
    workload: Workload = field(init=False)
    faults: Faults = field(init=False)

    def __post_init__(self) -> None:
        stream = _Streams(self.seed)
        self.oracles.quorum = quorum_of(self.swarm.replicas).replication
        self.network = Network(stream.next("network"), self.swarm, self.tally)
        for number in range(self.swarm.replicas):
            identity = Identity(
                CLUSTER, GroupId(0), ReplicaId(number), self.swarm.replicas, (16, 24, 24)
            )
            host = Host(self, identity, self.swarm, stream.next(f"host {number}"))
            host.tick_phase = 1 + 3 * number
            self.hosts.append(host)
        self.workload = Workload(
            stream.next("workload"),
            self.swarm.replicas,
            self.oracles,
            self.tally,
            self.at,
            self._ask,
            self.swarm.requests,
        )
        self.faults = Faults(
            stream.next("faults"),
            self.swarm,
            self.tally,
            self.hosts,
            self.network,
            self.oracles,
            self,
        )

    # What hosts, clients and faults need.

    def at(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + max(delay, 0), self._order, call, arguments))

    def send(self, host: Host, to: ReplicaId, message: vm.Message[Entry]) -> None:
        assert host.process is not None
        self.oracles.sent(host, message)
        packet = host.process.member.envelope(message)
        self.note("send", host.me, to, type(message).__name__, message)
        for delay, arriving in self.network.route(self.now, to, packet):
            self.at(delay, self._deliver, to, arriving)

    def _deliver(self, to: ReplicaId, packet: vm.Envelope[Entry]) -> None:
        host = self.hosts[to]
        before = self.oracles.counted(host, packet.sender)
        host.deliver(packet)
        self.oracles.heard(host, packet, before)

    def answer(self, host: Host, ticket: object, result: object) -> None:
        self.at(self.network.rng.randrange(1, 6), self.workload.answer, ticket, result)

    def _ask(self, target: int, request: EntryProposal, ticket: object) -> None:
        delay = self.network.rng.randrange(1, 6)
        self.at(delay, self.hosts[target].request, request, ticket)

    def applied(self, host: Host, entry: Entry, result: object) -> None:
        self.note("apply", host.me, entry.op, result)
        self.oracles.applied(host, entry, result)

    def stepped(self, host: Host) -> None:
        self.oracles.stepped(host)
        state = host.state
        if state is not None and state.leads and state.view > self._views:
            self._views = state.view
            self.tally.view_changes += 1
            self.note("leads", host.me, state.view)
        if host.halted is not None and host.process is not None:
            self._halted(host, host.halted)

    def booted(self, host: Host) -> None:
        self.oracles.booted(host, is_damaged=host.me in self.faults.damaged)

    def cutting(self, host: Host, first: Op) -> None:
        self.oracles.cut(host, first)

    def forgot(self, host: Host) -> None:
        """A replica lost all its state, by damage, and begins again."""
        if self.swarm.is_safe:
            raise Violation("recovery", f"replica {host.me} lost its whole state")
        self.oracles.forgot(host)

    def installing(self, host: Host) -> None:
        self.faults.aim_at_install(host)

    def installed(self, host: Host) -> None:
        self.tally.transfers += 1
        self.faults.missed_install(host)
        self.oracles.holds(host)

    def _halted(self, host: Host, reason: str) -> None:
        if self.swarm.is_safe:
            raise Violation("halt", f"replica {host.me} halted: {reason}")
        self.halts.append(reason)
        host.process = None
        host.life += 1

    def died(self, host: Host, why: str) -> None:
        """The process of a host has ended by itself."""
        self.note("died", host.me, why)
        if why.startswith("recovery: "):
            if self.swarm.is_safe:
                raise Violation("recovery", f"replica {host.me}: {why}")
            self.halts.append(why)
            return
        self.faults.crash(host, power=self.faults.rng.random() < 0.5)

    def note(self, *what: object) -> None:
        """Remember an event: for whoever has to find out, and to compare two runs."""
        self._trace.append((self.now, *what))
        self._hash.update(repr((self.now, *what[:4])).encode())

    # The run.

    def run(self) -> None:
        """Play both phases; raises Violation."""
        for host in self.hosts:
            if not self.swarm.starts_empty:
                host.init()
            host.boot()
        self.workload.begin(self.swarm.clients)
        self.at(300, self.faults.strike)
        self._until(SAFETY_MS, lambda: self.workload.is_done)
        self._heal()
        is_over = self._until(LIVENESS_MS, self._is_converged)
        for _ in range(GIVE_UPS_MAX):
            if not is_over and self._give_up():
                is_over = self._until(LIVENESS_MS, self._is_converged)
        if not is_over:
            self._halt_for_votes()
        if not is_over and not self.halts:
            raise Violation("liveness", self._why_not())
        if not self.halts:
            self.oracles.ended(self.core)
        self._hash.update(repr(sorted(self.tally.landed.items())).encode())

    core: list[Host] = field(default_factory=list)

    def _until(self, most: int, is_done: Callable[[], bool]) -> bool:
        end, heap = self.now + most, self._heap
        steps = 0
        while heap and heap[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(heap)
            call(*arguments)
            steps += 1
            self.tally.events += 1
            if steps % LOOK_EVERY == 0 and is_done():
                return True
        return is_done()

    def _heal(self) -> None:
        """Choose a core, mend everything inside it, and make the rest silent forever."""
        self.faults.is_over = True
        self.network.heal()
        members = self.core = self._draw_core()
        for host in self.hosts:
            host.paused_until, host.slow, host.clock_offset = 0, 1, 0
            host.disk.hook = host.disk.read_fault = None
            if host not in members and host.process is not None:
                host.process = None
                host.life += 1
            elif host in members and host.process is None:
                self.at(1, self.faults.boot, host, host.life)
        self.workload.left += LIVENESS_REQUESTS
        for client in self.workload.clients:
            self.at(2, self.workload.next, client)

    def _draw_core(self) -> list[Host]:
        """Draw a quorum in which nobody forgot and one has all that is committed; else all."""
        rng, fit = self.faults.rng, [host for host in self.hosts if self._remembers(host)]
        least = quorum_of(len(self.hosts)).view_change
        drawn = rng.randrange(least, len(self.hosts) + 1)
        for size in range(min(drawn, len(fit)), least - 1, -1):
            cores = [one for one in combinations(fit, size) if any(map(self._has_all, one))]
            if cores and rng.random() < 0.8:  # else those who forgot must be able to learn
                return list(rng.choice(cores))
        return list(self.hosts)

    def _remembers(self, host: Host) -> bool:
        state = host.state
        if state is None or state.recovering or state.suspect is not None:
            return False
        return not state.log.faulty and (host.me not in self.faults.damaged or is_whole(host))

    def _has_all(self, host: Host) -> bool:
        state = host.state
        return state is not None and state.may_vote and state.log.whole >= self.oracles.settled

    def _give_up(self) -> bool:
        """Do what an operator does about an op that only a replica without memory could tell.

        Nothing that was committed may be lost by it: one good copy was left of that.
        """
        waits = [one.state.awaiting for one in self.core if one.state is not None]
        known = [one for one in waits if one is not None]
        if not known:
            return False
        op, replicas = known[0]
        able = [self.hosts[one].state for one in replicas if self.hosts[one] in self.core]
        if any(
            state is not None and state.may_vote and op not in state.log.faulty
            for state in able
        ):
            return False
        if op <= self.oracles.top and self.swarm.is_safe:
            raise Violation("give up", f"op {op} was committed, and nobody has it")
        self.tally.landed["given up by the operator"] += 1
        self.note("give up", op)
        for host in self.core:
            if host.process is not None:
                host.perform(host.process.member.on_give_up(op))
        return True

    def _halt_for_votes(self) -> None:
        """Name a group whose memory is gone: damage without a budget may go that far."""
        states = [host.state for host in self.core if host.state is not None]
        if self.swarm.is_safe or any(state.leads for state in states):
            return
        voters = sum(state.may_vote for state in states)
        if voters < quorum_of(len(self.hosts)).view_change:
            self.halts.append("fewer replicas remember than a view change needs")

    def _is_converged(self) -> bool:
        if not self.workload.is_done:
            return False
        states = [host.state for host in self.core]
        top = self.oracles.top
        for host, state in zip(self.core, states, strict=True):
            if state is None or host.process is None or host.process.jobs:
                return False
            if not (state.leads or state.follows) or not state.may_vote:
                return False
            if state.applied != top or state.log.head != top or state.log.whole != top:
                return False
        return len({state.view for state in states if state is not None}) == 1

    def _why_not(self) -> str:
        words = [f"requests open: {sum(c.request is not None for c in self.workload.clients)}"]
        for host in self.core:
            state = host.state
            if state is None:
                words.append(f"replica {host.me} is down")
                continue
            words.append(
                f"replica {host.me}: {state.status.value}, view {state.view}, "
                f"log view {state.log_view}, head {state.log.head}, commit {state.commit}, "
                f"applied {state.applied}, whole {state.log.whole}, "
                f"recovering {state.recovering}, syncing {state.syncing_to}, "
                f"faulty {sorted(state.log.faulty)[:5]}, suspect {state.suspect}, "
                f"awaiting {state.awaiting}"
            )
        return "; ".join(words)

    def outcome(self, violation: str | None) -> SeedOutcome:
        trace = tuple(_line(one) for one in self._trace) if violation else ()
        return SeedOutcome(
            self.seed,
            self.tally,
            violation,
            self._hash.hexdigest(),
            trace,
            tuple(self.halts),
        )


@dataclass(slots=True)
class _Streams:
    """Random streams that do not disturb one another: one for each purpose."""

    seed: int

    def next(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")


def run_seed(seed: int, replicas: int | None = None, *, is_safe: bool = True) -> SeedOutcome:
    """Run one seed to its end."""
    swarm = draw(_Streams(seed).next("swarm"), replicas, is_safe=is_safe)
    world = World(seed, swarm)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever it trips over, a seed is named
        return world.outcome(f"{type(error).__name__}: {error}")
    return world.outcome(None)


def _line(event: tuple[object, ...]) -> str:
    now, *rest = event
    return f"{now:>7} ms  " + " ".join(str(one) for one in rest)
