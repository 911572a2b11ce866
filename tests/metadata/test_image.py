"""Equal states have equal bytes, an image gives its state back, and nothing else is taken."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metadata.builders import (
    NARROW,
    WIDE,
    a_machine,
    a_topic,
    add_partitions,
    add_schema,
    alter_topic,
    create_topic,
    delete_topic,
    done,
    run,
    the_topic,
)

from headrace.errors import Corrupt, CorruptFile, UnsupportedFormat
from headrace.metadata import image
from headrace.metadata.commands import CreateStream, DeleteStream, Level
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import RetentionLimits


def a_busy_machine(level: int = 1) -> MetadataMachine:
    machine = a_machine(level=level)
    done(machine, CreateStream("shop"))
    topic = a_topic(
        machine, partitions=2, retention=RetentionLimits(5, None), options=(("a", ""),)
    )
    done(machine, add_partitions(topic, 1))
    done(machine, add_schema(topic, b"two"))
    a_topic(machine, "clicks", stream="shop", shard=2)
    return machine


def test_an_image_gives_its_state_back():
    machine = a_busy_machine()
    state = image.decode(machine.snapshot(), WIDE)
    assert state == machine.state
    assert image.encode(state) == machine.snapshot()


def test_a_restored_machine_goes_on_as_the_other_does():
    one, other = a_busy_machine(), a_machine()
    done(one, delete_topic(the_topic(one)))
    other.restore(one.snapshot())
    for machine in (one, other):
        a_topic(machine, "next")
        a_topic(machine, "after")
        done(machine, CreateStream("third"))
    assert one.digest() == other.digest()


def test_restore_of_nothing_is_the_state_before_the_first_op():
    machine = a_busy_machine()
    machine.restore(None)
    assert machine.digest() == a_machine(level=1).digest()
    assert machine.state == a_machine(level=1).state


def test_states_that_are_equal_have_equal_bytes_whatever_came_before():
    one, other = a_machine(), a_machine()
    # Both end with a at 0, c at 1, revision 4, and streams x at 1, y at 2.
    for command in (CreateStream("x"), CreateStream("y"), create_topic("a"), create_topic("b")):
        done(one, command)
    done(one, delete_topic(the_topic(one, "b")))
    a_topic(one, "c")

    for command in (CreateStream("q"), CreateStream("y"), create_topic("a"), create_topic("d")):
        done(other, command)
    done(other, DeleteStream("q", with_topics=False))
    done(other, delete_topic(the_topic(other, "d")))
    done(other, CreateStream("x"))
    a_topic(other, "c", options=(("k", "v"),))
    assert one.state != other.state
    done(other, alter_topic(the_topic(other, "c"), options=(("k", None),)))

    assert list(one.state.streams) != list(other.state.streams)
    assert one.state == other.state
    assert one.snapshot() == other.snapshot()
    assert one.digest() == other.digest()


def test_the_order_in_which_options_were_given_does_not_count():
    one, other = a_machine(), a_machine()
    a_topic(one, options=(("a", "1"), ("b", "2")))
    topic = a_topic(other, options=(("b", "2"),))
    done(other, alter_topic(topic, options=(("a", "1"),)))
    assert one.digest() == other.digest()


def test_any_difference_shows_in_the_digest():
    digests = [
        machine.digest()
        for machine in (
            a_machine(),
            with_topic(),
            with_topic(schema=b"other"),
            with_topic(partitions=2),
            with_topic(shard=2),
            with_topic(retention=RetentionLimits(1, None)),
            with_topic(retention=RetentionLimits(None, 1)),
            with_topic(options=(("a", "b"),)),
            with_topic(name="b"),
        )
    ]
    later = a_machine()
    run(later, create_topic(), timestamp=1)
    assert len({*digests, later.digest()}) == len(digests) + 1


def with_topic(**wanted) -> MetadataMachine:
    machine = a_machine()
    a_topic(machine, **wanted)
    return machine


@pytest.mark.parametrize(("level", "count"), [(1, 7), (2, 9), (3, 9)])
def test_three_lists_are_kept_free(level, count):
    fields = msgspec.msgpack.decode(a_busy_machine(level).snapshot())
    assert len(fields) == count
    assert fields[4:7] == [[], [], []]


def test_a_state_of_level_1_keeps_its_format_until_the_level_rises():
    machine = a_busy_machine(level=1)
    before = machine.snapshot()
    machine.restore(before)
    assert machine.snapshot() == before
    assert msgspec.msgpack.decode(before)[0] == 1
    done(machine, Level(2))
    raised = machine.snapshot()
    *same, deleted, lineage = msgspec.msgpack.decode(raised)
    assert same == [2, 1 << 20, *msgspec.msgpack.decode(before)[2:]]
    assert (deleted, lineage) == ([], [[1, bytes(16), machine.state.revision]])
    machine.restore(raised)
    assert machine.snapshot() == raised


@pytest.mark.parametrize("rest", [[], [1, [], [], [], [], [], []], ["of", {"another": "kind"}]])
def test_another_format_is_named_whatever_follows(rest):
    data = msgspec.msgpack.encode([image.FORMAT + 1, *rest])
    with pytest.raises(UnsupportedFormat) as caught:
        image.decode(data, WIDE)
    assert (caught.value.expected, caught.value.found) == (image.FORMAT, image.FORMAT + 1)


def test_a_failed_restore_changes_nothing():
    machine = a_busy_machine()
    before = machine.digest()
    with pytest.raises(Corrupt):
        machine.restore(b"\x92\x01\x00")
    assert machine.digest() == before


STREAM = [0, "default", 0]
SCHEMA = [1, b"s", 1, 5]
TOPIC = [0, 0, "t", 1, 5, 1, [None, None], [], [SCHEMA], [[0, 1]]]


def an_image(streams=(STREAM,), topics=(TOPIC,), tail=((), (), ())) -> bytes:
    return msgspec.msgpack.encode([1, 1, list(streams), list(topics), *tail])


CHANGE = [4, b"c" * 16, 9]


def a_later_image(deleted=((7, 3),), lineage=(CHANGE,)) -> bytes:
    """Give one of level 2; the topic is at namespace 0, of revision 1."""
    lists = [[], [], [], list(deleted), list(lineage)]
    return msgspec.msgpack.encode([2, 9, [STREAM], [TOPIC], *lists])


def changed(place: int, value: object) -> list[object]:
    return [*TOPIC[:place], value, *TOPIC[place + 1 :]]


WRONG = {
    "cut short": an_image()[:-1],
    "something after it": an_image() + b"\0",
    "a list too few": an_image(tail=((), ())),
    "a list too many": an_image(tail=((), (), (), ())),
    "a reserved list in use": an_image(tail=((), (1,), ())),
    "a stream twice": an_image(streams=[STREAM, STREAM]),
    "streams out of order": an_image(streams=[[1, "b", 0], STREAM]),
    "two streams of one name": an_image(streams=[STREAM, [1, "default", 0]]),
    "a stream id below 0": an_image(streams=[[-1, "b", 0], STREAM]),
    "a stream id too large": an_image(streams=[STREAM, [4, "b", 0]]),
    "a topic twice": an_image(topics=[TOPIC, TOPIC]),
    "two topics of one name": an_image(topics=[TOPIC, changed(1, 1)]),
    "topics out of order": an_image(topics=[[0, 1, "u", *TOPIC[3:]], TOPIC]),
    "a topic id too large": an_image(topics=[changed(1, 4)]),
    "a topic without its stream": an_image(topics=[changed(0, 1)]),
    "a topic without partitions": an_image(topics=[changed(9, [])]),
    "a partition missing": an_image(topics=[changed(9, [[1, 1]])]),
    "too many partitions": an_image(topics=[changed(9, [[n, 1] for n in range(9)])]),
    "a topic without a schema": an_image(topics=[changed(8, [])]),
    "a schema version missing": an_image(topics=[changed(8, [[2, b"s", 1, 5]])]),
    "a number in a wider form": an_image().replace(b"\x97\x01\x01", b"\x97\x01\xcc\x01"),
    "deleted lives in format 1": an_image(tail=((), (), (), [[7, 3]])),
    "format 2 without its own lists": msgspec.msgpack.encode(
        [2, 9, [STREAM], [TOPIC], *[()] * 3]
    ),
    "a deleted life twice": a_later_image([[7, 3], [7, 3]]),
    "deleted lives out of order": a_later_image([[7, 3], [6, 3]]),
    "a deleted namespace too large": a_later_image([[128, 3]]),
    "a partition that was deleted": a_later_image([[0, 1]]),
    "an entry twice": a_later_image(lineage=[CHANGE, CHANGE]),
    "entries out of order": a_later_image(lineage=[CHANGE, [3, *CHANGE[1:]]]),
    "too many entries": a_later_image(lineage=[[op, *CHANGE[1:]] for op in range(1, 1026)]),
    "a checksum cut short": a_later_image(lineage=[[4, b"c", 9]]),
    "a name that is not utf-8": an_image().replace(b"default", b"\xffefault"),
}


def test_the_image_that_the_wrong_ones_are_made_of_is_right():
    for right in (an_image(), a_later_image()):
        assert image.encode(image.decode(right, NARROW)) == right


@pytest.mark.parametrize("name", WRONG)
def test_an_image_that_is_never_written_is_never_taken(name):
    assert WRONG[name] != an_image()
    with pytest.raises(CorruptFile):
        image.decode(WRONG[name], NARROW)


@given(st.binary())
def test_any_bytes_are_an_image_or_corrupt(data):
    try:
        state = image.decode(data, NARROW)
    except Corrupt:
        return
    assert image.encode(state) == data


@given(st.data())
def test_a_changed_image_is_another_state_or_corrupt(data):
    right = a_busy_machine().snapshot()
    wrong = bytearray(right)
    wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        state = image.decode(bytes(wrong), WIDE)
    except Corrupt:
        return
    assert image.encode(state) == wrong
