"""Small scripted clusters, recorded as transcripts: one line per relevant event.

A scene has no random faults: links are fast and reliable, disks take no time, and only what the
script does happens. Its transcript is compared with the stored one, so that a change of
behaviour shows as a text diff.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.journal.entry import REGISTER, SEAL, Entry
from headrace.model.ids import Op, ReplicaId
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace.vsr.member_state import MemberStatus
from headrace_lab.cluster.cluster import World
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.machine import ADD, add
from headrace_lab.cluster.swarm import Swarm
from headrace_lab.disk.memory import MemoryDisk

QUIET = Swarm(
    replicas=3,
    delay_min=1,
    delay_mean=0.0,
    drop=0.0,
    duplicate=0.0,
    corrupt=0.0,
    old=False,
    disk_mean=0.0,
    every=10**9,
    kinds=("kill",),
    slots=48,
    seal_every=10**9,
    clients=0,
    requests=0,
    starts_empty=False,
)
CLIENT = b"c" * 16
Filter = Callable[[int, int, Any], bool]  # from, to, message: does it pass?


class SceneWorld(World):
    """A world that tells what is said, and lets a script forbid some of it."""

    script: "Scene"

    def send(self, host: Host, to: ReplicaId, message: vm.Message[Entry]) -> None:
        if self.script.passes(host.me, to, message):
            super().send(host, to, message)

    def answer(self, host: Host, ticket: object, result: object) -> None:
        self.script.answered(host, ticket, result)

    def applied(self, host: Host, entry: Entry, result: object) -> None:
        super().applied(host, entry, result)

    def died(self, host: Host, why: str) -> None:
        self.script.say(f"r{host.me} died: {why}")
        super().died(host, why)


@dataclass(slots=True)
class Scene:
    """One scripted cluster and its transcript."""

    replicas: int = 3
    slots: int = 48
    lines: list[str] = field(default_factory=list)
    world: SceneWorld = field(init=False)
    filters: list[Filter] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    answers: list[object] = field(default_factory=list)
    requests: int = 0
    session: int = 0
    views: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        swarm = replace(QUIET, replicas=self.replicas, slots=self.slots)
        self.world = SceneWorld(7, swarm)
        self.world.script = self
        for host in self.hosts:
            host.init()

    @property
    def hosts(self) -> list[Host]:
        return self.world.hosts

    def say(self, text: str) -> None:
        self.lines.append(f"{self.world.now:>6} ms  {text}")

    # What a script does.

    def boot(self, *numbers: int) -> "Scene":
        for number in numbers or range(self.replicas):
            self.say(f"boot r{number}")
            self.hosts[number].boot()
        return self

    def crash(self, *numbers: int, power: bool = True) -> "Scene":
        """End processes; what was not synced is gone. They stay down."""
        for number in numbers or range(self.replicas):
            host = self.hosts[number]
            self.say(f"crash r{number}")
            host.process = None
            host.life += 1
            host.disk = host.disk.power_cut() if power else host.disk.kill()
        return self

    def wipe(self, number: int) -> "Scene":
        self.crash(number)
        self.say(f"wipe the disk of r{number}")
        self.hosts[number].disk, self.hosts[number].was_made = MemoryDisk(), False
        self.world.oracles.was_wiped(self.hosts[number])
        return self

    def restore(self, number: int, copy: MemoryDisk) -> "Scene":
        self.crash(number)
        self.say(f"restore an old directory of r{number}")
        self.hosts[number].disk = copy.clone()
        self.world.oracles.forgot(self.hosts[number])
        return self

    def forbid(self, text: str, forbidden: Filter) -> "Scene":
        """Let some messages not pass any more."""
        self.say(f"from now on: {text}")
        self.filters.append(lambda *what: not forbidden(*what))
        return self

    def allow_all(self) -> "Scene":
        self.say("from now on: everything passes")
        self.filters.clear()
        return self

    def isolate(self, number: int) -> "Scene":
        return self.forbid(f"r{number} is cut off", lambda a, b, _: number in (a, b))

    def rot(self, number: int, op: int) -> "Scene":
        """Flip a bit in the body of an entry at rest."""
        host = self.hosts[number]
        assert host.process is not None
        slot = host.process.group.journal.slot(Op(op))
        assert slot is not None
        self.say(f"op {op} of r{number} rots")
        host.disk.flip(slot.file.path.removeprefix("./"), (slot.position + 64 + 20) * 8)
        return self

    def ask(self, *numbers: int, to: int | None = None, again: bool = False) -> "Scene":
        """Send requests of one session to the one who leads, or to `to`; repeat the last."""
        for amount in numbers:
            if not again:
                self.requests += 1
            request = EntryProposal(
                ADD,
                add("n", amount),
                writer=CLIENT,
                version=self.requests,
                created=self.session,
            )
            self._give(request, to, f"request {self.requests}: add {amount}")
        return self

    def register(self) -> "Scene":
        self.requests = 0
        self._give(EntryProposal(REGISTER, writer=CLIENT), None, "open a session")
        self.run(60)
        found = self.answers[-1]
        assert isinstance(found, tuple)
        self.session = found[1]
        return self

    def seal(self) -> "Scene":
        """Have a checkpoint made."""
        self._give(EntryProposal(SEAL), None, "seal")
        return self.run(60)

    def _give(self, request: EntryProposal, to: int | None, what: str) -> None:
        leaders = [host.me for host in self.hosts if host.state and host.state.leads]
        target = to if to is not None else leaders[-1]
        self.say(f"{what}, to r{target}")
        self.hosts[target].request(request, what)

    def run(self, most: int = 1000) -> "Scene":
        """Let time pass."""
        end = self.world.now + most
        while self.world.now < end:
            before = self.world.now
            self.world._until(1, lambda: False)
            self._watch()
            if self.world.now == before:
                self.world.now += 1
        return self

    def show(self) -> "Scene":
        """Write down where everybody stands."""
        for host in self.hosts:
            state = host.state
            if state is None:
                self.say(f"   r{host.me} is down")
                continue
            role = "leads" if state.leads else state.status.value
            extras = [
                f"recovering {state.recovering}" if state.recovering else "",
                f"syncing to {state.syncing_to}" if state.syncing_to else "",
                f"faulty {sorted(state.log.faulty)}" if state.log.faulty else "",
                f"suspect {state.suspect}" if state.suspect else "",
                f"awaits {state.awaiting}" if state.awaiting else "",
            ]
            self.say(
                f"   r{host.me} {role} view {state.view} (log {state.log_view}) "
                f"head {state.log.head} commit {state.commit} applied {state.applied}"
                + "".join(f", {extra}" for extra in extras if extra)
            )
        return self

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    # What is written down by itself.

    def passes(self, sender: int, to: int, message: vm.Message[Entry]) -> bool:
        return all(one(sender, to, message) for one in self.filters)

    def answered(self, host: Host, ticket: object, result: object) -> None:
        self.answers.append(result)
        words = result if isinstance(result, tuple) else type(result).__name__
        self.say(f"r{host.me} answers {ticket}: {words}")

    def _watch(self) -> None:
        for host in self.hosts:
            state = host.state
            if state is None:
                now = "down"
            elif state.leads:
                now = f"leads view {state.view}"
            elif state.status is MemberStatus.NORMAL:
                silent = "" if state.may_vote else ", silent"
                now = f"follows view {state.view}{silent}" if state.is_verified else "asks"
            else:
                now = f"{state.status.value} {state.view}"
            if self.views.get(host.me) != now:
                self.views[host.me] = now
                self.say(f"r{host.me}: {now}")
