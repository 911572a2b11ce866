"""Transactions: rows appear all at once and once, or not at all."""

from dataclasses import dataclass

import pytest
from tests.partition.builders import (
    ANN,
    BOB,
    DAY,
    HOUR,
    ONE,
    OTHER,
    P0,
    P1,
    P2,
    THREE,
    TWO,
    Log,
    a_log,
    done,
    refused,
)
from xxhash import xxh3_128_digest

from headrace.errors import CorruptFile
from headrace.model.results import (
    AppendResult,
    DiscardResult,
    PartitionRange,
    PublishResult,
    Receipt,
    StageResult,
)
from headrace.partition.machine import image, transactions
from headrace.partition.machine.operations import STAGE, STAGE_HEADER_SIZE, encode_stage
from headrace.partition.machine.results import RefusalCode
from headrace.partition.machine.state import Publisher, Stage, StagedEntry
from headrace.partition.machine.transactions import (
    IDLE_MAX_US,
    PUBLISHER_COUNT_MAX,
    STAGE_COUNT_MAX,
)


def a_receipt(log: Log, stage_id: bytes = ONE, at: int = P0) -> Receipt:
    return log.topic(at).stages[stage_id].receipt


@dataclass(frozen=True, slots=True)
class Placed:
    """What a piece says, without its size."""

    first: int
    row_count: int
    op: int
    timestamp: int


def placed(log: Log, at: int = P0) -> list[Placed]:
    return [Placed(*piece[:4]) for piece in log.pieces(at)]


def test_staged_rows_have_no_offsets():
    log = a_log()
    staged = log.stage(ONE, 0, rows=5)
    assert isinstance(staged, StageResult)
    assert log.partition().end == 0
    assert log.pieces() == []
    assert log.append(1, 2) == AppendResult(0, 2, repeated=False)


def test_the_receipt_counts_and_folds_the_body_checksums_in_order():
    log = a_log()
    digest = bytes(16)
    for number, (rows, body) in enumerate([(5, b"a"), (2, b"b"), (1, b"c")]):
        digest = xxh3_128_digest(digest + xxh3_128_digest(encode_stage(ONE, number) + body))
        staged = log.stage(ONE, number, rows=rows, body=body)
        assert not staged.repeated
    assert staged.receipt == Receipt(ONE, 3, 8, digest)


def test_a_repeated_stage_op_adds_nothing():
    log = a_log()
    done(log.stage(ONE, 0, body=b"a"))
    last = log.stage(ONE, 1, body=b"b")
    before = log.machine.digest()
    assert log.stage(ONE, 0, body=b"a") == StageResult(last.receipt, repeated=True)
    assert log.stage(ONE, 1, body=b"b") == StageResult(last.receipt, repeated=True)
    assert log.machine.digest() == before


def test_a_stage_op_with_other_content_is_a_conflict():
    log = a_log()
    done(log.stage(ONE, 0, body=b"a"))
    assert refused(log.stage(ONE, 0, body=b"other"), RefusalCode.WRITER_CONFLICT)


def test_the_ops_of_a_stage_are_numbered_from_0_without_gaps():
    log = a_log()
    assert refused(log.stage(ONE, 1), RefusalCode.OUT_OF_ORDER, version=1, expected=0)
    done(log.stage(ONE, 0))
    for number in (2, 2**32 - 1):
        result = log.stage(ONE, number)
        assert refused(result, RefusalCode.OUT_OF_ORDER, version=number, expected=1)
        assert result.is_retryable
    done(log.stage(ONE, 1))


@pytest.mark.parametrize("thief", [{"writer": BOB}, {"version": 2}])
def test_a_stage_belongs_to_its_writer_and_version(thief):
    log = a_log()
    done(log.stage(ONE, 0, body=b"a"))
    assert refused(log.stage(ONE, 1, body=b"b", **thief), RefusalCode.WRITER_CONFLICT)
    assert refused(log.stage(ONE, 0, body=b"a", **thief), RefusalCode.WRITER_CONFLICT)
    assert a_receipt(log).op_count == 1


