"""Partitions come, change their schemas and go, fenced against metadata that lags."""

import struct

import pytest
from tests.partition.builders import (
    ANN,
    ONE,
    OTHER,
    P0,
    P1,
    P2,
    Log,
    a_log,
    done,
    refused,
    schemas,
)

from headrace.model.ids import Revision
from headrace.model.results import AppendResult
from headrace.partition.machine import operations
from headrace.partition.machine.operations import Schema, encode_stage
from headrace.partition.machine.results import (
    MESSAGES,
    RETRYABLE,
    Closed,
    Opened,
    Refusal,
    RefusalCode,
    SchemaSet,
    refuse,
)

U64 = 2**64 - 1


def versions(log: Log, at: int = P0) -> tuple[tuple[int, int], ...]:
    return log.partition(at).versions


# Open and close, and the fence before them.


def test_an_opened_partition_is_empty():
    log = Log()
    assert log.open() == Opened(0)
    assert (log.partition().first, log.partition().end) == (0, 0)
    assert log.machine.state.revision == 1


def test_a_repeated_open_is_answered_with_the_end_and_changes_nothing():
    log = a_log()
    done(log.append(1, 7))
    before = log.machine.digest()
    assert log.open() == Opened(7)
    assert log.machine.digest() == before


def test_a_repeated_open_lifts_the_fence():
    log = a_log()
    assert log.open(revision=5) == Opened(0)
    assert refused(log.close(revision=4), RefusalCode.STALE)


@pytest.mark.parametrize("at", [0, P0, P2], ids=["nowhere", "where one is", "where none is"])
def test_to_close_a_life_that_none_has_changes_nothing_but_the_revision(at):
    log = a_log()
    done(log.append(1, 7))
    before = log.machine.snapshot()
    assert log.close(at, 0, revision=5) == Closed()
    assert log.machine.state.revision == 5
    assert refused(log.close(at, 0, revision=4), RefusalCode.STALE)
    log.machine.state.revision = Revision(1)
    assert log.machine.snapshot() == before


@pytest.mark.parametrize("act", ["open", "close"])
def test_what_was_planned_with_older_metadata_is_stale(act):
    log = a_log()
    done(log.open(P1, 9, revision=9))
    result = getattr(log, act)(P0, 1, revision=8)
    assert refused(result, RefusalCode.STALE, found=8, expected=9)
    result = getattr(log, act)(P2, 8, revision=8)
    assert refused(result, RefusalCode.STALE)
    done(log.close(P0, 1, revision=9))


def test_the_fence_survives_snapshot_and_restore():
    log = a_log()
    done(log.open(P1, 9, revision=9))
    log.restart()
    assert refused(log.open(P2, 8, revision=8), RefusalCode.STALE)


def test_the_fence_counts_revisions_and_not_lives():
    log = a_log()
    done(log.open(P1, 2, revision=9))
    done(log.open(P2, 3, revision=9))


def test_a_refused_open_or_close_does_not_lift_the_fence():
    log = a_log()
    assert refused(log.open(P0, 2, revision=7), RefusalCode.RECREATED)
    assert refused(log.open(P1, 2, revision=7, versions=0), RefusalCode.MALFORMED)
    assert refused(log.open(P1, 2, revision=7, topic_created=2), RefusalCode.TOPIC_UNKNOWN)
    assert refused(log.close(P1, 2, revision=7), RefusalCode.PARTITION_UNKNOWN)
    assert log.machine.state.revision == 1


def test_an_open_under_a_life_that_goes_on_is_refused():
    log = a_log()
    for created in (2, 0, U64):
        result = log.open(P0, created, revision=2)
        assert refused(result, RefusalCode.RECREATED, expected=created, found=1)


def test_an_open_that_is_not_above_the_last_closed_is_refused():
    log = Log()
    done(log.open(P0, 5, revision=5))
    done(log.close(P0, 5, revision=6))
    log.restart()
    for created in (0, 4, 5):
        result = log.open(P0, created, revision=6)
        assert refused(result, RefusalCode.RECREATED, expected=created, found=5)
    done(log.open(P0, 6, revision=6))


def test_no_partition_has_created_0():
    assert refused(Log().open(P0, 0), RefusalCode.RECREATED)


