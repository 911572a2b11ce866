"""Lives of a group with a file of heads: no crash makes a head claim too much, or go down.

`python -m headrace_lab.lives.heads_life` drives a node's pump over a journal in memory.
Requests, commit groups, their reports to the loop and writes of heads come in any order; writes
of heads fail or are torn; the process dies or the power fails. After each death:

    the file has at least what the last successful write stored, even if a group never runs
    the group starts, with everything that was acknowledged
    with its end damaged at or below its head, it refuses by name, and its head stays
"""

import errno
import sys
from dataclasses import dataclass, field, replace
from random import Random

from headrace.errors import Corrupt
from headrace.journal.entry import Entry
from headrace.journal.heads import NAME, Head, HeadsFile, read_heads
from headrace.model.ids import GroupId, Op
from headrace.model.proposal import EntryProposal
from headrace.node.group.pump import Effect, Pump
from headrace.node.group.seal_pace import SealPace
from headrace.vsr.peer_messages import SoloAppend, SoloReply
from headrace_lab.counter.counter import ADD, add
from headrace_lab.counter.script import options
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.faults import Effect as DiskEffect
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import Broken
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.tally import Tally

STEPS = 120
SLOTS = 512  # a life needs no checkpoint
SEEDS_SHORT = 40
IDLE = GroupId(2)  # it refused to start, for as long as anybody knows
IDLE_HEAD = Head(Op(7), bytes(range(16)))


