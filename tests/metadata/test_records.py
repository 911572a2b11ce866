"""From level 2 on each deletion is recorded: what is absent without a record was lost."""

import pytest
from tests.metadata.builders import (
    NARROW,
    a_machine,
    a_topic,
    add_partitions,
    alter_topic,
    create_topic,
    delete_topic,
    done,
    refusal,
    the_topic,
)

from headrace.metadata.commands import Adopt, CreateStream, DeleteStream, ForgetLife, Level
from headrace.metadata.results import Forgotten, Levelled, MetadataCode
from headrace.metadata.state import (
    DELETED_MAX,
    FOREVER,
    LEVEL,
    LINEAGE_MAX,
    RetentionLimits,
    record_deletion,
)
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import STAMP_BITS, Order, stamp

N = 1 << STAMP_BITS  # the first stamp of a log whose entries have checksums of zeros


def test_a_deleted_topic_leaves_a_record_for_each_of_its_partitions():
    machine = a_machine(NARROW, level=2)
    done(machine, add_partitions(a_topic(machine, partitions=2), 1))
    target = {namespace: one.created for namespace, one in machine.state.target().items()}
    assert sorted(target.values()) == [N, N, 2 * N]
    assert machine.state.deleted == {}
    done(machine, delete_topic(the_topic(machine)))
    assert machine.state.deleted == {key: (created,) for key, created in target.items()}


def test_a_deleted_stream_leaves_records_of_all_its_topics():
    machine = a_machine(NARROW, level=2)
    done(machine, CreateStream("shop"))
    a_topic(machine)
    for name in ("a", "b"):
        a_topic(machine, name, stream="shop")
    gone = {NARROW.pack(1, 0, 0): (2 * N,), NARROW.pack(1, 1, 0): (3 * N,)}
    done(machine, DeleteStream("shop", with_topics=True))
    assert machine.state.deleted == gone


def test_each_life_of_a_namespace_has_a_record_of_its_own():
    machine = a_machine(NARROW, level=2)
    place, lives = NARROW.pack(0, 0, 0), ()
    for created in (N, 3 * N, 5 * N):
        assert a_topic(machine).created == created
        done(machine, delete_topic(the_topic(machine)))
        lives += (created,)
        assert machine.state.deleted == {place: lives}
    a_topic(machine)
    assert machine.state.deleted == {place: lives}
    assert machine.state.is_deleted(place, 3 * N)
    assert not machine.state.is_deleted(place, 3 * N + 1)  # of a history that was lost
    assert not machine.state.is_deleted(place, 4 * N)


def test_of_very_many_lives_of_a_namespace_the_newest_are_recorded():
    machine = a_machine(NARROW, level=2)
    for _ in range(DELETED_MAX + 3):
        a_topic(machine)
        done(machine, delete_topic(the_topic(machine)))
    (lives,) = machine.state.deleted.values()
    assert (len(lives), lives[-1]) == (DELETED_MAX, (2 * DELETED_MAX + 5) * N)
    restored = a_machine(NARROW, level=2)
    restored.restore(machine.snapshot())
    assert restored.state.deleted == machine.state.deleted
    (place,) = machine.state.deleted
    done(machine, ForgetLife(place, Revision(7)))  # an older life, and the newest record
    assert machine.state.deleted[place] == (*lives[1:], -7)
    restored.restore(machine.snapshot())
    assert restored.state == machine.state


def test_before_level_2_nothing_is_recorded_whoever_replays_it():
    machine = a_machine(NARROW, level=1)
    a_topic(machine)
    done(machine, delete_topic(the_topic(machine)))
    assert machine.state.deleted == {}
    assert done(machine, Level(2)) == Levelled(2)
    assert (machine.state.deleted, machine.state.revision) == ({}, N)
    a_topic(machine)
    done(machine, delete_topic(the_topic(machine)))
    assert list(machine.state.deleted.values()) == [(2 * N,)]


def test_a_record_of_a_plain_count_is_of_a_shard_that_has_followed_a_stamp():
    machine = a_machine(NARROW, level=1)
    a_topic(machine)
    done(machine, Level(2))
    done(machine, delete_topic(the_topic(machine)))
    ((place, lives),) = machine.state.deleted.items()
    assert lives == (1,)
    followed = {Revision(1): False, stamp(1, b"\xee" * 16): False}
    followed |= {Revision(N): True, Revision(2 * N): True, Revision(3 * N): False}
    assert {
        one: machine.state.has_ended(place, Revision(1), one) for one in followed
    } == followed
    twin = a_machine(NARROW, level=2)
    twin.restore(machine.snapshot())
    done(twin, Adopt(Revision(0), (), (), (), ()))  # its memory begins anew
    record_deletion(twin.state.deleted, place, Revision(1))
    assert not twin.state.has_ended(place, Revision(1), Revision(N))
    done(machine, ForgetLife(place, Revision(1)))  # by an operator: of whichever shard
    assert machine.state.deleted[place] == (1, -1)
    assert all(machine.state.has_ended(place, Revision(1), one) for one in followed)
    assert not machine.state.has_ended(place, Revision(2), Revision(N))


def test_level_3_changes_nothing_of_level_2_and_raises_no_revision():
    one, other = a_machine(NARROW, level=2), a_machine(NARROW, level=2)
    for machine in (one, other):
        a_topic(machine)
    before = one.state.revision
    assert done(one, Level(3)) == Levelled(3)
    assert (one.state.level, one.state.revision) == (3, before)
    for machine in (one, other):
        done(machine, delete_topic(the_topic(machine)))
    assert one.state.deleted == other.state.deleted != {}