def test_a_partition_opened_again_begins_at_offset_0_and_old_ops_are_recreated():
    log = a_log()
    done(log.append(1, 9))
    done(log.store("spark", 3))
    log.seal()
    done(log.close(revision=2))
    assert log.open(P0, 3, revision=3, topic_created=3) == Opened(0)
    result = log.append(2, created=1)
    assert refused(result, RefusalCode.RECREATED, namespace=P0, expected=1, found=3)
    for result in (log.purge(), log.trim(0), log.store("spark", 0), log.delete("spark")):
        assert refused(result, RefusalCode.RECREATED)
    assert refused(log.stage(created=1), RefusalCode.RECREATED)
    assert refused(log.publish(created=1), RefusalCode.TOPIC_UNKNOWN)
    assert log.append(1, created=3) == AppendResult(0, 1, repeated=False)
    assert log.partition().cursors == {}


def test_a_closed_partition_is_gone():
    log = a_log(partitions=2)
    assert log.close(P0, revision=2) == Closed()
    assert refused(log.append(1), RefusalCode.PARTITION_UNKNOWN, namespace=P0)
    assert log.append(1).is_retryable
    assert log.machine.state.closed == {P0: 1}
    assert log.machine.state.revision == 2
    done(log.append(1, at=P1))


def test_a_repeated_close_is_answered_as_the_first_was():
    log = a_log()
    done(log.close(revision=2))
    assert log.close(revision=2) == Closed()
    assert log.close(revision=3) == Closed()
    done(log.open(P0, 4, revision=4))
    assert log.close(P0, 1, revision=4) == Closed()
    assert log.partition().created == 4


def test_a_close_of_a_life_that_never_was_is_refused():
    log = a_log()
    assert refused(log.close(P1, 1), RefusalCode.PARTITION_UNKNOWN)
    assert refused(log.close(P0, 2), RefusalCode.RECREATED)
    done(log.close(P0, 1))
    assert refused(log.close(P0, 2), RefusalCode.PARTITION_UNKNOWN)


def test_stages_and_the_topic_go_with_the_last_partition():
    log = a_log(partitions=2)
    done(log.stage(at=P1))
    done(log.publish(writer=ANN, version=0))
    done(log.close(P0, revision=2))
    assert list(log.topic(P1).stages) == [ONE]
    assert list(log.topic(P1).publishers) == [ANN]
    done(log.close(P1, revision=2))
    assert log.machine.state.topics == {}
    log.seal()
    assert log.capture.live == ()
    done(log.open(P1, 3, revision=3, topic_created=3))
    assert (log.topic(P1).stages, log.topic(P1).publishers) == ({}, {})


def test_a_topic_of_another_life_waits_until_the_old_one_is_closed():
    log = a_log(partitions=2)
    done(log.close(P0, revision=2))
    result = log.open(P0, 2, revision=2, topic_created=2)
    assert refused(result, RefusalCode.TOPIC_UNKNOWN, topic=0)
    done(log.close(P1, revision=2))
    done(log.open(P0, 2, revision=2, topic_created=2))


# Schemas.


def test_a_partition_begins_with_the_newest_schema():
    log = a_log(versions=3)
    assert versions(log) == ((3, 0),)
    for schema in (1, 2, 3):
        done(log.append(schema, schema=schema))
    assert len(log.partition().runs) == 1


@pytest.mark.parametrize("schema", [0, 2, 2**32 - 1])
def test_an_unknown_schema_is_refused_and_may_be_sent_again(schema):
    result = a_log().append(schema=schema)
    assert refused(result, RefusalCode.SCHEMA_UNKNOWN, schema_id=schema, newest=1)
    assert result.is_retryable


def test_a_schema_is_in_force_from_each_partitions_end_on():
    log = a_log(partitions=2)
    done(log.append(1, 5))
    assert log.set_schema(2) == SchemaSet(2)
    assert (versions(log, P0), versions(log, P1)) == (((1, 0), (2, 5)), ((2, 0),))
    done(log.append(2, 5, schema=2))
    assert [log.partition().version_at(offset) for offset in (0, 4, 5, 9)] == [1, 1, 2, 2]
    done(log.open(OTHER))
    assert versions(log, OTHER) == ((1, 0),)


def test_an_older_schema_stays_valid_and_runs_end_at_the_change():
    log = a_log()
    done(log.append(1, 5))
    done(log.set_schema(2))
    done(log.append(2, 5, schema=1))
    done(log.append(3, 5, schema=2))
    assert [(run.version, len(run.pieces)) for run in log.partition().runs] == [(1, 1), (2, 2)]


def test_a_schema_that_got_no_row_leaves_no_trace_but_its_id():
    log = a_log()
    done(log.append(1, 5))
    done(log.set_schema(2))
    done(log.set_schema(3))
    assert versions(log) == ((1, 0), (3, 5))
    done(log.append(2, schema=2))


