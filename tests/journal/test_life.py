"""Lives of a group in random order, against a model that is a plain list of entries."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.journal.builders import Recorder, a_group

from headrace.journal.entry import SEAL, Entry
from headrace.journal.group import SEAL_SLOTS
from headrace.model.ids import Op
from headrace_lab.counter.counter import CounterMachine, add
from headrace_lab.counter.solo import Solo
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Keep
from headrace_lab.disk.memory import MemoryDisk

bodies = st.lists(
    st.builds(add, st.sampled_from("abc"), st.integers(-9, 9)), min_size=1, max_size=6
)
SLOTS_LEFT = 6 + SEAL_SLOTS  # for the largest commit group, and the Seals that empty the ring
sizes = st.integers(0, 400)
moments = st.integers(1, 40)  # the effect at which a process dies
faults = st.one_of(st.just(CrashAfter()), st.integers(0, 3000).map(Crash))
seeds = st.randoms(use_true_random=False)


class Life(RuleBasedStateMachine):
    """`acknowledged` must be there after anything; of `attempted` any prefix may be, once."""

    @initialize()
    def begin(self) -> None:
        self.disk = MemoryDisk()
        self.group = a_group(self.disk)
        self.acknowledged: list[Entry] = []
        self.attempted: list[Entry] = []

    def append(self, new: list[bytes], operation: int) -> None:
        self.attempted = self.group.seal(new, operation)
        self.group.group.append(self.attempted)
        self.acknowledged += self.attempted
        for entry in self.attempted:
            self.group.group.apply(entry)
        self.attempted = []

    @precondition(lambda self: self.group.group.journal.free_slots >= SLOTS_LEFT)
    @rule(new=bodies, size=sizes)
    def append_a_group(self, new: list[bytes], size: int) -> None:
        self.append([body.ljust(size, b"x") for body in new], 16)

    @rule()
    def make_a_checkpoint(self) -> None:
        self.append([b""], SEAL)
        assert self.group.group.checkpoints.run() == len(self.acknowledged)

    @rule()
    def idle(self) -> None:
        self.group.group.idle()

    @rule()
    def stop_cleanly(self) -> None:
        self.group.group.stop()
        self.reopen(self.disk.power_cut())
        assert self.group.report.was_clean
        assert self.group.report.cut is None

    @rule()
    def die_and_reopen(self) -> None:
        self.reopen(self.disk.kill())

    @rule()
    def lose_power(self) -> None:
        self.reopen(self.disk.power_cut())

    @rule(new=bodies, moment=moments, fault=faults, chance=seeds, power=st.booleans())
    def die_inside_an_append(self, new, moment, fault, chance, power) -> None:
        if self.group.group.journal.free_slots >= SLOTS_LEFT:
            self.die_inside(lambda: self.append(new, 16), moment, fault, chance, power)

    @rule(moment=moments, fault=faults, chance=seeds, power=st.booleans())
    def die_inside_a_checkpoint(self, moment, fault, chance, power) -> None:
        self.die_inside(self.make_a_checkpoint, moment, fault, chance, power)

    @rule(moment=moments, fault=faults, chance=seeds, power=st.booleans())
    def die_inside_a_stop(self, moment, fault, chance, power) -> None:
        self.die_inside(self.stop_cleanly, moment, fault, chance, power)

    @rule(moment=moments, fault=faults, chance=seeds, power=st.booleans())
    def die_inside_a_recovery(self, moment, fault, chance, power) -> None:
        disk = self.disk = self.disk.kill()
        self.die_inside(lambda: self.reopen(disk), moment, fault, chance, power)

    def die_inside(self, act, moment, fault, chance, power) -> None:
        disk = self.disk
        disk.hook = Recorder(moment, fault)
        try:
            act()
            disk.hook = None
            if self.disk is not disk:
                return
        except Crashed:
            pass
        if not power:
            self.reopen(disk.kill())
            return
        pending = disk.pending()
        self.reopen(
            disk.power_cut([Keep(one.index) for one in pending if chance.random() < 0.5])
        )

    def reopen(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.group: Solo = a_group(disk)
        lost = len(self.acknowledged) - self.group.head
        assert lost <= 0
        self.acknowledged += self.attempted[: self.group.head - len(self.acknowledged)]
        self.attempted = []

    @invariant()
    def nothing_is_lost_and_nothing_invented(self) -> None:
        journal = self.group.group.journal
        assert journal.durable == len(self.acknowledged)
        for entry in self.acknowledged[journal.ring.watermark :]:
            assert journal.read(Op(entry.op)) == entry

    @invariant()
    def the_state_is_that_of_the_log(self) -> None:
        model = CounterMachine()
        for entry in self.acknowledged:
            model.apply(entry)
        assert self.group.machine.digest() == model.digest()


Life.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLife = Life.TestCase