@pytest.mark.parametrize("level", [2, 3])
def test_a_log_of_level_1_gets_the_rules_of_level_2_with_any_higher_one(level):
    machine = a_machine(NARROW, level=1)
    a_topic(machine)
    before = machine.state.revision
    done(machine, Level(level))
    assert machine.state.revision > before
    done(machine, delete_topic(the_topic(machine)))
    assert machine.state.deleted != {}


def test_a_level_never_falls_and_an_unknown_one_is_refused():
    machine = a_machine(level=LEVEL)
    for number in range(1, LEVEL + 1):
        assert done(machine, Level(number)) == Levelled(LEVEL)
    assert refusal(machine, Level(0)) is MetadataCode.LEVEL_UNKNOWN
    assert refusal(machine, Level(LEVEL + 1)) is MetadataCode.LEVEL_UNKNOWN
    assert machine.state.level == LEVEL


FREE = NARROW.pack(2, 1, 0)


def test_a_life_that_is_given_up_is_recorded_and_raises_the_revision_once():
    machine = a_machine(NARROW, level=2)
    a_topic(machine)
    assert done(machine, ForgetLife(FREE, Revision(9))) == Forgotten(2 * N)
    assert machine.state.deleted == {FREE: (-9,)}
    assert done(machine, ForgetLife(FREE, Revision(9))) == Forgotten(2 * N)
    assert machine.state.deleted == {FREE: (-9,)}
    assert done(machine, ForgetLife(FREE, Revision(4))) == Forgotten(3 * N)  # another life
    assert done(machine, ForgetLife(FREE, Revision(4 * N + 1))) == Forgotten(4 * N)
    assert done(machine, ForgetLife(FREE, Revision(4 * N + 2))) == Forgotten(5 * N)
    assert machine.state.deleted == {FREE: (-9, -4, 4 * N + 1, 4 * N + 2)}  # of a branch, too


@pytest.mark.parametrize(
    ("namespace", "created", "code"),
    [
        (NARROW.pack(0, 0, 0), N, MetadataCode.LIFE_WANTED),
        (NARROW.pack(0, 0, 1), 9 * N, MetadataCode.LIFE_WANTED),
        (128, 1, MetadataCode.NAMESPACE_UNKNOWN),
        (-1, 1, MetadataCode.NAMESPACE_UNKNOWN),
        (FREE, 0, MetadataCode.NAMESPACE_UNKNOWN),
    ],
)
def test_what_metadata_wants_cannot_be_given_up(namespace, created, code):
    machine = a_machine(NARROW, level=2)
    a_topic(machine, partitions=2)
    assert refusal(machine, ForgetLife(Namespace(namespace), Revision(created))) is code


def test_an_older_life_below_a_wanted_one_can_be_given_up():
    machine = a_machine(NARROW, level=2)
    for name in ("a", "b"):
        a_topic(machine, name)
    done(machine, ForgetLife(NARROW.pack(0, 1, 0), Revision(1)))
    assert the_topic(machine, "b").created == 2 * N


def test_nothing_is_given_up_before_level_2():
    machine = a_machine(NARROW, level=1)
    done(machine, create_topic())
    assert refusal(machine, ForgetLife(FREE, Revision(1))) is MetadataCode.LEVEL_TOO_LOW


def test_metadata_knows_its_own_history_from_a_branch():
    machine = a_machine(NARROW, level=2)
    for number in range(3):
        done(machine, create_topic(f"t{number}"), checksum=bytes([number + 1]) * 16)
    theirs = stamp(2, b"\xee" * 16)
    state = machine.state
    assert [change.op for change in state.lineage] == [1, 2, 3, 4]
    assert state.order_of(state.lineage[2].revision) is Order.BEFORE
    assert state.order_of(theirs) is Order.BRANCHED
    assert state.order_of(stamp(3, b"\xee" * 16)) is Order.BRANCHED
    assert state.order_of(stamp(4, b"\xee" * 16)) is Order.AFTER
    assert state.order_of(Revision(9)) is Order.BEFORE


def test_a_changed_retention_raises_the_revision_from_level_2_on():
    """Entries of before keep the revisions that they had, in every replay."""
    machine = a_machine(NARROW, level=1)
    topic = a_topic(machine)
    done(machine, alter_topic(topic, retention=RetentionLimits(5, None)))
    assert machine.state.revision == 1
    done(machine, Level(2))
    done(machine, alter_topic(topic, retention=RetentionLimits(5, None)))
    done(machine, alter_topic(topic, options=(("a", "b"),)))
    assert machine.state.revision == N  # of the level
    altered = done(machine, alter_topic(topic, retention=FOREVER))
    assert (machine.state.revision, altered.revision) == (2 * N, 2 * N)
    assert machine.state.lineage[-1].revision == 2 * N


def test_the_newest_entries_are_remembered_and_no_more():
    machine = a_machine(NARROW, level=2)
    topic = a_topic(machine)
    for _ in range(LINEAGE_MAX + 5):
        done(machine, alter_topic(topic))
    assert len(machine.state.lineage) == LINEAGE_MAX
    assert machine.state.lineage[-1].op == LINEAGE_MAX + 7
    refusal(machine, create_topic())
    assert machine.state.lineage[-1].op == LINEAGE_MAX + 7
    machine.restore(machine.snapshot())
    assert len(machine.state.lineage) == LINEAGE_MAX