def test_a_schema_that_is_not_the_next_is_refused():
    log = a_log(versions=2)
    for version in (-1, 0, 1, 2, 4, U64):
        result = log.set_schema(version)
        assert refused(result, RefusalCode.SCHEMA_NOT_NEXT, version=version, newest=2)
    done(log.set_schema(3))


def test_an_open_brings_newer_schemas_to_the_whole_topic():
    log = a_log(partitions=2)
    done(log.append(1, 5))
    done(log.open(P2, 2, revision=2, versions=3))
    assert log.topic().schemas == schemas(3)
    assert [versions(log, at) for at in (P0, P1, P2)] == [
        ((1, 0), (3, 5)),
        ((3, 0),),
        ((3, 0),),
    ]


def test_an_open_that_knows_fewer_schemas_takes_none_away():
    log = a_log(versions=3)
    done(log.open(P1, versions=1))
    assert log.topic().schemas == schemas(3)
    assert versions(log, P1) == ((3, 0),)


def test_a_refused_open_brings_no_schema():
    log = a_log()
    assert refused(log.open(P0, 2, versions=3), RefusalCode.RECREATED)
    assert refused(log.open(P1, 2, topic_created=2, versions=3), RefusalCode.TOPIC_UNKNOWN)
    assert log.topic().schemas == schemas(1)


@pytest.mark.parametrize("numbers", [(), (0,), (2,), (1, 3), (2, 1), (1, 1), (1, -2), (1, U64)])
def test_schemas_count_from_1(numbers):
    log = a_log()
    known = tuple(Schema(number, b"") for number in numbers)
    assert refused(log.open(P1, versions=known), RefusalCode.MALFORMED)
    assert refused(log.open(OTHER, versions=known), RefusalCode.MALFORMED)
    assert list(log.machine.state.topics) == [0]


def test_a_topic_has_a_life_that_an_entry_can_name():
    assert refused(Log().open(topic_created=-1), RefusalCode.MALFORMED)


def test_schemas_survive_snapshot_and_restore():
    log = a_log()
    done(log.append(1, 5))
    done(log.set_schema(2))
    log.restart()
    assert (versions(log), log.topic().schemas) == (((1, 0), (2, 5)), schemas(2))
    done(log.append(2, schema=2))
    assert len(log.partition().runs) == 2


# Refusals in words.


def test_every_code_has_words_and_says_whether_to_try_again():
    assert set(MESSAGES) == set(RefusalCode)
    assert {
        RefusalCode.PARTITION_UNKNOWN,
        RefusalCode.SCHEMA_UNKNOWN,
        RefusalCode.OUT_OF_ORDER,
    } == RETRYABLE


def test_a_refusal_has_words_of_its_own():
    result = refuse(RefusalCode.TOO_OLD, version=3, first=9)
    assert result.message == "version 3 is below 9, the oldest still remembered"
    assert not result.is_retryable


def test_a_stage_opens_with_64_bytes():
    assert encode_stage(ONE, 7) == ONE + struct.pack("<I", 7) + bytes(44)
    assert operations.decode_stage(encode_stage(ONE, 7) + b"rows") == operations.StageHeader(
        ONE, 7
    )


class TestBranches:
    """Revisions of one count and other bits: of two histories, of which one was lost."""

    OURS, THEIRS, LATER = 5 << 20 | 1, 5 << 20 | 2, 6 << 20

    def test_what_was_planned_with_metadata_of_a_branch_is_stale(self):
        log = Log()
        done(log.open(created=self.OURS, topic_created=self.OURS, revision=self.OURS))
        for revision in (self.THEIRS, 4 << 20):
            assert log.open(P1, self.THEIRS, revision=revision).code is RefusalCode.STALE
            assert log.close(created=self.OURS, revision=revision).code is RefusalCode.STALE
        done(log.close(created=self.OURS, revision=self.LATER))

    def test_a_life_of_a_branch_is_not_the_one_that_was_closed(self):
        log = Log()
        done(log.open(created=self.OURS, topic_created=self.OURS, revision=self.OURS))
        done(log.close(created=self.OURS, revision=self.OURS))
        repeat = log.close(created=self.OURS, revision=self.LATER)
        assert not isinstance(repeat, Refusal)
        other = log.close(created=self.THEIRS, revision=self.LATER)
        assert other.code is RefusalCode.PARTITION_UNKNOWN
        opening = log.open(created=self.THEIRS, topic_created=self.THEIRS, revision=self.LATER)
        assert opening.code is RefusalCode.RECREATED