def test_publish_gives_exactly_those_rows_offsets_in_that_order_and_in_one_op():
    log = a_log()
    done(log.append(1, 10, writer=BOB))
    done(log.stage(ONE, 0, rows=3))
    done(log.stage(TWO, 0, rows=2))
    done(log.stage(ONE, 1, rows=4))
    done(log.append(2, 1, writer=BOB))
    done(log.stage(THREE, 0, rows=7))
    result = log.publish(a_receipt(log, TWO), a_receipt(log, ONE))
    assert result == PublishResult((PartitionRange(P0, 11, 20),), repeated=False, same=True)
    assert placed(log)[2:] == [
        Placed(11, 2, 4, log.now),
        Placed(13, 3, 3, log.now),
        Placed(16, 4, 5, log.now),
    ]
    assert [piece.timestamp for piece in log.pieces()][1] < log.now
    assert log.append(3, writer=BOB) == AppendResult(20, 21, repeated=False)


def test_a_stage_may_hold_rows_of_several_partitions():
    log = a_log(partitions=3)
    done(log.append(1, 5, writer=BOB, at=P1))
    done(log.stage(ONE, 0, rows=2, at=P1))
    done(log.stage(ONE, 1, rows=3, at=P0))
    done(log.stage(ONE, 2, rows=4, at=P0))
    done(log.stage(ONE, 3, rows=1, at=P1))
    result = log.publish(a_receipt(log))
    ranges = (PartitionRange(P1, 5, 8), PartitionRange(P0, 0, 7))
    assert result == PublishResult(ranges, repeated=False, same=True)
    assert [log.partition(at).end for at in (P0, P1, P2)] == [7, 8, 0]


def test_publish_may_come_by_the_namespace_of_any_partition_of_its_topic():
    log = a_log(partitions=2)
    done(log.stage(ONE, 0, at=P1))
    assert log.publish(a_receipt(log), at=P2).ranges == (PartitionRange(P1, 0, 1),)


def test_everything_else_of_that_writer_at_or_below_that_version_is_dropped():
    log = a_log()
    log.stage(b"lower...........", version=4)
    log.stage(ONE, version=5)
    log.stage(b"same............", version=5)
    log.stage(b"higher..........", version=6)
    log.stage(b"another's.......", version=1, writer=BOB)
    done(log.publish(a_receipt(log), version=5))
    assert set(log.topic().stages) == {b"higher..........", b"another's......."}
    assert log.partition().end == 1
    done(log.publish(version=6))
    assert set(log.topic().stages) == {b"another's......."}
    assert set(log.topic().staged_at) == {BOB}


def test_a_publish_of_nothing_is_a_version_like_any_other():
    log = a_log()
    assert log.publish(version=0) == PublishResult((), repeated=False, same=True)
    assert log.publish(version=0) == PublishResult((), repeated=True, same=True)
    done(log.publish(version=2**64 - 1))
    log.restart()
    assert log.publish(version=2**64 - 1).repeated
    assert refused(log.stage(version=2**64 - 1), RefusalCode.SUPERSEDED)


def two_stages() -> Log:
    """Stages ONE and TWO of Ann's version 1, and THREE of Bob."""
    log = a_log()
    done(log.stage(ONE, 0, rows=3, body=b"a"))
    done(log.stage(ONE, 1, rows=1, body=b"b"))
    done(log.stage(TWO, 0, rows=2))
    done(log.stage(THREE, 0, rows=9, writer=BOB))
    return log


