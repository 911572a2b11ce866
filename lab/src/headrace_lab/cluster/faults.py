"""Faults of the machines in a simulated group, and the budget that preserves one good copy.

In the safe mode at most a replication quorum minus one of the replicas is damaged at a time:
every committed op keeps at least one intact copy. A replica counts as damaged until its whole
disk reads well again. Crashes, network cuts and clock faults have no budget.
"""

import errno
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.errors import HeadraceError
from headrace.journal.recovery.recover import recover
from headrace.journal.superblock import NAMES, Superblock, decode
from headrace.vsr.member_state import MemberStatus
from headrace.vsr.quorum import quorum_of
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.machine import SessionMachine
from headrace_lab.cluster.network import Network
from headrace_lab.cluster.oracles import Oracles
from headrace_lab.cluster.swarm import SeedCounts, Swarm
from headrace_lab.disk.faults import (
    Crash,
    CrashAfter,
    Effect,
    Fail,
    Fault,
    Keep,
    LoseSync,
    Pending,
    sectors,
)
from headrace_lab.disk.memory import MemoryDisk


def finds_nothing(host: Host) -> bool:
    """Recover a copy of the disk; tell whether nothing is wrong with it."""
    copy = host.disk.clone()
    try:
        _, report = recover(copy.root, host.identity, SessionMachine(), host.options())
    except HeadraceError:
        return False
    bad = report.faulty or report.problem or report.fell_back or report.quarantined
    return not bad and not report.superblock_rebuilt and report.cut is None


DOWN_MS = (20, 400)  # how long a machine stays down
FULL_MS = (50, 300)
INSTALL_EFFECTS = 60  # more than an install has
TAIL_SIZE = 2048  # the newest few entries of a journal
ZONES = ("journal/", "journal/", "snapshots/", "superblock")


@dataclass(slots=True)
class ArmedFault:
    """A fault that waits for an effect of one disk."""

    faults: "Faults"
    host: Host
    countdown: int
    kind: str
    until: int = 0

    def __call__(self, effect: Effect) -> Fault | None:
        rng, tally = self.faults.rng, self.faults.tally
        if self.kind == "full disk":
            if self.faults.now() >= self.until:
                self.host.disk.hook = None
                return None
            if effect.kind in ("create", "write", "truncate", "append") and rng.random() < 0.5:
                tally.landed[self.kind] += 1
                return Fail(
                    errno.ENOSPC, done=rng.randrange(effect.size + 1) if effect.size else 0
                )
            return None
        self.countdown -= 1
        if self.countdown > 0:
            return None
        return self._strike(effect, rng, tally)

    def _strike(self, effect: Effect, rng: Random, tally: SeedCounts) -> Fault | None:
        if self.kind == "failing sync" and effect.kind != "sync":
            return None
        if self.kind == "failing write" and effect.kind not in ("write", "append"):
            return None
        self.host.disk.hook = None
        tally.landed[self.kind] += 1
        if self.kind == "failing sync":
            return rng.choice((LoseSync(), Fail(errno.EIO)))
        if self.kind == "failing write":
            return Fail(errno.EIO, done=rng.randrange(effect.size + 1))
        done = rng.randrange(effect.size + 1) if effect.kind in ("write", "append") else 0
        return rng.choice((Crash(done=done), CrashAfter()))


