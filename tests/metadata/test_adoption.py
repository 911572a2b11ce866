"""Adopt takes what shards have for metadata's own, under the ids and lives that it had."""

import pytest
from tests.metadata.builders import (
    NARROW,
    a_machine,
    a_topic,
    create_topic,
    delete_topic,
    done,
    refusal,
    run,
    the_topic,
)

from headrace.metadata.commands import (
    Adopt,
    AdoptedEnd,
    AdoptedMore,
    AdoptedPartition,
    AdoptedStream,
    AdoptedTopic,
    CreateStream,
    ForgetLife,
    Level,
)
from headrace.metadata.results import Adopted, MetadataCode
from headrace.metadata.state import FOREVER, LEVEL, RECORDING_LEVEL, RetentionLimits
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import PartitionId, StreamId, TopicId
from headrace.model.revisions import COUNTER_MAX, STAMP_BITS, Order, stamp

N = 1 << STAMP_BITS
LOST = Revision(7 * N + 5)  # the newest revision that any shard has followed


def some(*created: tuple[int, int]) -> tuple[AdoptedPartition, ...]:
    return tuple(AdoptedPartition(PartitionId(one), Revision(at)) for one, at in created)


def a_lost_topic(**changes) -> AdoptedTopic:
    values = {
        "stream_id": StreamId(0),
        "id": TopicId(1),
        "name": "recovered-1-2",
        "created": Revision(2 * N + 1),
        "shard": GroupId(2),
        "schemas": (b"one", b"two"),
        "partitions": some((0, 2 * N + 1), (2, 6 * N)),
    }
    return AdoptedTopic(**(values | changes))


def adopting(*topics, ended=(), streams=(), more=(), floor=LOST) -> Adopt:
    return Adopt(floor, tuple(ended), tuple(streams), tuple(topics), tuple(more))


def short():
    """Metadata with one topic of two partitions, at revision 1."""
    machine = a_machine(NARROW, level=2)
    a_topic(machine, "kept", partitions=2)
    return machine


def test_a_floor_alone_raises_the_revision_above_it_and_forgets_the_branch():
    machine = short()
    target = machine.state.target()
    assert machine.state.order_of(Revision(N + 1)) is Order.BRANCHED
    assert done(machine, adopting()) == Adopted(8 * N)
    assert machine.state.target() == target
    assert machine.state.order_of(LOST) is Order.BEFORE
    assert machine.state.order_of(Revision(N + 1)) is Order.BEFORE
    assert done(machine, adopting()) == Adopted(9 * N)  # a repeat; it never falls
    assert done(machine, adopting(floor=Revision(3))) == Adopted(10 * N)


def test_a_lost_topic_comes_back_in_its_own_life():
    machine = short()
    done(machine, adopting(a_lost_topic()))
    topic = the_topic(machine, "recovered-1-2")
    assert (topic.id, topic.created, topic.shard) == (1, 2 * N + 1, 2)
    assert (topic.retention, topic.options) == (FOREVER, ())
    assert [each.data for each in topic.schemas] == [b"one", b"two"]
    revision = machine.state.revision
    assert [(each.id, each.created) for each in topic.partitions] == [
        (0, 2 * N + 1),
        (1, revision),  # between two that were there: new and empty
        (2, 6 * N),
    ]
    assert machine.state.partition_at(NARROW.pack(0, 1, 2)).created == 6 * N


def test_what_was_adopted_goes_on_as_any_other():
    machine = short()
    done(machine, adopting(a_lost_topic()))
    machine.restore(machine.snapshot())
    assert a_topic(machine, "next").id == 2
    assert the_topic(machine, "next").created > machine.state.lineage[0].revision
    done(machine, delete_topic(the_topic(machine, "recovered-1-2")))
    assert machine.state.deleted[NARROW.pack(0, 1, 2)] == (6 * N,)


def test_a_stream_comes_back_under_its_id():
    machine = short()
    stream = AdoptedStream(StreamId(2), "recovered-2")
    done(machine, adopting(a_lost_topic(stream_id=StreamId(2)), streams=[stream]))
    assert the_topic(machine, "recovered-1-2", "recovered-2").stream_id == 2
    done(machine, CreateStream("shop"))
    assert machine.state.stream("shop").id == 1


def test_partitions_and_schemas_of_a_topic_that_is_known_come_back():
    machine = short()
    topic = the_topic(machine, "kept")
    more = AdoptedMore(
        StreamId(0), topic.id, topic.created, (b"two",), some((2, 3 * N), (3, 3 * N))
    )
    done(machine, adopting(more=[more]))
    topic = the_topic(machine, "kept")
    assert [each.data for each in topic.schemas] == [topic.schemas[0].data, b"two"]
    assert [each.created for each in topic.partitions] == [N, N, 3 * N, 3 * N]
    target = machine.state.target()
    done(machine, adopting(more=[more]))
    assert machine.state.target() == target


def test_a_deletion_that_a_shard_has_followed_is_taken_over_and_its_ids_with_it():
    machine = short()
    kept = the_topic(machine, "kept")
    end = AdoptedEnd(StreamId(0), kept.id, kept.created)
    done(machine, adopting(a_lost_topic(id=kept.id), ended=[end]))
    assert the_topic(machine, "recovered-1-2").id == kept.id
    assert machine.state.topic("default", "kept") is None
    assert machine.state.deleted == {NARROW.pack(0, 0, 0): (N,), NARROW.pack(0, 0, 1): (N,)}
    machine.restore(machine.snapshot())
    target = machine.state.target()
    done(machine, adopting(a_lost_topic(id=kept.id), ended=[end]))
    assert machine.state.target() == target