WRONG = {
    "absent": lambda log: Receipt(b"x" * 16, 1, 1, bytes(16)),
    "absent, by no stage id": lambda log: Receipt(b"", 1, 1, bytes(16)),
    "absent, by a long id": lambda log: Receipt(bytes(10_000), 1, 1, bytes(16)),
    "of another writer": lambda log: a_receipt(log, THREE),
    "fewer ops": lambda log: Receipt(TWO, 0, 2, a_receipt(log, TWO).digest),
    "more ops": lambda log: Receipt(TWO, 2, 2, a_receipt(log, TWO).digest),
    "other rows": lambda log: Receipt(TWO, 1, 3, a_receipt(log, TWO).digest),
    "another digest": lambda log: Receipt(TWO, 1, 2, bytes(16)),
    "numbers that none has": lambda log: Receipt(TWO, -1, 2**64 - 1, b""),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("is_first", [True, False])
def test_publish_is_refused_whole_if_one_stage_is_not_as_said(wrong, is_first):
    log = two_stages()
    receipts = [a_receipt(log, ONE), WRONG[wrong](log)]
    if is_first:
        receipts.reverse()
    result = log.publish(*receipts)
    assert refused(result, RefusalCode.STAGE_MISSING)
    assert result.fields["stage_id"] == WRONG[wrong](log).stage_id[:16].hex()
    assert log.partition().end == 0
    assert set(log.topic().stages) == {ONE, TWO, THREE}
    assert done(log.publish(a_receipt(log, ONE), a_receipt(log, TWO))).ranges == (
        PartitionRange(P0, 0, 6),
    )


def test_publish_is_refused_whole_if_a_stage_grew_since():
    log = two_stages()
    before = a_receipt(log, TWO)
    done(log.stage(TWO, 1))
    assert refused(log.publish(before), RefusalCode.STAGE_MISSING, stage_id=TWO.hex())


def test_publish_is_refused_whole_if_a_stage_is_of_another_version():
    log = two_stages()
    assert refused(log.publish(a_receipt(log), version=2), RefusalCode.STAGE_MISSING)


def test_publish_is_refused_whole_if_a_stage_is_named_twice():
    log = two_stages()
    one, two = a_receipt(log, ONE), a_receipt(log, TWO)
    assert refused(log.publish(one, two, one), RefusalCode.STAGE_REPEATED, stage_id=ONE.hex())
    assert log.partition().end == 0


def test_publish_is_refused_whole_if_a_stage_was_discarded():
    log = two_stages()
    one, two = a_receipt(log, ONE), a_receipt(log, TWO)
    assert log.discard(TWO) == DiscardResult(1)
    assert refused(log.publish(one, two), RefusalCode.STAGE_MISSING, stage_id=TWO.hex())


def test_the_last_version_is_answered_again():
    log = two_stages()
    one, two = a_receipt(log, ONE), a_receipt(log, TWO)
    first = log.publish(one, two)
    done(log.append(1, 5, writer=BOB))
    before = log.machine.digest()
    for receipts, same in [
        ((one, two), True),
        ((two, one), False),
        ((one,), False),
        ((), False),
    ]:
        result = log.publish(*receipts)
        assert result == PublishResult(first.ranges, repeated=True, same=same)
    assert log.machine.digest() == before


def test_the_last_version_is_answered_again_after_a_restart_and_a_seal():
    log = two_stages()
    one = a_receipt(log, ONE)
    first = log.publish(one)
    log.now += 400 * DAY
    log.seal(expire=True)
    log.restart()
    assert log.publish(one) == PublishResult(first.ranges, repeated=True, same=True)


def test_a_lower_version_is_superseded():
    log = a_log()
    done(log.publish(version=5))
    for version in (0, 4):
        result = log.publish(version=version)
        assert refused(result, RefusalCode.SUPERSEDED, version=version, published=5)
    done(log.publish(version=7))
    assert refused(log.publish(version=5), RefusalCode.SUPERSEDED)
    done(log.publish(version=1, writer=BOB))


def test_a_stage_at_or_below_the_published_version_is_superseded():
    log = a_log()
    done(log.stage(ONE, 0, version=5))
    done(log.publish(a_receipt(log), version=5))
    for version in (0, 4, 5):
        assert refused(log.stage(ONE, 0, version=version), RefusalCode.SUPERSEDED, published=5)
        assert refused(log.stage(TWO, 0, version=version), RefusalCode.SUPERSEDED, published=5)
    done(log.stage(ONE, 0, version=6))
    done(log.stage(TWO, 0, version=5, writer=BOB))


def test_append_and_publish_versions_of_one_writer_do_not_meet():
    log = a_log()
    done(log.publish(version=9))
    done(log.append(1))
    assert refused(log.append(10), RefusalCode.OUT_OF_ORDER)


def test_topics_do_not_meet():
    log = a_log()
    done(log.open(OTHER))
    done(log.stage(ONE, 0))
    assert refused(log.publish(a_receipt(log), at=OTHER), RefusalCode.STAGE_MISSING)
    assert log.discard(ONE, at=OTHER) == DiscardResult(0)
    done(log.stage(ONE, 0, writer=BOB, at=OTHER))
    done(log.publish(a_receipt(log), version=1))
    assert ONE in log.topic(OTHER).stages


def test_discard_forgets_by_id_and_only_the_writers_own():
    log = two_stages()
    assert log.discard(ONE, THREE, b"absent", ONE, b"") == DiscardResult(1)
    assert set(log.topic().stages) == {TWO, THREE}
    assert log.discard(THREE, writer=BOB) == DiscardResult(1)
    assert set(log.topic().staged_at) == {ANN}
    assert log.discard(THREE, writer=BOB) == DiscardResult(0)


def test_a_discarded_stage_may_begin_anew():
    log = two_stages()
    log.discard(ONE)
    assert refused(log.stage(ONE, 2), RefusalCode.OUT_OF_ORDER, expected=0)
    done(log.stage(ONE, 0, body=b"new"))


def test_commands_of_a_topic_name_its_life():
    log = two_stages()
    one = a_receipt(log)
    for created in (0, 2, 2**64 - 1):
        assert refused(log.publish(one, created=created), RefusalCode.TOPIC_UNKNOWN)
        assert refused(log.discard(ONE, created=created), RefusalCode.TOPIC_UNKNOWN)
        assert refused(log.set_schema(2, created=created), RefusalCode.TOPIC_UNKNOWN)
    assert refused(log.publish(one, at=OTHER), RefusalCode.TOPIC_UNKNOWN, topic=1)
    assert refused(log.publish(one, at=2**64 - 1), RefusalCode.TOPIC_UNKNOWN)


def test_stages_expire_only_at_a_seal_that_says_so():
    log = two_stages()
    log.now += 2 * DAY
    assert log.seal().expired_stages == 0
    assert log.seal(expire=True).expired_stages == 3
    assert (log.topic().stages, log.topic().staged_at) == ({}, {})


def test_an_expired_stage_makes_publish_fail_and_never_shrink():
    log = two_stages()
    one, two = a_receipt(log, ONE), a_receipt(log, TWO)
    log.now += 2 * DAY
    log.seal(expire=True)
    assert refused(log.publish(one, two), RefusalCode.STAGE_MISSING, stage_id=ONE.hex())
    done(log.stage(ONE, 0, rows=3, body=b"a"))
    assert refused(log.publish(one), RefusalCode.STAGE_MISSING)
    assert log.partition().end == 0


def test_stages_expire_after_24_hours_and_not_at_them():
    assert IDLE_MAX_US == DAY
    log = a_log()
    done(log.stage(ONE, 0))
    staged_at = log.now
    log.now = staged_at + DAY - 1
    assert log.seal(expire=True).expired_stages == 0
    assert log.now == staged_at + DAY
    assert log.seal(expire=True).expired_stages == 1


def test_further_stages_of_a_writer_extend_all_of_its_own():
    log = two_stages()
    for number in range(2, 5):
        log.now += 23 * HOUR
        done(log.stage(TWO, number - 1))
        log.seal(expire=True)
    assert set(log.topic().stages) == {ONE, TWO}


def test_a_restart_does_not_extend_a_stage():
    log = two_stages()
    log.now += 13 * HOUR
    log.seal()
    log.restart()
    log.now += 13 * HOUR
    assert log.seal(expire=True).expired_stages == 3


def test_stages_survive_snapshot_and_restore():
    log = two_stages()
    one = a_receipt(log)
    log.restart()
    assert a_receipt(log) == one
    assert log.stage(ONE, 0, rows=3, body=b"a").repeated
    assert refused(log.stage(ONE, 1, body=b"other"), RefusalCode.WRITER_CONFLICT)
    done(log.stage(ONE, 2, rows=5))
    assert log.publish(a_receipt(log)).ranges == (PartitionRange(P0, 0, 9),)


def test_stage_rows_are_judged_as_appended_ones_are():
    log = a_log()
    assert refused(log.stage(rows=0), RefusalCode.EMPTY)
    assert refused(log.stage(schema=0), RefusalCode.SCHEMA_UNKNOWN)
    assert refused(log.stage(schema=2), RefusalCode.SCHEMA_UNKNOWN)
    assert refused(log.stage(at=P1), RefusalCode.PARTITION_UNKNOWN)
    assert refused(log.stage(created=2), RefusalCode.RECREATED)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x" * STAGE_HEADER_SIZE,
        encode_stage(ONE, 0)[:-1],
        encode_stage(ONE, 0),
        encode_stage(ONE, 0)[:-1] + b"\x01rows",
    ],
)
def test_a_stage_without_its_opening_or_without_rows_is_malformed(body):
    log = a_log()
    header = {"namespace": P0, "created": 1, "schema_id": 1, "row_count": 1}
    assert refused(log.send(STAGE, body, **header), RefusalCode.MALFORMED, operation=STAGE)