@dataclass(slots=True)
class Faults:
    """The injector. Its own random stream decides what happens, when, and to whom."""

    rng: Random
    swarm: Swarm
    tally: SeedCounts
    hosts: list[Host]
    network: Network
    oracles: Oracles
    world: Any  # the simulation: it tells the time and calls later
    damaged: set[int] = field(default_factory=set)
    # Which files of each are damaged, and which copy of its superblock stays good.
    zones: dict[int, tuple[str, str]] = field(default_factory=dict)
    saved: dict[int, tuple[int, MemoryDisk]] = field(default_factory=dict)  # life, copy
    is_over: bool = False

    def now(self) -> int:
        return int(self.world.now)

    @property
    def allowed(self) -> int:
        """How many replicas may be damaged at a time."""
        if not self.swarm.is_safe:
            return len(self.hosts)
        return quorum_of(len(self.hosts)).replication - 1

    def strike(self) -> None:
        """Do one thing of those that this seed does, and come again."""
        if self.is_over:
            return
        kind = self.rng.choice(self.swarm.kinds)
        host = self.rng.choice(self.hosts)
        leader = [one for one in self.hosts if one.state is not None and one.state.leads]
        if leader and self.rng.random() < 0.4:
            host = leader[0]
        getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))(host)
        if self.rng.random() < 0.2:
            self._save(self.rng.choice(self.hosts))
        delay = int(self.rng.expovariate(1.0) * self.swarm.every) + 5
        self.world.at(delay, self.strike)

    # Processes.

    def _kill(self, host: Host) -> None:
        if host.process is not None:
            self.tally.landed["kill"] += 1
            self.crash(host, power=False)

    def _power_cut(self, host: Host) -> None:
        if host.process is not None:
            self.tally.landed["power cut"] += 1
            self.crash(host, power=True)

    def _whole_cluster_power_cut(self, host: Host) -> None:
        self.tally.landed["whole-cluster power cut"] += 1
        for one in self.hosts:
            if one.process is not None:
                self.crash(one, power=True)

    def _crash_at_an_effect(self, host: Host) -> None:
        if host.process is not None:
            host.disk.hook = ArmedFault(
                self, host, self.rng.randrange(1, 40), "crash at an effect"
            )

    def _crash_inside_recovery(self, host: Host) -> None:
        if host.process is None:
            return
        self.crash(host, power=self.rng.random() < 0.5)
        host.disk.hook = ArmedFault(
            self, host, self.rng.randrange(1, 30), "crash inside recovery"
        )

    def aim_at_install(self, host: Host) -> None:
        """An install is short and rare: a crash must be meant for it."""
        if "crash at an effect" in self.swarm.kinds and not self.is_over:
            countdown = self.rng.randrange(1, INSTALL_EFFECTS * 2)
            if countdown <= INSTALL_EFFECTS and host.disk.hook is None:
                host.disk.hook = ArmedFault(self, host, countdown, "crash inside install")

    def missed_install(self, host: Host) -> None:
        hook = host.disk.hook
        if isinstance(hook, ArmedFault) and hook.kind == "crash inside install":
            host.disk.hook = None

    def _pause(self, host: Host) -> None:
        if host.process is not None:
            self.tally.landed["pause"] += 1
            host.paused_until = self.now() + self.rng.randrange(50, 600)

    def _slow(self, host: Host) -> None:
        if host.process is None:
            return
        self.tally.landed["slow"] += 1
        host.slow = self.rng.choice((3, 10, 30))
        self.world.at(self.rng.randrange(100, 500), self._fast, host)

    def _fast(self, host: Host) -> None:
        host.slow = 1

    def _clock_jump(self, host: Host) -> None:
        if host.process is None:
            return
        self.tally.landed["clock jump"] += 1
        step = self.rng.choice((2_000, 1_000_000, 90_000_000, 86_400_000_000))
        host.clock_offset += self.rng.choice((-1, 1)) * self.rng.randrange(step)

    def crash(self, host: Host, *, power: bool, why: str = "") -> None:
        """End the process, and perhaps what its machine had in memory; it comes back later."""
        state = host.state
        if state is not None and state.leads:
            self.tally.primary_crashes += 1
        host.process = None
        host.life += 1
        host.paused_until = 0
        host.disk = self._after_power_cut(host.disk) if power else host.disk.kill()
        self.world.at(self.rng.randrange(*DOWN_MS), self.boot, host, host.life)

    def boot(self, host: Host, life: int) -> None:
        if host.process is None and host.life == life:
            host.boot()

    def _after_power_cut(self, disk: MemoryDisk) -> MemoryDisk:
        """Keep some of what was not synced: whole, torn, or in the wrong order."""
        rng, kept = self.rng, []
        for change in disk.pending():
            chance = rng.random()
            if chance < 0.35:
                self.tally.landed["lost write"] += 1
            elif chance < 0.7 and change.kind == "write" and change.size > 1:
                self.tally.landed["torn write"] += 1
                kept.append(Keep(change.index, _torn(change, rng)))
            else:
                kept.append(Keep(change.index))
        if len(kept) > 1 and rng.random() < 0.3:
            self.tally.landed["reordered write"] += 1
            rng.shuffle(kept)
        return disk.power_cut(kept)

    # The network.

    def _others(self, host: Host) -> list[Host]:
        return [one for one in self.hosts if one is not host]

    def _isolate(self, host: Host) -> None:
        if not self._others(host):
            return
        self.tally.landed["isolate"] += 1
        until = self.now() + self.rng.randrange(100, 900)
        for other in self._others(host):
            self.network.cut((host.me, other.me), until)
            self.network.cut((other.me, host.me), until)

    def _one_way_cut(self, host: Host) -> None:
        if not self._others(host):
            return
        self.tally.landed["one-way cut"] += 1
        other = self.rng.choice(self._others(host))
        self.network.cut((host.me, other.me), self.now() + self.rng.randrange(100, 900))

    def _two_way_cut(self, host: Host) -> None:
        if not self._others(host):
            return
        self.tally.landed["two-way cut"] += 1
        other = self.rng.choice(self._others(host))
        until = self.now() + self.rng.randrange(100, 900)
        self.network.cut((host.me, other.me), until)
        self.network.cut((other.me, host.me), until)

    def _clog_a_link(self, host: Host) -> None:
        if not self._others(host):
            return
        other = self.rng.choice(self._others(host))
        self.network.clog((host.me, other.me), self.now() + self.rng.randrange(50, 500))

    def _very_old(self, host: Host) -> None:
        found = self.network.surprise()
        if found is not None:
            self.hosts[found[0]].deliver(found[1])

    # Disks.

    def _full_disk(self, host: Host) -> None:
        until = self.now() + self.rng.randrange(*FULL_MS)
        host.disk.hook = ArmedFault(self, host, 0, "full disk", until)

    def _failing_sync(self, host: Host) -> None:
        host.disk.hook = ArmedFault(self, host, self.rng.randrange(1, 10), "failing sync")

    def _failing_write(self, host: Host) -> None:
        host.disk.hook = ArmedFault(self, host, self.rng.randrange(1, 10), "failing write")

    def may_damage(self, host: Host) -> bool:
        """Ask the budget: is a whole copy of everything left elsewhere?"""
        if host.me in self.damaged:
            return True
        if len(self.damaged) >= self.allowed:
            self.damaged = {one for one in self.damaged if not is_whole(self.hosts[one])}
            self.zones = {one: zone for one, zone in self.zones.items() if one in self.damaged}
        if len(self.damaged) >= self.allowed:
            return False
        self.damaged.add(host.me)
        return True

    def _rot(self, host: Host) -> None:
        path = self._victim(host)
        if path is None:
            return
        self.tally.landed["rot"] += 1
        data = host.disk.content(path)
        start = self._place_in(path, data)
        for _ in range(self.rng.choice((1, 1, 2, 40))):
            place = min(len(data) - 1, start + self.rng.randrange(64))
            host.disk.flip(path, place * 8 + self.rng.randrange(8))
        if self.rng.random() < 0.4:
            self._kill(host)  # so that somebody looks

    def _place_in(self, path: str, data: bytes) -> int:
        """Choose a place in a file; in a journal often near the end, where it may hurt most."""
        used = max(len(data.rstrip(b"\0")), 1)
        if path.startswith("journal/") and self.rng.random() < 0.6:
            return used - self.rng.randrange(min(used, TAIL_SIZE))
        return self.rng.randrange(used)

    def _misdirected_write(self, host: Host) -> None:
        path = self._victim(host, only="journal/")
        if path is None:
            return
        data = host.disk.content(path)
        used = max(len(data.rstrip(b"\0")), 1024)
        start, place = self.rng.randrange(used // 64) * 64, self.rng.randrange(used // 64) * 64
        self.tally.landed["misdirected write"] += 1
        piece = data[start : start + self.rng.choice((64, 384, 512))]
        host.disk.overwrite(path, place, piece[: len(data) - place])
        self.oracles.traceless.add(host.me)

    def _unreadable_sector(self, host: Host) -> None:
        path = self._victim(host)
        if path is None:
            return
        start = self._place_in(path, host.disk.content(path)) // 512 * 512
        until = self.now() + self.rng.randrange(50, 600)
        hits = 0

        def fault(where: str, position: int, size: int) -> int | None:
            nonlocal hits
            is_here = where.removeprefix("./") == path and self.now() < until
            if not is_here or position >= start + 512 or position + size <= start:
                return None
            self.tally.landed["unreadable sector"] += hits == 0
            hits += 1
            return errno.EIO

        host.disk.read_fault = fault

    def _wiped(self, host: Host) -> None:
        """A new disk; now and then somebody makes the directory anew, as for a new cluster."""
        if not self._may_forget(host):
            return
        if host.process is not None:
            self.crash(host, power=False)
        self.tally.landed["wiped"] += 1
        host.disk, host.was_made = MemoryDisk(), False
        self.saved.pop(host.me, None)
        is_known = all(self._known_life(host, one) for one in self._others(host))
        if is_known and self.rng.random() < 0.4:
            self.tally.landed["made again by init"] += 1
            self.oracles.was_restored(host)
            host.init()
        else:
            self.oracles.was_wiped(host)

    def _old_directory(self, host: Host) -> None:
        """Put back a copy from an earlier life that every peer durably knows to be over."""
        life, copy = self.saved.get(host.me, (0, None))
        state = host.state
        if copy is None or state is None or life >= state.life:
            return
        if any(self._known_life(host, one) != state.life for one in self._others(host)):
            return
        if not self._may_forget(host):
            return
        self.crash(host, power=False)
        self.tally.landed["old directory"] += 1
        host.disk, host.was_made = copy.clone(), True
        self.oracles.was_restored(host)

    def _known_life(self, host: Host, peer: Host) -> int:
        """Which life of a host a peer has in its superblock."""
        block = self.oracles.blocks.get(peer.me)
        return 0 if block is None else dict(block.peers).get(host.me, 0)

    def _may_forget(self, host: Host) -> bool:
        """A replica that forgets needs the memory of all the others; they may be down.

        Of two, the other could not even lead alone. If all forget, nobody can know that
        there was anything: this holds in both modes.
        """
        others = [one.state for one in self._others(host)]
        if len(others) < 2 or not all(one is None or one.may_vote for one in others):
            return False
        fit = [one is not None and (one.leads or one.follows) for one in others]
        if not all(fit) and (not self.swarm.is_safe or self.rng.random() < 0.5):
            return False  # without a budget those who are down may forget meanwhile
        return self.may_damage(host)

    def _save(self, host: Host) -> None:
        if host.state is not None and "old directory" in self.swarm.kinds:
            self.saved[host.me] = (host.state.life, host.disk.clone())

    def _victim(self, host: Host, only: str = "") -> str | None:
        """Choose a file to damage, if the budget allows it.

        In the safe mode all damage of one replica is of one kind of file, and of two copies of
        the same thing one stays good: no replica loses its whole state by rot.
        """
        if not self.may_damage(host):
            return None
        paths = [path for path in host.disk.files() if path.startswith(only)]
        paths = [path for path in paths if "spare" not in path and "quarantine" not in path]
        if self.swarm.is_safe:
            drawn = self.rng.choice(ZONES), self.rng.choice(NAMES)
            is_first = host.me not in self.zones
            zone, copy = self.zones.setdefault(host.me, drawn)
            if zone == "snapshots/" and not is_first:
                return None  # the other one must stay good
            snapshots = sorted(path for path in paths if path.startswith("snapshots/"))
            has_other = len(snapshots) > 1 and _falls_back(host, copy)
            kept = {copy, *(snapshots[:-1] if has_other else snapshots)}
            paths = [path for path in paths if path.startswith(zone) and path not in kept]
        paths = [path for path in paths if host.disk.content(path)]
        return self.rng.choice(paths) if paths else None


def _falls_back(host: Host, copy: str) -> bool:
    """Tell whether the journal leads from an older snapshot to the newest one.

    One that is being installed may have its name already, and nothing leads up to it.
    """
    block = decode(host.disk.content(copy), copy)
    if not isinstance(block, Superblock) or block.syncing_to is not None:
        return False
    return block.previous_op < block.checkpoint.op


def is_whole(host: Host) -> bool:
    """Read everything that a replica keeps: is it all as it was written?"""
    process, state = host.process, host.state
    if process is None or state is None or host.paused_until or host.disk.hook is not None:
        return False
    if not (state.leads or state.follows) or not state.may_vote or process.faulty:
        return False
    if state.status is not MemberStatus.NORMAL or state.log_view_durable != state.view:
        return False
    journal, fault = process.group.journal, host.disk.read_fault
    host.disk.read_fault = None  # for the look only
    try:
        for number in range(journal.ring.watermark + 1, journal.durable + 1):
            if journal.read(type(journal.durable)(number)) is None:
                return False
    except HeadraceError:
        return False
    finally:
        host.disk.read_fault = fault
    top = max(other.applied for other in _states(host))
    return state.applied >= top and finds_nothing(host)


def _states(host: Host) -> list[Any]:
    hosts = getattr(host.world, "hosts")  # noqa: B009 - the world that it lives in
    return [one.state for one in hosts if one.state is not None]


def _torn(change: Pending, rng: Random) -> tuple[tuple[int, int], ...]:
    parts = sectors(change.position, change.size)
    if len(parts) > 1 and rng.random() < 0.6:
        return tuple(part for part in parts if rng.random() < 0.5)
    return ((0, rng.randrange(1, change.size)),)
