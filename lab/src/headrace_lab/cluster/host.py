"""One simulated machine: a disk, and a process on it that drives a real replica.

The process models a node: it performs the effects of `vsr.Member` on the real journal,
superblock and snapshots. Its disk processes requests one after another, in order, and takes its
time; a death loses what was in flight.
"""

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from headrace.errors import (
    CorruptEntry,
    CorruptSnapshot,
    HeadraceError,
    Rejected,
    StorageFailed,
    Unavailable,
)
from headrace.journal.entry import SEAL, Entry, Flaw, Header, decode_header
from headrace.journal.frame import aligned, entry_frame_size
from headrace.journal.group import Group
from headrace.journal.journal import Journal
from headrace.journal.recovery import mend
from headrace.journal.recovery.install import install
from headrace.journal.recovery.recover import RecoveryOptions, recover
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.journal.recovery.scan_findings import Faulty
from headrace.model.ids import Identity, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.vsr import effects as fx
from headrace.vsr import peer_messages as vm
from headrace.vsr.member import Member
from headrace.vsr.member_state import SEAL_SLOTS, MemberState
from headrace_lab.cluster.boot import member_of
from headrace_lab.cluster.machine import SessionMachine
from headrace_lab.cluster.swarm import Swarm
from headrace_lab.disk.faults import Crashed
from headrace_lab.disk.memory import MemoryDisk


def place_of(journal: Journal, faulty: Faulty, others: Container[Op]) -> Faulty | None:
    """Return it with its place: known, or right behind the whole one before it."""
    if faulty.position is not None:
        return faulty
    below = Op(faulty.op - 1)
    before = journal.slot(below)
    if before is None or below in others or before.file.path != faulty.path:
        return None
    header = decode_header(before.sealed)
    assert isinstance(header, Header)
    position = before.position + aligned(entry_frame_size(header.body_size))
    return replace(faulty, position=position)


TICK_MS = 10
FILE_SIZE = 16 * 1024
CHUNK_SIZE = 300  # so small that a snapshot takes several
RETRY_MS = 40  # a full disk is tried again


class Observer(Protocol):
    """Who is told what a host does."""

    def applied(self, host: "Host", entry: Entry, result: object) -> None: ...

    def stepped(self, host: "Host") -> None: ...

    def forgot(self, host: "Host") -> None: ...

    def booted(self, host: "Host") -> None: ...

    def cutting(self, host: "Host", first: Op) -> None: ...

    def installing(self, host: "Host") -> None: ...

    def installed(self, host: "Host") -> None: ...

    def died(self, host: "Host", why: str) -> None: ...


class Surroundings(Observer, Protocol):
    """What a host needs of the world around it."""

    now: int

    def at(self, delay: int, call: Callable[..., None], *arguments: object) -> None: ...

    def send(self, host: "Host", to: ReplicaId, message: vm.Message[Entry]) -> None: ...

    def answer(self, host: "Host", ticket: object, result: object) -> None: ...


@dataclass(slots=True)
class Process:
    """One life: what is lost when it ends."""

    group: Group
    member: Member[Entry]
    machine: SessionMachine
    report: RecoveryReport
    faulty: dict[Op, Faulty]
    jobs: deque[Any] = field(default_factory=deque)
    is_busy: bool = False
    held: dict[Op, tuple[int, Entry]] = field(default_factory=dict)  # mends that must wait
    pins: dict[bytes, bytes] = field(default_factory=dict)
    sealed: tuple[int, int] = (0, 0)  # view and op of the newest Seal proposed

    @property
    def state(self) -> MemberState[Entry]:
        return self.member.state