def test_a_schema_set_between_stage_and_publish_is_in_force_for_the_rows():
    log = a_log()
    done(log.append(1, 2))
    done(log.stage(ONE, 0, rows=3, schema=1))
    done(log.set_schema(2))
    done(log.publish(a_receipt(log)))
    assert [(run.version, run.first, run.end) for run in log.partition().runs] == [
        (1, 0, 2),
        (2, 2, 5),
    ]


def test_rows_staged_for_a_life_that_ended_are_never_given_to_the_next():
    log = a_log(partitions=2)
    done(log.stage(ONE, 0, at=P0))
    done(log.stage(ONE, 1, at=P1))
    done(log.stage(TWO, 0, at=P1))
    one, two = a_receipt(log, ONE), a_receipt(log, TWO)
    done(log.close(P0, revision=2))
    assert list(log.topic().stages) == [TWO]
    done(log.open(P0, 3, revision=3))
    assert refused(log.publish(one, two), RefusalCode.STAGE_MISSING, stage_id=ONE.hex())
    assert log.publish(two).ranges == (PartitionRange(P1, 0, 1),)
    assert log.partition(P0).end == 0


def test_the_time_of_a_writer_goes_with_the_stages_of_a_partition_that_closes():
    log = a_log(partitions=2)
    done(log.stage(ONE, 0, at=P0))
    done(log.stage(TWO, 0, at=P1, writer=BOB))
    done(log.close(P0, revision=2))
    assert list(log.topic(P1).staged_at) == [BOB]
    log.restart()


