"""Random histories of a node: faults anywhere, and the same promises after every step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.partition.reader import Key
from headrace_lab.reconcile.histories import NAMES, STUBBORN_MAX, catch, converge, job
from headrace_lab.reconcile.mutants import MUTANTS
from headrace_lab.reconcile.world import SHARDS, ReconcileWorld

HISTORY_COUNT = 100  # of each part; thousands are `python -m headrace_lab.reconcile.histories`
PARTS = 4

names = st.sampled_from(NAMES)
shards = st.sampled_from(SHARDS)


class Node(RuleBasedStateMachine):
    """Every step of the world, chosen by hypothesis, which makes a failure small."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ReconcileWorld()

    @rule(name=names, shard=shards, count=st.integers(1, 2), wake=st.booleans())
    def create(self, name, shard, count, wake):
        if self.world.topic(name) is None:
            self.world.create(name, shard, count, wake=wake)

    @rule(name=names, act=st.sampled_from(["delete", "grow", "evolve"]), wake=st.booleans())
    def change(self, name, act, wake):
        topic = self.world.topic(name)
        if topic is not None:
            getattr(self.world, act)(topic, wake=wake)

    @rule(name=names, shard=shards, wake=st.booleans())
    def recreate(self, name, shard, wake):
        topic = self.world.topic(name)
        if topic is not None:
            self.world.delete(topic, wake=wake)
            self.world.create(name, shard, 1, wake=wake)

    @rule(shard=shards)
    def run_pass(self, shard):
        self.world.run(self.world.shards[shard])

    @rule(shard=shards, fate=st.sampled_from(["done", "done", "dropped", "late"]))
    def land(self, shard, fate):
        self.world.land(self.world.shards[shard], fate)

    @rule(ms=st.sampled_from([10, 1_000, 70_000]))
    def pass_time(self, ms):
        self.world.pass_time(ms)

    @rule(back=st.integers(1, 5))
    def metadata_goes_back(self, back):
        self.world.go_back(max(0, self.world.count - back))

    @rule()
    def metadata_is_put_back(self):
        self.world.put_back()

    @rule()
    def what_was_lost_is_adopted(self):
        self.world.adopt()

    @rule(kept=st.integers(0, 3))
    def crash(self, kept):
        self.world.crash(kept)

    @rule(back=st.none() | st.integers(0, 5), is_normal=st.booleans())
    def show(self, back, is_normal):
        """The newest metadata, or some that lags; far enough back it is as if wiped."""
        self.world.shown = None if back is None else max(0, self.world.count - back)
        self.world.is_normal = is_normal

    @rule(shard=shards)
    def change_primary(self, shard):
        one = self.world.shards[shard]
        one.is_primary = not one.is_primary

    @rule(
        shard=shards,
        data=st.data(),
        named=st.integers(0, 2),
        stubborn=st.integers(0, STUBBORN_MAX),
    )
    def write(self, shard, data, named, stubborn):
        one = self.world.shards[shard]
        lives = sorted(one.lives | set(one.ever_closed), key=str)
        if lives:
            key = data.draw(st.sampled_from(lives))
            one.files.add(key)
            one.named[key], one.stubborn[key] = named, stubborn

    @rule(data=st.data(), wait_ms=st.sampled_from([500, 60_000]), created=st.integers(0, 9))
    def ask(self, data, wait_ms, created):
        target = self.world.truth.target()
        namespace = data.draw(st.sampled_from([*target, Namespace(0), Namespace(17)]))
        if namespace in target and created > 3:
            created = target[namespace].created
        known = self.world.past[: self.world.count + 1]
        state = data.draw(st.sampled_from([self.world.truth, *known]))
        created = created if created > 1 << 20 else known[created % len(known)].revision
        key = Key(namespace, Revision(created))
        self.world.request(key, self.world.now_ms + wait_ms, state)

    @invariant()
    def promises_hold(self):
        self.world.check()

    def teardown(self):
        converge(self.world)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_converges_and_breaks_no_promise(part):
    tally = job(1 + part * HISTORY_COUNT, HISTORY_COUNT, "")
    assert tally.failures == []
    assert tally.cases == HISTORY_COUNT
    for fault, least in {
        "crash": 150,
        "wake lost": 300,
        "metadata lags": 80,
        "metadata wiped": 80,
        "primary changed": 80,
        "metadata in doubt": 40,
        "topics adopted": 10,
        "lives lost": 30,
        "deed failed: delete failed": 60,
        "deed failed: dropped": 40,
        "deed failed: late": 30,
        "file of a closed life": 5,
        "pass skipped": 500,
        "parked": 300,
        "RefuseParked": 10,
        "ServeParked": 40,
        "ConfirmRemove": 150,
        "AdvanceSchema": 50,
    }.items():
        assert tally.landed[fault] >= least, fault


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_caught(mutant):
    assert catch(mutant, seed=1)


def test_the_same_seed_is_the_same_history():
    first, second = (job(7, 10, "").landed for _ in range(2))
    assert first == second