@dataclass(slots=True)
class _HeadsLife:
    rng: Random
    tally: Tally
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    acknowledged: list[bytes] = field(default_factory=list)  # checksums, from op 1
    written: Op = Op(0)  # of the last write of heads that succeeded
    pump: Pump = field(init=False)
    file: HeadsFile = field(init=False)
    waiting: list[Entry] = field(default_factory=list)  # for the journal's thread
    reports: list[Op] = field(default_factory=list)  # on their way to the loop
    serial: int = 0

    def run(self) -> None:
        self._open()
        self.file.write({IDLE: IDLE_HEAD}, 0)
        steps = (self._submit, self._journal, self._report, self._heads, self._heads, self._die)
        for _ in range(STEPS):
            self.rng.choices(steps, (6, 6, 6, 3, 3, 1))[0]()
        self._die()

    def _open(self) -> None:
        """Start as a node does: the file first, and from it what the group must reach."""
        found = read_heads(self.disk.root, SOLO.cluster)
        fresh = replace(options(), slots=SLOTS)
        for _ in range(100 * self.tally.cases):
            fresh.new_id()
        solo = Solo.open(self.disk.root, replace(fresh, head=found.heads.get(SOLO.group)))
        self.file = HeadsFile.of(self.disk.root, SOLO.cluster, found)
        self.pump = Pump(solo.group, SealPace(2**20, seal_age_us=2**62))
        self.waiting, self.reports = [], []
        if solo.head < len(self.acknowledged):
            raise Broken(f"op {solo.head + 1} was acknowledged and is gone")
        journal = solo.group.journal
        found_here = [one.checksum for one in journal.headers(Op(1), solo.head)]
        if found_here[: len(self.acknowledged)] != self.acknowledged:
            raise Broken("what was acknowledged is another entry now")
        self.acknowledged = found_here

    def _submit(self) -> None:
        self.serial += 1
        body = add(f"{self.serial}".ljust(self.rng.randrange(8, 900)), 1)
        self._perform(
            self.pump.submit(EntryProposal(ADD, body), self.serial, ticket=self.serial)
        )

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SoloAppend):
                self.waiting += effect.prepares
            else:
                assert not isinstance(effect, SoloReply) or not isinstance(
                    effect.result, Exception
                )

    def _journal(self) -> None:
        """In the journal's thread: write and sync what waits, and report it."""
        if self.waiting:
            self.reports.append(self.pump.group.append(self.waiting))
            self.waiting = []

    def _report(self) -> None:
        """On the loop."""
        if self.reports:
            op = self.reports.pop(0)
            known = self.pump.replica.applied
            self._perform(self.pump.on_durable(op, self.serial))
            headers = self.pump.group.journal.headers(Op(known + 1), op)
            self.acknowledged += [header.checksum for header in headers]

    def _heads(self) -> None:
        head = self.pump.head
        if head is None or not self.file.is_behind({SOLO.group: head}):
            return
        self.disk.hook = self._fault if self.rng.random() < 0.4 else None
        try:
            self.file.write({SOLO.group: head}, self.serial)
        except OSError:
            self.tally.landed["failed write"] += 1
        except Crashed:
            self._revive()
            return
        else:
            self.written = head.op
        finally:
            self.disk.hook = None
        self._check_file(self.disk)

    def _fault(self, effect: DiskEffect) -> Fail | Crash | None:
        if not effect.path.startswith(NAME) or effect.kind not in ("write", "sync"):
            return None
        done = self.rng.randrange(effect.size) if effect.kind == "write" else 0
        return self.rng.choice((Fail(errno.EIO, done), Crash(done)))

    def _die(self) -> None:
        """Die at rest or at work, by a kill or with the power."""
        if self.rng.random() < 0.5:
            self.pump.group.idle()
        self._revive()

    def _revive(self) -> None:
        self.tally.cases += 1
        self.disk = self.disk.kill() if self.rng.random() < 0.5 else self.disk.power_cut()
        self._check_file(self.disk)
        if self.rng.random() < 0.5:
            self._damage()
        self._open()

    def _check_file(self, disk: MemoryDisk) -> None:
        heads = read_heads(disk.root, SOLO.cluster).heads
        if heads.get(IDLE) != IDLE_HEAD:
            raise Broken(f"the head of a group that does not run became {heads.get(IDLE)}")
        found = heads.get(SOLO.group)
        if self.written and (found is None or found.op < self.written):
            raise Broken(f"the head fell from op {self.written} to {found}")

    def _damage(self) -> None:
        """Damage the newest file from somewhere at or below its head on, and put it back."""
        head = read_heads(self.disk.root, SOLO.cluster).heads.get(SOLO.group)
        whole = self.disk.clone()
        self._open()
        slot = None if head is None else self.pump.group.journal.slot(head.op)
        if head is None or slot is None:
            return
        path = slot.file.path
        hurt = whole.clone()
        content = hurt.content(path)
        start = slot.position + self.rng.randrange(256)
        hurt.put(path, content[:start] + self.rng.randbytes(len(content) - start))
        try:
            Solo.open(hurt.root, replace(options(), slots=SLOTS, head=head))
        except Corrupt:
            self.tally.found["refused"] += 1
        else:
            raise Broken(f"damage at op {head.op}, its head, is taken for a torn tail")
        file = HeadsFile.of(hurt.root, SOLO.cluster, read_heads(hurt.root, SOLO.cluster))
        file.write({GroupId(3): IDLE_HEAD}, 1)  # another group of this node goes on
        self._check_file(hurt)
        self.disk = whole


def share(first: int, count: int, mutant: str) -> Tally:
    """Live `count` lives from the seed `first` on; with a bug planted, until one fails."""
    tally = Tally()
    with planted(mutant):
        for seed in range(first, first + count):
            try:
                _HeadsLife(Random(seed), tally).run()
            except (Broken, Corrupt, AssertionError) as error:
                tally.failures.append(f"seed {seed}: {error!r}")
                if mutant:
                    break
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how these lives notice a planted bug, or nothing if they do not."""
    return next(iter(share(seed, SEEDS_SHORT, mutant).failures), "")


def main(arguments: list[str] | None = None) -> int:
    """Run lives from the command line."""
    parser = frame(
        "headrace_lab.lives.heads_life", "lives of a group with a file of heads", "full"
    )
    asked = parser.parse_args(arguments)
    if asked.mutants:
        return hunt("heads", catch, asked)
    count = 2_000 if asked.full else SEEDS_SHORT
    jobs = [(asked.seed + part * count // 8, count // 8, "") for part in range(8)]
    return run_all("lives with heads", Tally(), share, jobs, asked)


if __name__ == "__main__":
    sys.exit(main())