def test_there_are_so_many_stages_in_a_topic_and_no_more():
    log = a_log()
    topic = log.topic()
    for number in range(STAGE_COUNT_MAX - 1):
        key = b"%016d" % number
        topic.stages[key] = Stage(key, BOB, 1, [StagedEntry(1, P0, 1, 1, bytes(16))])
    topic.image = None
    done(log.stage(ONE, 0))
    assert refused(log.stage(TWO, 0), RefusalCode.STAGES_FULL, max=STAGE_COUNT_MAX)
    done(log.stage(ONE, 1))
    done(log.discard(ONE))
    done(log.stage(TWO, 0))


def test_there_are_so_many_publishers_in_a_topic_and_no_more():
    log = a_log()
    topic = log.topic()
    for number in range(PUBLISHER_COUNT_MAX - 1):
        topic.publishers[b"%016d" % number] = Publisher(1, bytes(16), ())
    topic.image = None
    done(log.publish(writer=ANN))
    assert refused(log.publish(writer=BOB), RefusalCode.WRITERS_FULL, max=PUBLISHER_COUNT_MAX)
    assert refused(log.stage(writer=BOB), RefusalCode.WRITERS_FULL)
    done(log.stage(ONE, 0, version=2))
    done(log.publish(a_receipt(log), version=2))
    log.now += 400 * DAY
    log.seal(expire=True)
    assert len(topic.publishers) == PUBLISHER_COUNT_MAX


def test_the_limits_are_those_of_the_design():
    assert transactions.PUBLISHER_COUNT_MAX == 65_536
    assert transactions.STAGE_COUNT_MAX == 65_536


