"""A shard becomes what metadata wants, step by step, and nothing that lives is ever closed."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.partition.builders import BITS, Log, a_log, a_namespace, done

from headrace.errors import PartitionUnknown, Recreated
from headrace.metadata.state import MetadataTarget, SchemaVersion
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace, NamespaceLayout
from headrace.model.revisions import Order, compare
from headrace.node.doubt.doubt import judge
from headrace.node.shard.actions import (
    AdvanceSchema,
    Close,
    Collect,
    ConfirmRemove,
    Deed,
    Fence,
    InsertOwned,
    InsertRouted,
    RefuseParked,
    RemoveRouted,
    ServeParked,
)
from headrace.node.shard.reconciler import (
    FILES_STAY,
    FLIGHT_COUNT_MAX,
    TICK_MAX_MS,
    TICK_MS,
    Reconciler,
)
from headrace.node.shard.retry_table import ReconcileWork
from headrace.node.shard.router import Route
from headrace.node.shard.views import ActualView, TargetView
from headrace.partition.machine.operations import Schema
from headrace.partition.reader import Key
from headrace_lab.harness.mutants import planted
from headrace_lab.reconcile.histories import converge
from headrace_lab.reconcile.mutants import TESTED
from headrace_lab.reconcile.shard import SimShard
from headrace_lab.reconcile.world import ReconcileWorld

ONE, TWO = GroupId(1), GroupId(2)
LAYOUT = NamespaceLayout(16, 24, BITS)
P0, P1 = a_namespace(0), a_namespace(1)
LIFE = Key(P0, Revision(1))
NEXT = Key(P0, Revision(5))  # another life of P0


def wanted(created=1, *, topic=1, shard=ONE, versions=1) -> MetadataTarget:
    schemas = (
        SchemaVersion(number, b"schema %d" % number, Revision(1), 0)
        for number in range(1, versions + 1)
    )
    return MetadataTarget(Revision(created), Revision(topic), shard, tuple(schemas))


def target(
    partitions: dict[Namespace, MetadataTarget], revision=1, *, is_normal=True, deleted=()
) -> TargetView:
    gone = {key.namespace: (key.created,) for key in deleted}
    return TargetView(Revision(revision), is_normal, partitions, gone)


def actual(log: Log, *, rows=(), files=(), parked=(), is_primary=True) -> ActualView:
    routes = {key.namespace: key.created for key in rows}
    return ActualView(log.machine.state, routes, set(files), set(parked), is_primary)


HERE = target({P0: wanted()})
GONE = target({}, revision=2, deleted=[LIFE])
REBORN = target({P0: wanted(5, topic=5)}, revision=5, deleted=[LIFE])


def a_reconciler() -> Reconciler:
    return Reconciler(ONE)


def test_what_is_wanted_is_opened_then_routed_then_left_alone():
    reconciler, log = a_reconciler(), Log()
    opening = InsertOwned(LIFE, Revision(1), (Schema(1, b"schema 1"),), Revision(1))
    assert reconciler.plan(0, HERE, actual(log)) == [opening]
    done(log.open())
    reconciler.done(opening)
    assert reconciler.plan(0, HERE, actual(log)) == [InsertRouted(LIFE, ONE)]
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == []
    assert reconciler.counters.skip_count == 0
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == []
    assert reconciler.counters.skip_count == 1
    assert reconciler.counters.build_count == 1


def test_another_shards_partitions_are_not_ours():
    theirs = target({P0: wanted(shard=TWO)})
    assert a_reconciler().plan(0, theirs, actual(Log())) == []


def test_what_is_not_wanted_is_fenced_closed_collected_and_confirmed():
    reconciler, log = a_reconciler(), a_log()
    closing = Close(LIFE, Revision(2))
    plan = reconciler.plan(0, GONE, actual(log, rows=[LIFE], files=[LIFE]))
    assert plan == [Fence(LIFE), closing]
    assert reconciler.is_fenced(LIFE)
    done(log.close(revision=2))
    reconciler.done(closing)
    assert reconciler.plan(0, GONE, actual(log, files=[LIFE])) == [Collect(LIFE)]
    reconciler.done(Collect(LIFE))
    assert reconciler.is_fenced(LIFE)
    assert reconciler.plan(0, GONE, actual(log)) == [ConfirmRemove(LIFE)]
    assert reconciler.is_fenced(LIFE)
    reconciler.done(ConfirmRemove(LIFE))
    assert not reconciler.is_fenced(LIFE)
    assert reconciler.counters.removal_count == 1
    assert reconciler.plan(0, GONE, actual(log)) == []


def test_another_life_is_closed_first_and_opened_in_the_next_pass():
    reconciler, log = a_reconciler(), a_log()
    plan = reconciler.plan(0, REBORN, actual(log, rows=[LIFE], files=[LIFE]))
    assert plan == [Fence(LIFE), Close(LIFE, Revision(5))]
    done(log.close(revision=5))
    reconciler.done(plan[1])
    plan = reconciler.plan(0, REBORN, actual(log, files=[LIFE]))
    assert [type(action) for action in plan] == [Collect, InsertOwned]
    assert plan[1].key == NEXT


def test_a_new_life_opens_and_serves_while_files_of_the_old_one_wait():
    reconciler, log = a_reconciler(), a_log()
    done(log.close(revision=5))
    done(log.open(created=5, revision=5, topic_created=5))
    plan = reconciler.plan(0, REBORN, actual(log, files=[LIFE, NEXT], parked=[LIFE, NEXT]))
    assert plan == [
        InsertRouted(NEXT, ONE),
        Collect(LIFE),
        RefuseParked(LIFE, Revision(5)),
        ServeParked(NEXT),
    ]
    assert reconciler.tombstones == {LIFE}


def test_a_topics_new_life_waits_until_all_of_its_old_one_is_closed():
    reconciler, log = a_reconciler(), a_log(partitions=2)
    done(log.close(P0, revision=5))
    both = [LIFE, Key(P1, Revision(1))]
    reborn = target({P0: wanted(5, topic=5)}, revision=5, deleted=both)
    plan = reconciler.plan(0, reborn, actual(log))
    assert plan == [Fence(Key(P1, Revision(1))), Close(Key(P1, Revision(1)), Revision(5))]


def test_a_new_life_waits_for_a_deed_of_the_old_one():
    reconciler, log = a_reconciler(), Log()
    (opening,) = reconciler.plan(0, HERE, actual(log))
    assert reconciler.plan(0, REBORN, actual(log)) == []
    reconciler.failed(opening, "dropped", 0)
    (following,) = reconciler.plan(0, REBORN, actual(log))
    assert following.key == NEXT


@pytest.mark.parametrize(
    "lagging",
    [
        target({}, revision=0),
        target({}, revision=6),
        target({P0: wanted()}, revision=4),
        target({}, revision=9, is_normal=False),
    ],
    ids=["wiped", "behind the machine", "an older life", "not normal"],
)
def test_metadata_that_lags_or_changes_its_view_removes_nothing(lagging):
    reconciler, log = a_reconciler(), Log()
    done(log.open(created=5, revision=7, topic_created=5))
    for now_ms in range(0, 10_000, TICK_MS):
        plan = reconciler.plan(now_ms, lagging, actual(log, rows=[NEXT], files=[NEXT]))
        assert plan == []
    assert reconciler.tombstones == set()
    assert reconciler.counters.skip_count == 0  # it looks again until it can tell


def test_a_life_that_metadata_has_not_seen_begin_is_never_unwanted():
    log = a_log()
    done(log.open(P1, created=8, revision=1))  # a proposer that did not say what it knew
    assert a_reconciler().plan(0, HERE, actual(log, rows=[LIFE])) == []


def test_metadata_older_than_what_was_seen_before_changes_nothing():
    reconciler, log = a_reconciler(), Log()
    reconciler.plan(0, GONE, actual(log))
    assert reconciler.plan(0, HERE, actual(log)) == []
    assert reconciler.seen == 2


def test_a_closed_life_is_not_opened_again():
    log = a_log()
    done(log.close())
    assert a_reconciler().plan(0, HERE, actual(log)) == []


def test_a_life_in_the_wrong_shard_gets_no_row_and_is_not_deleted():
    reconciler, log = a_reconciler(), a_log()
    elsewhere = target({P0: wanted(shard=TWO)})
    assert reconciler.plan(0, elsewhere, actual(log, rows=[LIFE], files=[LIFE])) == [
        RemoveRouted(LIFE)
    ]
    assert reconciler.plan(0, elsewhere, actual(log, files=[LIFE], parked=[LIFE])) == [
        RefuseParked(LIFE, None)
    ]
    assert reconciler.tombstones == set()


def test_a_row_without_a_life_goes_whatever_metadata_says():
    for view in (HERE, GONE, target({}, revision=0)):
        plan = a_reconciler().plan(0, view, actual(Log(), rows=[LIFE]))
        assert RemoveRouted(LIFE) in plan


def test_a_fenced_life_gets_no_row_from_metadata_that_lags():
    reconciler, log = a_reconciler(), a_log()
    reconciler.plan(0, GONE, actual(log))
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == [Fence(LIFE)]
    assert reconciler.plan(0, HERE, actual(log, parked=[LIFE])) == [RefuseParked(LIFE, None)]


def test_tombstones_are_found_again_after_a_crash():
    log = a_log(partitions=2)
    done(log.close(revision=2))
    files = [LIFE, Key(P1, Revision(1)), Key(a_namespace(7), Revision(1))]
    view = target({P1: wanted()}, revision=2)
    plan = a_reconciler().plan(0, view, actual(log, rows=[files[1]], files=files))
    assert plan == [Collect(LIFE)]  # a life that this log never had is left to others


def test_schemas_come_one_by_one_in_order():
    reconciler, log = a_reconciler(), a_log(partitions=2)
    view = target({P0: wanted(versions=3), P1: wanted(versions=3)}, revision=3)
    rows = [LIFE, Key(P1, Revision(1))]
    for version in (2, 3):
        (advance,) = reconciler.plan(0, view, actual(log, rows=rows))
        assert advance == AdvanceSchema(LIFE, version, b"schema %d" % version)
        assert reconciler.plan(0, view, actual(log, rows=rows)) == []
        done(log.set_schema(version))
        reconciler.done(advance)
    assert reconciler.plan(0, view, actual(log, rows=rows)) == []
    assert reconciler.counters.schema_count == 2


def test_schemas_of_another_life_are_not_taken():
    reborn = target({P0: wanted(5, topic=5, versions=3)}, revision=7, deleted=[LIFE])
    plan = a_reconciler().plan(0, reborn, actual(a_log()))
    assert plan == [Fence(LIFE), Close(LIFE, Revision(7))]


ABSENT = [
    target({}, revision=1),
    target({}, revision=9),
    target({P0: wanted(5, topic=5)}, revision=9),
    target({P0: wanted(5, topic=5)}, revision=9, deleted=[Key(P1, Revision(1))]),
    target({P1: wanted(5, topic=5)}, revision=9),
]


@pytest.mark.parametrize("view", ABSENT)
def test_what_is_absent_without_a_record_stays_and_nothing_takes_its_place(view):
    reconciler, log = a_reconciler(), a_log()
    done(log.append())
    for now in range(5):
        plan = reconciler.plan(now * TICK_MS, view, actual(log, files=[LIFE]))
        assert plan == []
    assert log.partition().end == 1
    assert not reconciler.tombstones


class Wanting:
    """Metadata of which only the target of a view is asked."""

    def __init__(self, view: TargetView) -> None:
        self.layout, self.revision = LAYOUT, view.revision
        self.deleted, self.view = view.deleted, view

    def order_of(self, revision: int) -> Order:
        return compare(revision, self.revision)

    def has_ended(self, namespace: int, created: int, _: int) -> bool:
        return created in self.deleted.get(namespace, ())

    def partition_at(self, namespace: int) -> MetadataTarget | None:
        return self.view.partitions.get(namespace)


def doubted(view: TargetView, *logs: Log, held: str = "") -> TargetView:
    """Judge a view of the metadata by what the shards from 1 on have."""
    shards = {GroupId(number): log.machine.state for number, log in enumerate(logs, 1)}
    return replace(view, doubt=judge(Wanting(view), shards, held))


def test_nothing_is_opened_where_another_shard_has_an_orphan():
    log = a_log()
    for place, is_built in ((P0, False), (P1, False), (a_namespace(topic=1), True)):
        wants = target({place: wanted(5, topic=5, shard=TWO)}, revision=9)
        view = doubted(wants, log, Log())
        assert view.doubt.is_orphan(ONE, LIFE)
        plan = Reconciler(TWO).plan(0, view, actual(Log()))
        assert [type(one) for one in plan] == [InsertOwned] * is_built
        assert a_reconciler().plan(0, view, actual(log)) == []


def test_a_build_in_a_taken_namespace_is_noticed():
    with planted("build in a taken namespace", TESTED), pytest.raises(AssertionError):
        test_nothing_is_opened_where_another_shard_has_an_orphan()


def test_in_doubt_not_even_what_was_deleted_is_removed():
    log = a_log(partitions=2)
    view = doubted(target({}, revision=9, deleted=[LIFE]), log)
    reconciler = a_reconciler()
    assert view.doubt.orphans
    assert reconciler.plan(0, view, actual(log)) == []
    assert not reconciler.tombstones
    both = target({}, revision=9, deleted=[LIFE, Key(P1, Revision(1))])
    assert doubted(both, log).doubt is None
    assert len(reconciler.plan(0, both, actual(log))) == 4


def test_a_row_of_what_turns_out_to_be_an_orphan_is_taken_away():
    log = a_log()
    view = doubted(target({P0: wanted(shard=TWO)}), log)
    assert a_reconciler().plan(0, view, actual(log, rows=[LIFE])) == [RemoveRouted(LIFE)]


def test_a_life_of_the_same_number_and_another_schema_is_not_served():
    log = a_log()
    other = (SchemaVersion(1, b"another topic's", Revision(1), 0),)
    view = target({P0: replace(wanted(), schemas=other)})
    assert a_reconciler().plan(0, doubted(view, log), actual(log, parked=[LIFE])) == []


def test_while_group_0_is_held_nothing_is_opened_and_what_is_there_is_served():
    log = a_log()
    view = target({P0: wanted(versions=2), P1: wanted()}, revision=3)
    plan = a_reconciler().plan(0, doubted(view, log, held="bad bytes"), actual(log))
    assert plan == [InsertRouted(LIFE, ONE)]


def test_an_orphan_that_was_given_up_is_removed():
    reconciler, log = a_reconciler(), a_log()
    assert reconciler.plan(0, target({}, revision=4), actual(log)) == []
    given_up = target({}, revision=5, deleted=[LIFE])
    assert reconciler.plan(1, given_up, actual(log)) == [Fence(LIFE), Close(LIFE, Revision(5))]


def test_a_record_of_an_older_life_removes_no_later_one():
    view = target({}, revision=9, deleted=[Key(P0, Revision(1))])
    log = Log()
    done(log.open(P0, created=5, topic_created=5, revision=5))
    assert a_reconciler().plan(0, view, actual(log)) == []


def test_a_deed_in_flight_is_planned_once():
    reconciler, log = a_reconciler(), Log()
    (opening,) = reconciler.plan(0, HERE, actual(log))
    later = target({P0: wanted(versions=2)}, revision=2)  # the same life, another proposal
    assert reconciler.plan(1_000, later, actual(log)) == []
    reconciler.failed(opening, "dropped", 1_000)
    assert reconciler.plan(1_999, later, actual(log)) == []
    (again,) = reconciler.plan(2_000, later, actual(log))
    assert again.revision == 2


def test_what_ends_twice_counts_once():
    reconciler, log = a_reconciler(), Log()
    (opening,) = reconciler.plan(0, HERE, actual(log))
    reconciler.failed(opening, "late", 0)
    reconciler.done(opening)
    reconciler.failed(opening, "late", 0)
    assert reconciler.counters.build_count == 0
    assert reconciler.counters.failures == {"late": 1}


def test_a_stuck_removal_does_not_hold_up_a_build():
    reconciler, log = a_reconciler(), a_log()
    view = target({P1: wanted(2, topic=2)}, revision=2)
    done(log.close(revision=2))
    for _ in range(5):
        reconciler.backoff.fail(ReconcileWork.REMOVAL, LIFE, "delete failed", 0)
        reconciler.backoff.fail(ReconcileWork.REMOVAL, Key(P1, Revision(2)), "delete failed", 0)
    plan = reconciler.plan(1, view, actual(log, files=[LIFE]))
    assert [type(action) for action in plan] == [InsertOwned]


def test_a_backup_proposes_nothing_and_keeps_its_rows():
    reconciler, log = a_reconciler(), a_log()
    view = target({P0: wanted(versions=2), P1: wanted(2)}, revision=2)
    plan = reconciler.plan(0, view, actual(log, is_primary=False))
    assert plan == [InsertRouted(LIFE, ONE)]
    gone = target({}, revision=3, deleted=[LIFE])
    assert reconciler.plan(0, gone, actual(log, rows=[LIFE], is_primary=False)) == [Fence(LIFE)]
    done(log.close(revision=3))
    view = actual(log, files=[LIFE], is_primary=False)
    assert reconciler.plan(0, gone, view) == []  # its own collection follows the log
    assert reconciler.plan(0, gone, actual(log, is_primary=False)) == [ConfirmRemove(LIFE)]


def test_only_so_many_deeds_are_in_flight_and_removals_leave_room_for_builds():
    reconciler, log = a_reconciler(), Log()
    count = FLIGHT_COUNT_MAX + 10
    many = {a_namespace(number): wanted() for number in range(count)}
    plan = reconciler.plan(0, target(many), actual(log))
    assert len(plan) == FLIGHT_COUNT_MAX
    for opening in plan:
        done(log.open(opening.key.namespace))
        reconciler.done(opening)
    rest = [one for one in reconciler.plan(0, target(many), actual(log)) if is_deed(one)]
    assert len(rest) == 10
    for opening in rest:
        done(log.open(opening.key.namespace))
        reconciler.done(opening)
    other = a_namespace(topic=1)
    gone = [Key(namespace, Revision(1)) for namespace in many]
    view = target({other: wanted(2, topic=2)}, revision=2, deleted=gone)
    deeds = [one for one in reconciler.plan(0, view, actual(log)) if is_deed(one)]
    assert [type(one) for one in deeds] == [Close] * FLIGHT_COUNT_MAX + [InsertOwned]
    assert len(reconciler.tombstones) == count  # all are fenced at once


def is_deed(action: object) -> bool:
    return isinstance(action, Deed)


def test_the_error_for_what_was_parked_says_whether_there_is_a_later_life():
    assert isinstance(RefuseParked(LIFE, Revision(5)).error, Recreated)
    assert isinstance(RefuseParked(LIFE, None).error, PartitionUnknown)


def test_a_request_for_a_life_that_metadata_has_not_seen_yet_goes_on_waiting():
    later = Key(P0, Revision(9))
    plan = a_reconciler().plan(0, HERE, actual(a_log(), rows=[LIFE], parked=[later]))
    assert plan == []


def test_failures_of_what_nobody_wants_are_forgotten():
    reconciler, log = a_reconciler(), Log()
    (opening,) = reconciler.plan(0, HERE, actual(log))
    reconciler.failed(opening, "dropped", 0)
    assert len(reconciler.backoff) == 1
    reconciler.plan(0, GONE, actual(log))
    assert len(reconciler.backoff) == 0


def test_a_pass_is_due_at_the_start_after_a_wake_and_on_the_tick():
    reconciler = a_reconciler()
    assert reconciler.is_due(0)
    reconciler.plan(0, HERE, actual(a_log(), rows=[LIFE]))
    assert reconciler.due_at_ms() == TICK_MS
    assert not reconciler.is_due(TICK_MS - 1)
    assert reconciler.is_due(TICK_MS)
    reconciler.wake()
    reconciler.wake()
    assert reconciler.is_due(1)
    reconciler.plan(1, HERE, actual(a_log(), rows=[LIFE]))
    assert not reconciler.is_due(2)


@pytest.mark.parametrize("tick_ms", [0, -1, TICK_MAX_MS + 1])
def test_a_tick_is_at_most_thirty_seconds(tick_ms):
    with pytest.raises(AssertionError):
        Reconciler(ONE, tick_ms)


def settled(log: Log) -> Reconciler:
    reconciler = a_reconciler()
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == []
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == []
    assert reconciler.counters.skip_count == 1
    return reconciler


@pytest.mark.parametrize(
    ("view", "has"),
    [
        (target({P0: wanted()}, revision=2), {}),
        (target({P0: wanted()}, is_normal=False), {}),
        (HERE, {"parked": [Key(P0, Revision(9))]}),
        (HERE, {"files": [LIFE]}),
        (HERE, {"is_primary": False}),
    ],
    ids=["revision", "not normal", "parked", "files", "backup"],
)
def test_a_pass_is_skipped_only_if_nothing_changed(view, has):
    log = a_log()
    reconciler = settled(log)
    reconciler.plan(0, view, actual(log, rows=[LIFE], **has))
    assert reconciler.counters.skip_count == 1


def test_a_pass_is_not_skipped_when_the_log_has_followed_newer_metadata():
    log = a_log()
    reconciler = settled(log)
    done(log.close(revision=2))
    assert reconciler.plan(0, HERE, actual(log, rows=[LIFE])) == [RemoveRouted(LIFE)]


def test_a_wake_is_never_skipped():
    log = a_log()
    reconciler = settled(log)
    reconciler.wake()
    reconciler.plan(0, HERE, actual(log, rows=[LIFE]))
    assert reconciler.counters.skip_count == 1


# A whole node: real machines, two shards, one router.


def a_world(partitions: int = 1) -> ReconcileWorld:
    world = ReconcileWorld()
    world.create("orders", ONE, partitions)
    converge(world)
    return world


def orders(world: ReconcileWorld) -> Key:
    topic = world.topic("orders")
    assert topic is not None
    return Key(Namespace(0), topic.created)


def ask(world: ReconcileWorld, key: Key) -> str:
    return world.request(key, world.now_ms + 60_000, world.truth)


def recreate(world: ReconcileWorld, shard: GroupId = ONE) -> None:
    topic = world.topic("orders")
    assert topic is not None
    world.delete(topic)
    world.create("orders", shard, 1)


@pytest.mark.parametrize("shard", [ONE, TWO])
def test_t14_a_topic_deleted_and_created_again_is_a_new_life_and_serves_no_old_bytes(shard):
    world = a_world()
    old = orders(world)
    world.shards[ONE].files.add(old)
    world.shards[ONE].stubborn[old] = 3
    recreate(world, shard)
    new = orders(world)
    assert new.namespace == old.namespace
    assert ask(world, old) == "recreated"  # before any pass
    assert ask(world, new) == "parked"
    for _ in range(3):
        for one in world.shards.values():
            world.run(one)
            while one.pending:
                world.land(one)
                assert ask(world, old) == "recreated"
    assert world.requests == []  # what waited for the new life is served
    assert old in world.shards[ONE].files  # and the old bytes are still there
    found = world.router.route(new.namespace, new.created, world.truth)
    assert found == Route(shard, new.created)
    assert ask(world, new) == "served"
    converge(world)
    assert world.shards[ONE].files == set()


def test_t15_a_delete_that_fails_keeps_the_fence_backs_off_and_recovers():
    world = a_world()
    key, shard = orders(world), world.shards[ONE]
    shard.files.add(key)
    shard.stubborn[key] = 5
    recreate(world)
    tries: list[int] = []
    for _ in range(40):
        world.run(shard)
        while shard.pending:
            if isinstance(shard.pending[0], Collect):
                tries.append(world.now_ms)
            world.land(shard)
        assert ask(world, key) == "recreated"
        if key not in shard.files:
            break
        assert shard.reconciler.is_fenced(key)
        world.pass_time(TICK_MS)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == [1_000, 2_000, 4_000, 8_000, 16_000]
    assert shard.reconciler.counters.failures["delete failed"] == 5
    assert ask(world, orders(world)) == "served"  # the new life did not wait for it
    converge(world)
    assert not shard.reconciler.is_fenced(key)


def test_t15_files_that_a_snapshot_still_names_are_asked_for_again():
    world = a_world()
    key, shard = orders(world), world.shards[ONE]
    shard.files.add(key)
    shard.named[key] = 2
    recreate(world)
    for _ in range(3):
        world.run(shard)
        world.land(shard)
    (failure,) = shard.reconciler.backoff.failures()
    assert (failure.cause, failure.attempt_count) == (FILES_STAY, 1)
    converge(world)
    assert shard.reconciler.counters.failures == {}


def lose_rows(world: ReconcileWorld, shard: SimShard) -> None:
    for key in world.rows_of(shard.number):
        world.router.remove(key)


def dead_files(_: ReconcileWorld, shard: SimShard) -> None:
    shard.files |= set(shard.ever_closed)


def with_tombstones(_: ReconcileWorld, shard: SimShard) -> None:
    shard.reconciler.tombstones |= set(shard.ever_closed)


def nothing(_: ReconcileWorld, __: SimShard) -> None:
    pass


@pytest.mark.parametrize("disturb", [nothing, lose_rows, dead_files, with_tombstones])
@pytest.mark.parametrize("change", ["none", "grow", "evolve", "recreate", "delete"])
def test_t16_it_converges_from_any_start_in_a_few_passes(disturb, change):
    world = a_world(partitions=2)
    recreate(world)
    converge(world)
    topic = world.topic("orders")
    assert topic is not None
    match change:
        case "grow" | "evolve" | "delete":
            getattr(world, change)(topic)
        case "recreate":
            recreate(world)
    for shard in world.shards.values():
        disturb(world, shard)
    world.crash(kept=0)
    assert converge(world) <= 5


def test_t16_a_lost_wake_is_healed_by_the_tick():
    world = a_world()
    shard = world.shards[ONE]
    world.run(shard)
    assert shard.reconciler.due_at_ms() > world.now_ms
    topic = world.topic("orders")
    assert topic is not None
    world.grow(topic, wake=False)
    world.run(shard)
    assert not shard.pending
    world.pass_time(TICK_MS)
    world.run(shard)
    assert [type(deed) for deed in shard.pending] == [InsertOwned]


def test_t16_the_skip_never_skips_a_real_change():
    world = a_world()
    shard = world.shards[ONE]
    for change in (world.grow, world.evolve, world.delete):
        world.pass_time(TICK_MS)
        world.run(shard)
        before = shard.reconciler.counters.skip_count
        topic = world.topic("orders")
        assert topic is not None
        change(topic, wake=False)
        world.pass_time(TICK_MS)
        world.run(shard)
        assert shard.reconciler.counters.skip_count == before
        assert shard.pending
        converge(world)


def test_requests_wait_for_their_partition_and_are_served_in_the_pass_that_brings_the_row():
    world = ReconcileWorld()
    world.create("orders", TWO, 1)
    key = orders(world)
    assert ask(world, key) == "parked"
    shard = world.shards[TWO]
    world.run(shard)
    assert world.requests
    world.land(shard)
    world.run(shard)
    assert world.requests == []
    assert shard.parking.served_count == 1
    assert ask(world, key) == "served"
