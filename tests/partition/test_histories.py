"""Any history equals plain lists of rows, through crashes too; replicas of one log are equal.

HEADRACE_HYPOTHESIS=heavy runs many more and longer histories, other ones each time.
"""

import os
import sys
from contextlib import suppress
from itertools import islice
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant
from tests.partition.deeds import Deed, Deeds, a_seal, told
from tests.partition.node import Doom, Node, a_key, table, width_of

from headrace.errors import (
    CheckpointPending,
    Expired,
    RingFull,
    StorageFailed,
    Unavailable,
)
from headrace.journal.entry import Entry, decode
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.results import Refusal
from headrace.partition.machine.state import Placed
from headrace.partition.segments.seal_job import DISK, FULL, UNSEALABLE, SealRefused
from headrace.partition.segments.sealer import InProcess
from headrace_lab.disk.faults import Crashed
from headrace_lab.shard.shard import TICK_US, purging

HEAVY = os.environ.get("HEADRACE_HYPOTHESIS") == "heavy"
pytestmark = pytest.mark.timeout(6 * 3600 if HEAVY else 600)


class Histories(Deeds):
    """One shard that dies often. What was acknowledged is there exactly once."""

    more: ClassVar = {"doom": 8, "seal": 10, "run_a_checkpoint": 5, "die": 4, "read": 4}

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.node.open()
        self.fate = Random(0)  # of the next death
        self.acknowledged = 0  # ops
        self.digest = self.node.machine.digest()  # after the last of them
        self.in_flight = []  # op, time and deed of those that are not acknowledged yet

    def submit(self, *deeds: Deed) -> None:
        shard = self.node.shard
        self.in_flight = [
            (self.acknowledged + place, self.now + place * TICK_US, deed)
            for place, deed in enumerate(deeds, 1)
        ]
        shard.timestamp = self.now
        try:
            shard.submit([deed.proposal for deed in deeds])
        except (Crashed, StorageFailed):
            assert self.node.is_harmed
            self.restart(self.fate)
            return
        except (RingFull, CheckpointPending):
            assert not shard.results
            self.make_room()
            self.submit(*deeds)
            return
        except Unavailable:
            assert self.node.is_harmed
        self.acknowledge(shard.results)

    def acknowledge(self, results) -> None:
        """Compare what was answered. The rest of the group was refused, and never shows up."""
        for result, (_, now, deed) in zip(results, self.in_flight, strict=False):
            assert told(result) == self.run_plain(deed, now)
        self.acknowledged += len(results)
        assert self.node.shard.head == self.acknowledged
        digest = self.node.machine.digest()
        if all(isinstance(result, Refusal) for result in results):
            assert digest == self.digest
        self.digest = digest
        self.in_flight = []

    def run_plain(self, deed: Deed, now: int) -> tuple:
        self.now = now
        name, *arguments = deed.plain
        return getattr(self.plain, name)(now, *arguments)

    def make_room(self) -> None:
        """Make two checkpoints: the second frees the slots up to the first."""
        for _ in range(2):
            self.node.checkpoint()
            self.submit(a_seal())
        self.node.checkpoint()

    def restart(self, rng: Random) -> None:
        """Recover, and take over what the log shows of the deeds that were in flight."""
        self.node.restart(rng)
        head = self.node.shard.head
        assert self.acknowledged <= head <= self.acknowledged + len(self.in_flight)
        if head == self.acknowledged:
            assert self.node.machine.digest() == self.digest
        for op, now, deed in self.in_flight:
            if op <= head:
                self.run_plain(deed, now)
        self.in_flight = []
        self.acknowledged, self.digest = head, self.node.machine.digest()
        self.node.check(self.plain, rng)

    def doom(self, rng):
        """Let something befall one of the next effects."""
        self.node.doom(Doom.drawn(rng))
        self.fate = rng

    def seal(self, rng):
        """Seal, and mostly run the checkpoint, which may fail half way or kill the process."""
        self.submit(a_seal(expire=rng.random() < 0.3))
        if rng.random() < 0.3:
            return  # it stays pending
        if rng.random() < 0.5:
            kind = rng.choice(("full", "full", "crash", "crash after"))
            self.node.doom(Doom(kind, rng.randrange(30)))
            self.fate = rng
        self.run_a_checkpoint(rng)
        self.node.disk.hook = None

    def run_a_checkpoint(self, _):
        try:
            self.node.checkpoints.run()
        except (Crashed, StorageFailed):
            assert self.node.is_harmed
            self.restart(self.fate)
        except Unavailable:
            assert self.node.is_harmed

    def die(self, rng):
        if rng.random() < 0.2:
            self.node.disk.hook = None
            self.node.shard.store.stop()
        self.restart(rng)

    def read(self, rng):
        """Read everything, or one partition across two checkpoints and perhaps a purge."""
        if rng.random() < 0.5 or not self.plain.lives:
            self.node.check(self.plain, rng)
            return
        self.node.disk.hook = None
        life = rng.choice(list(self.plain.lives.values()))
        newest = self.plain.topic_of(life.key).newest
        rows = life.shown(life.first, life.end, width_of(newest))
        batches = self.node.reader.read(a_key(life.key), life.first, life.end)
        found = table(islice(batches, rng.randrange(4)), newest)
        purges = rng.random() < 0.3
        if purges:
            self.submit(Deed(purging(a_key(life.key)), ("purge", life.key)))
        self.make_room()
        try:
            found += table(batches, newest)
        except Expired:
            assert purges  # what is trimmed meanwhile is never skipped
            assert len(found) < len(rows)
        assert found == rows[: len(found)]
        assert purges or found == rows

    @invariant()
    def bounds_and_cursors_are_equal(self):
        found = self.node.machine.state.partitions
        assert sorted(found) == sorted(self.plain.lives)
        for namespace, life in self.plain.lives.items():
            partition = found[namespace]
            assert (partition.first, partition.end) == (life.first, life.end)
            cursors = {
                group: (one.next, one.generation, one.hold)
                for group, one in partition.cursors.items()
            }
            assert cursors == life.cursors

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # it failed already
        self.node.disk.hook = None
        self.make_room()
        twin = PartitionsMachine(self.node.machine.partition_bits)
        twin.restore(self.node.machine.snapshot())
        assert twin.digest() == self.node.machine.digest()
        self.node.check(self.plain, Random(1))
        self.restart(Random(1))
        self.all_space_returns()

    def all_space_returns(self) -> None:
        for life in list(self.plain.lives.values()):
            self.close(life.key)
        self.make_room()
        files = self.node.shard.store.keeper.files
        assert files.segments.names() == []
        assert files.carries.names() == []
        assert files.quarantine.names() == []