SHOT, NEXT = b"once" + b"1" * 12, b"once" + b"2" * 12


def test_a_writer_of_one_transaction_is_forgotten_a_day_after_it_and_others_never():
    log = a_log()
    for stage_id, writer in ((ONE, SHOT), (TWO, ANN)):
        done(log.stage(stage_id, 0, rows=3, writer=writer))
        done(log.publish(a_receipt(log, stage_id), writer=writer))
    log.restart()
    log.now = log.topic().once_at[SHOT] + DAY - 1
    log.seal(expire=True)
    assert set(log.topic().publishers) == {SHOT, ANN}
    log.seal()
    log.now += 400 * DAY
    assert log.seal().expired_stages == 0
    assert set(log.topic().publishers) == {SHOT, ANN}
    log.seal(expire=True)
    assert set(log.topic().publishers) == {ANN}
    assert log.topic().once_at == {}
    log.restart()


def test_a_forgotten_writer_that_comes_back_adds_nothing():
    log = a_log()
    done(log.stage(ONE, 0, rows=3, writer=SHOT))
    receipt = a_receipt(log)
    done(log.publish(receipt, writer=SHOT))
    assert log.publish(receipt, writer=SHOT).repeated
    assert refused(log.stage(TWO, 0, writer=SHOT), RefusalCode.SUPERSEDED)
    log.now += 2 * DAY
    log.seal(expire=True)
    assert refused(
        log.publish(receipt, writer=SHOT), RefusalCode.STAGE_MISSING, stage_id=ONE.hex()
    )
    done(log.stage(TWO, 0, writer=SHOT))  # of a task that nobody waits for
    assert refused(log.publish(receipt, writer=SHOT), RefusalCode.STAGE_MISSING)
    log.now += 2 * DAY
    assert log.seal(expire=True).expired_stages == 1
    assert log.partition().end == 3


def test_a_writer_of_one_transaction_has_one_version():
    log = a_log()
    assert refused(
        log.stage(ONE, 0, writer=SHOT, version=2), RefusalCode.OUT_OF_ORDER, expected=1
    )
    assert refused(log.publish(writer=SHOT, version=2), RefusalCode.OUT_OF_ORDER, version=2)
    done(log.stage(ONE, 0, writer=SHOT))
    done(log.publish(a_receipt(log), writer=SHOT))
    assert refused(log.stage(TWO, 0, writer=SHOT, version=2), RefusalCode.OUT_OF_ORDER)


def test_writers_of_one_transaction_do_not_use_a_topic_up():
    log = a_log()
    topic = log.topic()
    for number in range(PUBLISHER_COUNT_MAX):
        writer = b"once%012d" % number
        topic.publishers[writer], topic.once_at[writer] = Publisher(1, bytes(16), ()), log.now
    topic.image = None
    assert refused(log.publish(writer=SHOT), RefusalCode.WRITERS_FULL, max=PUBLISHER_COUNT_MAX)
    log.now += 2 * DAY
    log.seal(expire=True)
    done(log.publish(writer=SHOT))


def test_an_image_has_a_new_format_only_while_there_is_a_writer_of_one_transaction():
    log = a_log()
    done(log.publish(writer=ANN))
    done(log.stage(TWO, 0, writer=BOB))
    before = image.encode(log.machine.state)
    done(log.stage(ONE, 0, writer=NEXT))
    done(log.publish(a_receipt(log), writer=NEXT))
    data = image.encode(log.machine.state)
    assert [image._OPENING_DECODER.decode(each).format for each in (before, data)] == [1, 2]
    found = image.decode(data, log.machine.state.partition_bits)
    assert found.topics[0].once_at.keys() == {NEXT}
    assert found.topics[0].staged_at.keys() == {BOB}
    found.topics[0].once_at[SHOT], found.topics[0].image = 1, None
    with pytest.raises(CorruptFile, match="a writer without stages has a time"):
        image.decode(image.encode(found), log.machine.state.partition_bits)
    log.now += 2 * DAY
    log.seal(expire=True)
    assert image._OPENING_DECODER.decode(image.encode(log.machine.state)).format == 1