@dataclass(slots=True)
class Host:
    """A machine. `process` is None while it is down."""

    world: Surroundings
    identity: Identity
    swarm: Swarm
    rng: Random  # latencies and ids of this machine
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    process: Process | None = None
    life: int = 0
    was_made: bool = False  # init was here, or a voter was
    is_lost: bool = False  # what was here is gone, by damage, and nothing is made anew yet
    paused_until: int = 0
    slow: int = 1
    clock_offset: int = 0  # microseconds
    halted: str | None = None
    tick_phase: int = 0

    @property
    def me(self) -> ReplicaId:
        return self.identity.replica

    @property
    def state(self) -> MemberState[Entry] | None:
        return None if self.process is None else self.process.state

    # Lives.

    def options(self) -> RecoveryOptions:
        return RecoveryOptions(
            slots=self.swarm.slots,
            file_size=FILE_SIZE,
            spare_count_max=2,
            new_id=lambda: self.rng.getrandbits(63) + 1,
            clock=lambda: 0.0,
            forgotten=self.identity.replica_count > 1 and not self.was_made,
            lost=self.is_lost,
        )

    def init(self) -> None:
        """Make the directory, as an operator does once for each replica of a new cluster."""
        self.was_made = True
        group, _ = recover(self.disk.root, self.identity, SessionMachine(), self.options())
        group.stop()

    def boot(self) -> None:
        """Start the process: recover, then ask what the view is."""
        assert self.process is None
        self.life += 1
        machine = SessionMachine()
        try:
            group, report = self._recover(machine)
        except Crashed:
            self.world.died(self, "crash inside recovery")
            return
        except (Unavailable, StorageFailed) as error:
            self.world.died(self, f"storage: {type(error).__name__}")
            return
        except HeadraceError as error:
            self.world.died(self, f"recovery: {type(error).__name__}: {error}")
            return
        self.was_made, self.is_lost = True, False
        member = member_of(group, report, self.swarm.slots)
        faulty = {one.op: one for one in report.faulty}
        self.process = Process(group, member, machine, report, faulty)
        self.world.booted(self)
        self.perform(member.start())
        self.world.at(self.tick_phase, self.tick, self.life)

    def _recover(self, machine: SessionMachine) -> tuple[Group, RecoveryReport]:
        try:
            return recover(self.disk.root, self.identity, machine, self.options())
        except CorruptSnapshot:
            # Only peers have the state: begin again as one who has forgotten everything.
            self.disk = MemoryDisk(hook=self.disk.hook, read_fault=self.disk.read_fault)
            self.is_lost = True
            self.world.forgot(self)
            return recover(self.disk.root, self.identity, machine, self.options())

    # Events.

    def tick(self, life: int) -> None:
        process = self.process
        if process is None or life != self.life:
            return
        if self._is_paused(self.tick, life):
            return
        self.world.at(TICK_MS * self.slow, self.tick, life)
        now = self.world.now
        wall = now * 1000 + self.clock_offset
        self.perform(process.member.on_tick(now // TICK_MS, wall))
        if self.process is process:
            self._propose_seal(process)
            self._mark_if_idle(process)

    def deliver(self, envelope: vm.Envelope[Entry]) -> None:
        process = self.process
        if process is None or self._is_paused(self.deliver, envelope):
            return
        self.perform(process.member.on_message(envelope))

    def request(self, request: EntryProposal, ticket: object) -> None:
        process = self.process
        if process is None or self._is_paused(self.request, request, ticket):
            return
        self.perform(process.member.on_requests([(request, ticket)]))

    def _is_paused(self, call: Callable[..., None], *arguments: object) -> bool:
        left = self.paused_until - self.world.now
        if left > 0:
            self.world.at(left, call, *arguments)
        return left > 0

    def _propose_seal(self, process: Process) -> None:
        state = process.state
        log, (view, op) = state.log, process.sealed
        is_asked = view == state.view and op <= log.head
        last = max(state.checkpoint, op) if is_asked else state.checkpoint
        used = log.head - log.anchor
        is_full = used >= self.swarm.slots // 2 and log.head > last
        # The ring is emptied up to the checkpoint before the newest: another may be needed.
        is_full = is_full or (used + SEAL_SLOTS >= self.swarm.slots and log.head == last)
        if state.leads and (is_full or log.head - last >= self.swarm.seal_every):
            process.sealed = (state.view, Op(log.head + 1))
            self.perform(process.member.on_requests([(EntryProposal(SEAL), None)]))

    def _mark_if_idle(self, process: Process) -> None:
        journal = process.group.journal
        if not process.jobs and journal.poisoned is None and journal.marked < journal.durable:
            self._queue(process, "mark")

    # Effects.

    def perform(self, effects: list[fx.Effect[Entry]]) -> None:
        """Carry out effects in order. What the disk has to do waits for the disk."""
        process = self.process
        if process is None:
            return
        queue = deque(effects)
        while queue and self.process is process:
            effect = queue.popleft()
            match effect:
                case fx.Send(to, message):
                    self.world.send(self, to, message)
                case fx.Apply(op, checksum):
                    queue.extendleft(reversed(self._apply(process, op, checksum)))
                case fx.Reply(ticket, result):
                    self.world.answer(self, ticket, result)
                case fx.Serve():
                    queue.extend(self._serve(process, effect))
                case fx.ServeOffer(to, view):
                    queue.extend(self._offer(process, to, view))
                case fx.ServeChunk():
                    self._chunk(process, effect)
                case fx.Halt(reason):
                    self.halted = reason
                case _:
                    self._queue(process, effect)
        self.world.stepped(self)

    def _apply(self, process: Process, op: Op, checksum: bytes) -> list[fx.Effect[Entry]]:
        member, group = process.member, process.group
        if op != member.state.applied + 1:
            return []  # one before it could not be read
        entry = self._read(process, op)
        if entry is None or entry.checksum != checksum:
            return member.on_faulty(op)
        _stamp(process)
        result = group.apply(entry)
        self.world.applied(self, entry, result)
        if entry.header.operation == SEAL:
            self._queue(process, "checkpoint")
        return member.on_applied(op, result)

    def _read(self, process: Process, op: Op) -> Entry | None:
        """Read an entry; remember where it was if it is faulty."""
        journal = process.group.journal
        try:
            return journal.read(op)
        except CorruptEntry:
            slot = journal.slot(op)
            assert slot is not None
            process.faulty[op] = Faulty(
                op, slot.sealed[:16], slot.file.path, slot.position, Flaw("unreadable")
            )
            return None

    def _serve(self, process: Process, serve: fx.Serve) -> list[fx.Effect[Entry]]:
        entries: list[Entry] = []
        after: list[fx.Effect[Entry]] = []
        size = 0
        for name in serve.names:
            entry = self._read(process, name.op)
            size += 0 if entry is None else len(entry.body)
            if entries and size > vm.GROUP_SIZE_MAX:
                break  # the rest is asked for again
            if entry is None or entry.checksum != name.checksum:
                after += process.member.on_faulty(name.op) if entry is None else []
                if serve.view is not None:
                    break
                continue
            entries.append(entry)
        if entries and serve.view is not None:
            message = vm.Prepares(serve.view, serve.commit, serve.op, tuple(entries))
            self.world.send(self, serve.to, message)
        elif entries:
            self.world.send(self, serve.to, vm.Exact(tuple(entries)))
        return after

    def _offer(self, process: Process, to: ReplicaId, view: View) -> list[fx.Effect[Entry]]:
        op = process.group.superblock.current.checkpoint.op
        entry = self._read(process, op)
        found = process.group.checkpoints.snapshots.load(op)
        if entry is None:
            return process.member.on_faulty(op)
        if isinstance(found, Flaw):
            return []
        data = self.disk.content(f"snapshots/{op:020}.snap")
        process.pins[found.checksum] = data
        self.world.send(self, to, vm.Offer(view, found.checksum, len(data), entry))
        return []

    def _chunk(self, process: Process, wanted: fx.ServeChunk) -> None:
        data = process.pins.get(wanted.checksum, b"")
        piece = data[wanted.position : wanted.position + CHUNK_SIZE]
        self.world.send(
            self, wanted.to, vm.SnapshotChunk(wanted.checksum, wanted.position, piece)
        )

    # The disk: one thing after another.

    def _queue(self, process: Process, job: object) -> None:
        process.jobs.append(job)
        self._start(process)

    def _start(self, process: Process, delay: int | None = None) -> None:
        if process.is_busy or not process.jobs:
            return
        process.is_busy = True
        if delay is None:
            delay = int(self.rng.expovariate(1.0) * self.swarm.disk_mean * self.slow)
        self.world.at(delay, self._work, self.life)

    def _work(self, life: int) -> None:
        process = self.process
        if process is None or life != self.life or self._is_paused(self._work, life):
            return
        process.is_busy = False
        job = process.jobs.popleft()
        appends = [job] if isinstance(job, fx.Append) else []
        while appends and process.jobs and isinstance(process.jobs[0], fx.Append):
            appends.append(process.jobs.popleft())
        try:
            effects = self._do(process, job, appends)
        except Crashed:
            self.world.died(self, "crash at an effect")
        except Rejected as error:
            raise AssertionError(
                f"replica {self.me} asked for what cannot be: {error}"
            ) from error
        except Unavailable:
            process.jobs.extendleft(reversed(appends or [job]))
            self._start(process, RETRY_MS)
        except HeadraceError as error:
            self.world.died(self, f"storage: {type(error).__name__}")
        else:
            self.perform(effects)
            if self.process is process:
                self._start(process)

    def _do(
        self, process: Process, job: object, appends: list[fx.Append[Entry]]
    ) -> list[fx.Effect[Entry]]:
        journal = process.group.journal
        _stamp(process)
        if appends:
            return self._append(process, appends)
        if job == "mark":
            journal.mark()
            journal.prepare()
            return []
        if job == "checkpoint":
            return self._checkpoint(process)
        return self._change(process, job)

    def _change(self, process: Process, job: object) -> list[fx.Effect[Entry]]:
        group, journal = process.group, process.group.journal
        match job:
            case fx.Cut(first):
                self.world.cutting(self, first)
                if first <= journal.durable:
                    mend.cut(journal, group.superblock, first, group.superblock.current.suspect)
                process.faulty = {op: one for op, one in process.faulty.items() if op < first}
                process.held = {op: one for op, one in process.held.items() if op < first}
            case fx.Persist():
                return self._persist(process, job)
            case fx.Mend(ticket, entries):
                process.held[entries[0].op] = (ticket, entries[0])
                return self._mend(process)
            case fx.Install():
                return self._install(process, job)
            case fx.DropPrevious():
                group.checkpoints.drop_previous()
                return self._drained(process)
            case _:
                raise AssertionError(f"no disk does this: {job}")
        return []

    def _install(self, process: Process, job: fx.Install[Entry]) -> list[fx.Effect[Entry]]:
        group, member = process.group, process.member
        self.world.installing(self)
        kept = install(group, job.entry, job.checksum, job.data)
        if isinstance(kept, Flaw):
            return member.on_spoiled(job.ticket)
        self.world.installed(self)
        process.held.clear()
        if not kept:
            process.faulty.clear()
        block = group.superblock.current
        effects = member.on_installed(job.ticket, block.sequence, block.suspect, kept=kept)
        return effects + self._drained(process)

    def _append(
        self, process: Process, appends: list[fx.Append[Entry]]
    ) -> list[fx.Effect[Entry]]:
        journal = process.group.journal
        entries = [one for append in appends for one in append.entries]
        journal.append([one for one in entries if one.op > journal.durable])
        effects: list[fx.Effect[Entry]] = []
        for append in appends:
            effects += process.member.on_durable(append.ticket)
        return effects

    def _persist(self, process: Process, job: fx.Persist) -> list[fx.Effect[Entry]]:
        superblock = process.group.superblock
        current = superblock.current
        if current.sequence < job.sequence_min:
            superblock.current = current = replace(current, sequence=job.sequence_min)
        durable = process.group.journal.durable
        superblock.write(
            view=job.view,
            log_view=job.log_view,
            commit=max(current.commit, min(job.commit, durable)),
            peers=tuple((one.replica, one.life) for one in job.peers),
            peer_boots=tuple((one.replica, one.boot) for one in job.peers),
            starts=tuple(map(tuple, job.starts)),
            gave_up=job.gave_up,
            recovering=job.recovering,
            syncing_to=job.syncing_to,
            suspect=None if job.is_settled else current.suspect,
        )
        return process.member.on_persisted(job.ticket, superblock.current.sequence)

    def _checkpoint(self, process: Process) -> list[fx.Effect[Entry]]:
        if process.group.checkpoints.run() is None:
            return []  # a snapshot that was installed meanwhile stands above it
        return self._drained(process)

    def _drained(self, process: Process) -> list[fx.Effect[Entry]]:
        group = process.group
        block, drained = group.superblock.current, group.journal.ring.watermark
        drained = min(drained, process.state.log.head)
        return process.member.on_checkpoint(block.checkpoint.op, drained, block.sequence)

    def _mend(self, process: Process) -> list[fx.Effect[Entry]]:
        """Write what was fetched over faulty frames, from below: one says where the next is."""
        effects: list[fx.Effect[Entry]] = []
        journal = process.group.journal
        for op in sorted(process.held):
            ticket, entry = process.held[op]
            known = process.faulty.get(op)
            if journal.slot(op) is None and op > journal.ring.watermark and known is not None:
                place = place_of(journal, known, process.faulty)
                if place is None:
                    continue
                mend.repair(journal, replace(place, checksum=entry.checksum), entry)
            elif journal.slot(op) is not None and known is not None:
                mend.repair(journal, replace(known, checksum=entry.checksum), entry)
            del process.held[op]
            process.faulty.pop(op, None)
            effects += process.member.on_mended(ticket)
        return effects


def _stamp(process: Process) -> None:
    """Tell the journal what is committed of the very log that it holds.

    While a cut waits, the disk still has what the log has not: `whole` ends below that.
    """
    journal, state = process.group.journal, process.state
    known = min(state.commit, state.log.whole, journal.durable)
    journal.commit = max(journal.commit, known)