class Unwilling(InProcess):
    """A sealer whose disk is full, fails, or whose rows cannot be sealed, now and then."""

    def __init__(self) -> None:
        self.rng = Random(1)

    is_apart = False

    def seal(self, jobs, directory, read):
        return [
            SealRefused(self.rng.choice((UNSEALABLE, UNSEALABLE, DISK, FULL)), "unwilling")
            if self.rng.random() < 0.5
            else super(Unwilling, self).seal([job], directory, read)[0]
            for job in jobs
        ]


class Replicas(Deeds):
    """One log on four disks: sealed at once, late, by an unwilling sealer, over restarts."""

    more: ClassVar = {"seal": 6, "run_a_checkpoint": 8, "restart": 5, "read": 4}

    def __init__(self) -> None:
        super().__init__()
        unwilling = Unwilling()
        self.prompt, self.late, self.mortal = Node(), Node(), Node()
        self.clumsy = Node(lambda: unwilling)
        self.nodes = [self.prompt, self.late, self.mortal, self.clumsy]
        for node in self.nodes:
            node.open()

    def submit(self, *deeds: Deed) -> None:
        for node in self.nodes:
            self.make_room(node, len(deeds))
        self.spread(*deeds)
        self.catch_up(self.prompt)

    def spread(self, *deeds: Deed) -> None:
        """Give all nodes the same bytes, and compare what they and the model make of them."""
        self.prompt.shard.timestamp = self.now
        log = [
            entry.sealed + bytes(entry.body)
            for entry in self.prompt.shard.entries([deed.proposal for deed in deeds])
        ]
        answers = [self.feed(node, log) for node in self.nodes]
        assert all(each == answers[0] for each in answers)
        for result, deed in zip(answers[0], deeds, strict=True):
            self.now += TICK_US
            name, *arguments = deed.plain
            assert told(result) == getattr(self.plain, name)(self.now, *arguments)
        self.replicas_are_equal()

    def feed(self, node: Node, log: list[bytes]) -> list:
        group = node.shard.store.group
        entries = [decode(data) for data in log]
        assert all(isinstance(entry, Entry) for entry in entries)
        group.append(entries)
        return [group.apply(entry) for entry in entries]

    def make_room(self, node: Node, entry_count: int) -> None:
        """Let a node do what it must before it can take more."""
        ring = node.shard.store.group.journal.ring
        last = node.shard.head + entry_count + 6
        if node.checkpoints.is_full or ring.collides(last):
            self.catch_up(node)
        if ring.collides(last):
            for _ in range(2):
                self.catch_up(*self.nodes)
                self.spread(a_seal())
            self.catch_up(*self.nodes)

    def catch_up(self, *nodes: Node) -> None:
        for node in nodes:
            for _ in range(100):
                with suppress(Unavailable):
                    node.checkpoint()
                    break
                assert node is self.clumsy
            assert not node.checkpoints.pending

    def replicas_are_equal(self) -> None:
        assert len({node.machine.digest() for node in self.nodes}) == 1
        assert len({node.shard.head for node in self.nodes}) == 1

    def seal(self, rng):
        self.submit(a_seal(expire=rng.random() < 0.3))

    def run_a_checkpoint(self, rng):
        node = rng.choice(self.nodes)
        try:
            node.checkpoints.run()
        except Unavailable:
            assert node is self.clumsy
        self.replicas_are_equal()

    def restart(self, rng):
        node = rng.choice([*self.nodes, self.mortal, self.clumsy])
        node.restart(rng)
        self.replicas_are_equal()
        node.check(self.plain, rng)

    def read(self, rng):
        rng.choice(self.nodes).check(self.plain, rng)
        self.segments_hold_the_same_rows()

    def segments_hold_the_same_rows(self):
        digests = {}
        for node in self.nodes:
            for partition in node.machine.state.partitions.values():
                for segment in partition.segments:
                    if isinstance(segment.place, Placed):
                        key = (segment.namespace, segment.created, segment.first, segment.end)
                        assert digests.setdefault(key, segment.place.rows) == segment.place.rows

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # it failed already
        self.catch_up(*self.nodes)
        for node in self.nodes:
            node.check(self.plain, Random(1))
        self.segments_hold_the_same_rows()
        self.replicas_are_equal()


def profile(examples: int, heavy: tuple[int, int], steps: int = 12) -> settings:
    """Return the same histories each time, few of them; or many, and others each time."""
    return settings(
        max_examples=heavy[0] if HEAVY else examples,
        stateful_step_count=heavy[1] if HEAVY else steps,
        derandomize=not HEAVY,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


TestHistories = Histories.TestCase
TestHistories.settings = profile(110, heavy=(6_000, 30))
TestReplicas = Replicas.TestCase
TestReplicas.settings = profile(50, heavy=(2_500, 25))
