"""Equal states have equal bytes, an image gives its state back, and nothing else is taken."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.partition.builders import (
    ANN,
    BITS,
    BOB,
    DAY,
    ONE,
    OTHER,
    P0,
    P1,
    SIZES,
    TWO,
    Chance,
    Log,
    a_log,
    a_machine,
    done,
    replayed,
)

from headrace.errors import CorruptFile, UnsupportedFormat
from headrace.journal.machine_seam import MachineState
from headrace.partition.machine import image


def a_busy_log() -> Log:
    """A log whose state has some of everything."""
    log = a_log(partitions=2)
    done(log.open(OTHER, 2, revision=2, topic_created=2))
    done(log.open(OTHER + 1, 2, revision=2, topic_created=2))
    done(log.close(OTHER + 1, 2, revision=3))
    done(log.append(1, 5, body=bytes(1_000)))
    log.seal()
    done(log.append(2, 5))
    done(log.set_schema(2))
    done(log.append(1, 5, writer=BOB, schema=2))
    done(log.stage(ONE, 0, rows=2))
    done(log.publish(log.topic().stages[ONE].receipt))
    done(log.stage(TWO, 0, at=P1, version=2))
    done(log.stage(TWO, 1, at=P0, version=2, rows=9))
    done(log.store("spark", 3, 7, hold=True))
    done(log.store("audit", 11))
    done(log.trim(2))
    log.seal()
    return log


def test_an_image_gives_its_state_back():
    log = a_busy_log()
    data = log.machine.snapshot().replicated
    state = image.decode(data, BITS)
    assert image.encode(state) == data
    mine = log.machine.state
    assert (state.revision, state.sealed_op, state.closed) == (3, 18, {OTHER + 1: 2})
    assert state.topics == mine.topics
    for at, partition in mine.partitions.items():
        found = state.partitions[at]
        assert found.runs == partition.runs
        assert found.writers == partition.writers
        assert found.cursors == partition.cursors
        assert found.versions == partition.versions
        assert (found.first, found.end) == (partition.first, partition.end)
        assert [(one.first, one.end, one.tip) for one in found.segments] == [
            (one.first, one.end, one.tip) for one in partition.segments
        ]


def test_the_state_before_the_first_op_has_an_image_too():
    data = a_machine().snapshot().replicated
    assert data == msgspec.msgpack.encode([1, 0, 0, [], [], []])
    assert image.encode(image.decode(data, BITS)) == data


def test_restore_of_nothing_is_the_state_before_the_first_op():
    log = a_busy_log()
    log.machine.restore(None)
    assert log.machine.digest() == a_machine().digest()
    assert log.machine.captures == {}


def test_a_failed_restore_changes_nothing():
    log = a_busy_log()
    before, captures = log.machine.digest(), dict(log.machine.captures)
    with pytest.raises(CorruptFile):
        log.machine.restore(MachineState(b"\x92\x01\x00"))
    assert log.machine.digest() == before
    assert log.machine.captures == captures


def test_the_snapshot_of_a_machine_is_all_replicated():
    assert a_busy_log().machine.snapshot().local == b""


# Equal states from different histories.


def test_the_order_in_which_things_came_does_not_count():
    one, other = Log(), Log()
    for log, step in ((one, 1), (other, -1)):
        for at in (P0, P1, OTHER)[::step]:
            done(log.open(at))
        for group in ("audit", "report", "spark")[::step]:
            done(log.store(group, 0))
        for writer in (ANN, BOB)[::step]:
            done(log.publish(writer=writer))
    assert one.machine.snapshot() == other.machine.snapshot()


def test_what_was_undone_leaves_no_trace():
    one, other = a_log(), a_log()
    done(one.stage(ONE))
    done(one.discard(ONE))
    done(one.store("spark", 0))
    done(one.delete("spark"))
    assert one.machine.snapshot() == other.machine.snapshot()


def test_rows_that_were_dropped_leave_no_trace():
    logs = [a_log() for _ in range(3)]
    for log in logs:
        for version in range(1, 4):
            done(log.append(version, 5))
    logs[0].purge()
    logs[1].trim(15)
    for first in (3, 9, 15):
        logs[2].trim(first)
    images = {log.machine.snapshot().replicated for log in logs}
    assert len(images) == 1


def test_writers_and_stages_that_left_leave_no_trace():
    one, other = a_log(), a_log()
    for log in (one, other):
        done(log.append(1))
    done(one.stage(ONE, writer=BOB))
    other.now += 1
    other.entries.append(one.entries[-1])
    for log in (one, other):
        log.now += 30 * DAY
        log.seal(expire=True)
        log.purge()
    assert one.machine.snapshot() == other.machine.snapshot()


def test_any_difference_shows_in_the_digest():
    def after(*acts):
        log = a_log(partitions=2)
        for act in acts:
            log.now += 1
            done(act(log))
        return log.machine.digest()

    digests = [
        after(),
        after(lambda log: log.append(1)),
        after(lambda log: log.append(1, body=b"other")),
        after(lambda log: log.append(1, 2)),
        after(lambda log: log.append(1, at=P1)),
        after(lambda log: log.append(1, writer=BOB)),
        after(lambda log: log.set_schema(2)),
        after(lambda log: log.stage()),
        after(lambda log: log.stage(rows=2)),
        after(lambda log: log.stage(at=P1)),
        after(lambda log: log.stage(version=2)),
        after(lambda log: log.stage(writer=BOB)),
        after(lambda log: log.stage(TWO)),
        after(lambda log: log.publish()),
        after(lambda log: log.publish(version=2)),
        after(lambda log: log.store("a", 0)),
        after(lambda log: log.store("b", 0)),
        after(lambda log: log.store("a", 0, 2)),
        after(lambda log: log.store("a", 0, hold=True)),
        after(lambda log: log.close()),
        after(lambda log: log.open(revision=2)),
        after(lambda log: log.seal()),
        after(lambda log: log.append(1), lambda log: log.trim(1)),
        after(lambda log: log.append(1), lambda log: log.seal()),
    ]
    assert len(set(digests)) == len(digests)


# Cached images are never stale.


@pytest.mark.parametrize("seed", range(12))
def test_after_every_op_the_digest_is_that_of_a_machine_that_encodes_for_the_first_time(seed):
    chance = Chance(Random(seed))
    for _ in range(150):
        chance.step()
        cached = chance.log.machine.digest()
        assert replayed(chance.log.entries).digest() == cached


@pytest.mark.parametrize("seed", range(30))
def test_a_machine_restored_midway_ends_where_the_others_do(seed):
    random = Random(seed)
    chance = Chance(random)
    results = [chance.step() for _ in range(400)]
    entries = chance.log.entries
    middle = random.randrange(len(entries))
    restored = a_machine(SIZES)
    restored.restore(MachineState(replayed(entries[:middle]).snapshot().replicated))
    again = []
    for entry in entries[middle:]:
        again.append(restored.apply(entry))
        if random.random() < 0.1:
            restored.restore(MachineState(restored.snapshot().replicated))
    assert again == results[middle:]
    assert restored.digest() == chance.log.machine.digest() == replayed(entries).digest()


@pytest.mark.parametrize("seed", range(4))
def test_captures_are_equal_wherever_the_log_is_applied(seed):
    chance = Chance(Random(seed))
    for _ in range(300):
        chance.step()
    other = replayed(chance.log.entries)
    assert other.captures == chance.log.machine.captures
    assert len(other.captures) > 3


# What is no image.

SCHEMA = [1, b"s"]
HASH = bytes(16)
PUBLISHER = [ANN, 1, HASH, [[0, 0, 1]]]
STAGE = [ONE, ANN, 2, [[9, 0, 1, 70, HASH]]]
TOPIC = [0, 1, [SCHEMA], [PUBLISHER], [STAGE], [[ANN, 5]]]
RUN = [1, 0, [[3, 2, 7, 50, 10], [5, 1, 8, 51, 10]]]
SEGMENT = [0, 3, 1, 2, 5, HASH, 40, 41, 100]
CURSOR = ["spark", 4, 1, False]
WRITER = [BOB, 51, [[1, 0, 3, HASH], [2, 3, 2, HASH]]]
PARTITION = [0, 3, 1, 1, 6, [[1, 0]], [RUN], [SEGMENT], [CURSOR], [WRITER]]


def an_image(topics=(TOPIC,), partitions=(PARTITION,), closed=((0, 2),)) -> bytes:
    return msgspec.msgpack.encode([1, 3, 5, closed, topics, partitions])


def changed(value: list, place: int, new: object) -> list:
    return [*value[:place], new, *value[place + 1 :]]


def with_topic(place: int, new: object) -> bytes:
    return an_image(topics=[changed(TOPIC, place, new)])


def with_partition(place: int, new: object) -> bytes:
    return an_image(partitions=[changed(PARTITION, place, new)])


def with_run(*pieces: list) -> bytes:
    return with_partition(6, [[1, 0, list(pieces)]])


WRONG = {
    "cut short": an_image()[:-1],
    "something after it": an_image() + b"\0",
    "a list too few": msgspec.msgpack.encode([1, 3, 5, [], []]),
    "a list too many": msgspec.msgpack.encode([1, 3, 5, [], [], [], []]),
    "a number in a wider form": an_image().replace(
        b"\x96\x01\x03\x05", b"\x96\x01\x03\xcc\x05"
    ),
    "a name that is not utf-8": an_image().replace(b"spark", b"\xffpark"),
    "a partition twice": an_image(partitions=[PARTITION, PARTITION]),
    "partitions out of order": an_image(
        partitions=[[1, 3, 1, 0, 0, [[1, 0]], [], [], [], []], PARTITION]
    ),
    "a topic twice": an_image(topics=[TOPIC, TOPIC]),
    "a closed one twice": an_image(closed=[(0, 2), (0, 2)]),
    "closed ones out of order": an_image(closed=[(1, 2), (0, 2)]),
    "a partition without its topic": an_image(topics=[]),
    "a partition that was closed": an_image(closed=[(0, 3)]),
    "a partition whose life has no number": with_partition(1, -1),
    "an op below 0": with_partition(7, [changed(SEGMENT, 3, -1)]),
    "a revision below 0": an_image().replace(b"\x96\x01\x03", b"\x96\x01\xff"),
    "a partition of another life of its topic": with_partition(2, 2),
    "a topic without partitions": an_image(topics=[TOPIC, [1, 1, [SCHEMA], [], [], []]]),
    "a topic without a schema": with_topic(2, []),
    "a schema version missing": with_topic(2, [[2, b"s"]]),
    "a publisher twice": with_topic(3, [PUBLISHER, PUBLISHER]),
    "a publisher with a short name": with_topic(3, [changed(PUBLISHER, 0, b"ann")]),
    "a version below 0": with_topic(3, [changed(PUBLISHER, 1, -1)]),
    "a content that is no hash": with_topic(3, [changed(PUBLISHER, 2, b"")]),
    "a stage twice": with_topic(4, [STAGE, STAGE]),
    "a stage without entries": with_topic(4, [changed(STAGE, 3, [])]),
    "a stage of a partition that is not open": with_topic(
        4, [changed(STAGE, 3, [[9, 1, 1, 70, HASH]])]
    ),
    "a staged entry without rows": with_topic(4, [changed(STAGE, 3, [[9, 0, 0, 70, HASH]])]),
    "a staged entry of a size below 0": with_topic(
        4, [changed(STAGE, 3, [[9, 0, 1, -1, HASH]])]
    ),
    "a writer with stages and no time": with_topic(5, []),
    "a time of a writer without stages": with_topic(5, [[ANN, 5], [BOB, 5]]),
    "an end below 0": with_partition(4, -1),
    "an end beyond all offsets": with_partition(4, 2**63),
    "a first below 0": with_partition(3, -1),
    "a first beyond the end": with_partition(3, 7),
    "no schema in force": with_partition(5, []),
    "a schema in force that is not the topic's": with_partition(5, [[2, 0]]),
    "a schema in force that is none": with_partition(5, [[0, 0], [1, 2]]),
    "a schema in force too late": with_partition(5, [[1, 2]]),
    "two schemas in force at one place": with_partition(5, [[0, 0], [1, 0]]),
    "a run without pieces": with_run(),
    "a hole in a run": with_run([3, 1, 7, 50, 10], [5, 1, 8, 51, 10]),
    "a piece without rows": with_run([3, 0, 7, 50, 10], [3, 3, 8, 51, 10]),
    "a piece of fewer than no rows": with_run([3, 5, 7, 50, 10], [8, -2, 8, 51, 10]),
    "a piece of a size below 0": with_run([3, 3, 7, 50, -1]),
    "a piece of more bytes than a body has": with_run([3, 3, 7, 50, 2**32]),
    "a run of no schema": with_partition(6, [changed(RUN, 0, 0)]),
    "a run of another schema": with_partition(6, [changed(RUN, 0, 2)]),
    "rows that are nowhere at the end": with_partition(4, 7),
    "rows that are nowhere before the run": with_partition(7, []),
    "rows that are nowhere between": with_partition(7, [changed(SEGMENT, 1, 2)]),
    "rows that are in two places": with_partition(7, [changed(SEGMENT, 1, 4)]),
    "a segment without rows": with_partition(7, [SEGMENT, [3, 3, *SEGMENT[2:]]]),
    "a segment twice": with_partition(7, [SEGMENT, SEGMENT]),
    "a segment of another schema": with_partition(7, [changed(SEGMENT, 2, 2)]),
    "a tip that is no checksum": with_partition(7, [changed(SEGMENT, 5, b"tip")]),
    "a cursor twice": with_partition(8, [CURSOR, CURSOR]),
    "cursors out of order": with_partition(8, [CURSOR, ["audit", 4, 1, False]]),
    "a writer twice": with_partition(9, [WRITER, WRITER]),
    "a writer with a short name": with_partition(9, [changed(WRITER, 0, b"bob")]),
    "a writer without a version": with_partition(9, [changed(WRITER, 2, [])]),
    "a window that begins below 1": with_partition(
        9, [changed(WRITER, 2, [[0, 0, 3, HASH], [1, 3, 2, HASH]])]
    ),
    "a gap in a window": with_partition(
        9, [changed(WRITER, 2, [[1, 0, 3, HASH], [3, 3, 2, HASH]])]
    ),
    "a window that is too long": with_partition(
        9, [changed(WRITER, 2, [[number, 0, 3, HASH] for number in range(1, 66)])]
    ),
}


def test_the_image_that_the_wrong_ones_are_made_of_is_right():
    assert image.encode(image.decode(an_image(), BITS)) == an_image()


@pytest.mark.parametrize("name", WRONG)
def test_an_image_that_is_never_written_is_never_taken(name):
    assert WRONG[name] != an_image()
    with pytest.raises(CorruptFile):
        image.decode(WRONG[name], BITS)


@pytest.mark.parametrize("rest", [[], [1, [], [], [], []], ["of", {"another": "kind"}]])
def test_another_format_is_named_whatever_follows(rest):
    data = msgspec.msgpack.encode([3, *rest])
    with pytest.raises(UnsupportedFormat) as caught:
        image.decode(data, BITS)
    assert (caught.value.expected, caught.value.found) == (2, 3)


def test_every_cut_of_an_image_is_corrupt():
    data = a_busy_log().machine.snapshot().replicated
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            image.decode(data[:size], BITS)


def is_taken(data: bytes) -> bool:
    """Say whether it is an image; then it is one way to write a state that goes on."""
    try:
        state = image.decode(data, BITS)
    except (CorruptFile, UnsupportedFormat):
        return False
    assert image.encode(state) == data
    log = Log(a_machine())
    log.machine.state = state
    for at, partition in list(state.partitions.items()):
        for writer in (ANN, BOB):
            known = partition.writers.get(writer)
            version = min(known.window[-1].version + 1, 2**64 - 1) if known else 1
            log.append(version, at=at, created=partition.created, writer=writer)
        topic = state.topics[at >> BITS]
        for stage in list(topic.stages.values()):
            log.publish(
                stage.receipt,
                writer=stage.writer,
                version=stage.version,
                at=at,
                created=topic.created,
            )
        log.store("spark", 1, 9)
        log.seal(expire=True)
        log.close(at, partition.created, revision=state.revision)
    log.restart()
    return True


def test_the_image_that_is_flipped_is_taken():
    assert is_taken(a_busy_log().machine.snapshot().replicated)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_image_is_another_state_or_corrupt(bit):
    right = a_busy_log().machine.snapshot().replicated
    refusals = 0
    for place in range(len(right)):
        wrong = bytearray(right)
        wrong[place] ^= 1 << bit
        refusals += not is_taken(bytes(wrong))
    assert refusals > len(right) // 4


@settings(deadline=None)
@given(st.data())
def test_an_image_with_any_wrong_bytes_is_another_state_or_corrupt(data):
    wrong = bytearray(a_busy_log().machine.snapshot().replicated)
    for _ in range(data.draw(st.integers(1, 4))):
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    is_taken(bytes(wrong))


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_an_image_or_corrupt(data):
    is_taken(data)


# Any number where a number stands.
EDGES = st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def with_any_number(draw, value):
    """The same value with one of its numbers replaced."""
    numbers = [place for place, one in enumerate(value) if isinstance(one, int | list)]
    if not numbers:
        return value
    place = draw(st.sampled_from(numbers))
    one = value[place]
    new = draw(with_any_number(one)) if isinstance(one, list) else draw(EDGES)
    return changed(value, place, new)


@settings(deadline=None, max_examples=300)
@given(with_any_number(msgspec.msgpack.decode(an_image())))
def test_an_image_with_any_number_is_another_state_or_corrupt(value):
    is_taken(msgspec.msgpack.encode(value))