def test_a_life_that_a_shard_has_closed_gives_its_number_to_a_new_or_a_later_one():
    machine = short()
    topic = the_topic(machine, "kept")
    closed = some((0, -N), (1, -N), (1, 3 * N))
    more = AdoptedMore(StreamId(0), topic.id, topic.created, (), closed)
    done(machine, adopting(more=[more]))
    (first, second) = the_topic(machine, "kept").partitions
    assert first.created == machine.state.revision
    assert second.created == 3 * N
    assert machine.state.deleted == {NARROW.pack(0, 0, 0): (N,), NARROW.pack(0, 0, 1): (N,)}
    target = machine.state.target()
    done(machine, adopting(more=[more]))
    assert machine.state.target() == target


UNFIT = {
    "an id that is taken": a_lost_topic(id=TopicId(0)),
    "an id with too many bits": a_lost_topic(id=TopicId(4)),
    "a stream that is not there": a_lost_topic(stream_id=StreamId(1)),
    "a name that is taken": a_lost_topic(name="kept"),
    "no name": a_lost_topic(name="/"),
    "no shard": a_lost_topic(shard=GroupId(0)),
    "no schema": a_lost_topic(schemas=()),
    "no partition": a_lost_topic(partitions=()),
    "a partition with too many bits": a_lost_topic(partitions=some((8, N))),
    "a partition above the floor": a_lost_topic(partitions=some((0, 9 * N))),
    "a topic above the floor": a_lost_topic(created=Revision(9 * N)),
    "a partition twice": a_lost_topic(partitions=some((0, N), (0, N + 1))),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_refused_whole(name):
    fits = a_lost_topic(id=TopicId(2), name="fits")
    assert refusal(short(), adopting(fits, UNFIT[name])) is MetadataCode.NOT_ADOPTED


def test_a_stream_id_or_name_that_is_taken_is_refused():
    for stream in (AdoptedStream(StreamId(0), "other"), AdoptedStream(StreamId(1), "default")):
        assert refusal(short(), adopting(streams=[stream])) is MetadataCode.NOT_ADOPTED


def test_a_life_that_was_deleted_is_not_adopted():
    machine = short()
    gone = a_topic(machine, "gone")
    done(machine, delete_topic(gone))
    lost = a_lost_topic(id=gone.id, created=gone.created, partitions=some((0, gone.created)))
    assert refusal(machine, adopting(lost)) is MetadataCode.NOT_ADOPTED


def test_no_floor_is_so_high_that_nothing_is_above_it():
    floor = stamp(COUNTER_MAX, bytes(16))
    for wrong in (floor, Revision(2**60), Revision(-1)):
        assert refusal(short(), adopting(floor=wrong)) is MetadataCode.NOT_ADOPTED


def test_an_adoption_takes_the_log_to_level_2():
    """In one entry: by older rules retention would go on, and a Level alone hides a loss."""
    machine = a_machine(NARROW, level=1)
    done(machine, create_topic())
    assert done(machine, adopting()) == Adopted(8 * N)
    assert machine.state.level == RECORDING_LEVEL
    machine.restore(machine.snapshot())
    assert [one.revision for one in machine.state.lineage] == [8 * N]


def test_an_adoption_takes_no_log_to_a_lower_level():
    machine = a_machine(NARROW, level=LEVEL)
    done(machine, adopting())
    assert machine.state.level == LEVEL


def test_an_adoption_keeps_the_rows_of_every_topic():
    """What metadata knows of retention may be of an earlier moment."""
    machine = a_machine(NARROW, level=2)
    kept = RetentionLimits(5, 6)
    a_topic(machine, "known", retention=kept)
    done(machine, adopting(a_lost_topic()))
    found = {topic.name: topic.retention for topic in machine.state.topics.values()}
    assert found == {"known": FOREVER, "recovered-1-2": FOREVER}


def test_two_replicas_adopt_alike():
    one, other = short(), short()
    command = adopting(a_lost_topic(), streams=[AdoptedStream(StreamId(1), "recovered-1")])
    assert run(one, command) == run(other, command)
    assert one.digest() == other.digest()
    other.restore(one.snapshot())
    assert other.state == one.state


def test_a_record_of_a_plain_count_stands_in_no_ones_way_unless_an_operator_made_it():
    """It may be of a history that was lost."""
    machine = a_machine(NARROW, level=1)
    a_topic(machine, "kept")
    a_topic(machine, "gone")
    done(machine, Level(2))
    done(machine, delete_topic(the_topic(machine, "gone")))
    place = NARROW.pack(0, 1, 0)
    assert machine.state.deleted == {place: (2,)}
    plain = a_lost_topic(created=Revision(2), partitions=some((0, 2)))
    twin = a_machine(NARROW, level=2)
    twin.restore(machine.snapshot())
    done(machine, adopting(plain))
    assert the_topic(machine, "recovered-1-2").created == 2
    machine.restore(machine.snapshot())
    done(twin, ForgetLife(place, Revision(2)))
    assert refusal(twin, adopting(plain)) is MetadataCode.NOT_ADOPTED
    done(twin, adopting())
    assert twin.state.is_deleted(place, Revision(2))


def test_what_ends_and_what_is_adopted_may_have_one_plain_count():
    """Two histories both gave it, to topics of two shards."""
    machine = a_machine(NARROW, level=1)
    topic = a_topic(machine, "gone")
    ended = AdoptedEnd(topic.stream_id, topic.id, topic.created)
    other = a_lost_topic(id=topic.id, created=Revision(1), partitions=some((0, 1)))
    done(machine, adopting(other, ended=[ended]))
    assert machine.state.level == RECORDING_LEVEL
    assert machine.state.deleted == {}
    machine.restore(machine.snapshot())
    assert the_topic(machine, "recovered-1-2").created == 1
