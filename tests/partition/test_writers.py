"""The writer rule: an append happens once, however often it is sent."""

from tests.partition.builders import (
    ANN,
    BOB,
    DAY,
    NOW,
    P0,
    P1,
    Log,
    a_log,
    done,
    refused,
)

from headrace.model.proposal import NO_WRITER
from headrace.model.results import AppendResult
from headrace.partition.machine import writer_rule
from headrace.partition.machine.operations import APPEND, Publish
from headrace.partition.machine.results import RETRYABLE, RefusalCode
from headrace.partition.machine.state import Writer, Written
from headrace.partition.machine.writer_rule import IDLE_MAX_US, WINDOW, WRITER_COUNT_MAX


def a_long_log(count: int) -> Log:
    """One writer's first `count` versions; version n has n % 3 + 1 rows."""
    log = a_log()
    for version in range(1, count + 1):
        done(log.append(version, version % 3 + 1, body=b"rows %d" % version))
    return log


def test_an_unknown_writer_begins_with_version_1():
    log = a_log()
    assert log.append(1, 3) == AppendResult(0, 3, repeated=False)
    assert log.append(2, 2) == AppendResult(3, 5, repeated=False)
    assert log.partition().end == 5


def test_an_unknown_writer_with_another_version_is_refused():
    log = a_log()
    for version in (0, 2, 2**64 - 1):
        assert refused(log.append(version), RefusalCode.WRITER_UNKNOWN, version=version)
    assert log.partition().writers == {}
    assert RefusalCode.WRITER_UNKNOWN not in RETRYABLE


def test_each_writer_counts_for_itself_in_each_partition():
    log = a_log(partitions=2)
    for writer in (ANN, BOB, NO_WRITER):
        for at in (P0, P1):
            done(log.append(1, writer=writer, at=at))
    assert (log.partition(P0).end, log.partition(P1).end) == (3, 3)
    assert refused(log.append(3, writer=BOB), RefusalCode.OUT_OF_ORDER)


def test_a_repeat_is_answered_with_its_own_offsets_and_adds_nothing():
    log = a_log()
    done(log.append(1, 4, body=b"one"))
    done(log.append(2, 2, body=b"two"))
    done(log.append(1, 9, body=b"bob", writer=BOB))
    before = log.machine.digest()
    assert log.append(1, 4, body=b"one") == AppendResult(0, 4, repeated=True)
    assert log.append(2, 2, body=b"two") == AppendResult(4, 6, repeated=True)
    assert log.machine.digest() == before


def test_a_repeat_is_answered_after_its_rows_were_sealed_or_trimmed():
    log = a_log()
    first = log.append(1, 4, body=bytes(5_000))
    assert log.seal().segment_count == 1
    log.purge()
    again = log.append(1, 4, body=bytes(5_000))
    assert again == AppendResult(first.start, first.end, repeated=True)


def test_a_repeat_with_other_content_is_a_conflict():
    log = a_log()
    done(log.append(1, body=b"one"))
    assert refused(log.append(1, body=b"other"), RefusalCode.WRITER_CONFLICT, version=1)
    done(log.append(2, body=b"two"))
    assert refused(log.append(1, body=b"two"), RefusalCode.WRITER_CONFLICT, version=1)


def test_a_gap_is_out_of_order_and_may_be_sent_again():
    log = a_log()
    done(log.append(1))
    for version in (3, 2**64 - 1):
        result = log.append(version)
        assert refused(result, RefusalCode.OUT_OF_ORDER, version=version, expected=2)
        assert result.is_retryable
    done(log.append(2))
    done(log.append(3))


def test_the_window_holds_exactly_its_versions():
    count = WINDOW + 10
    log = a_long_log(count)
    starts = [sum(v % 3 + 1 for v in range(1, version)) for version in range(1, count + 2)]
    for version in range(1, count + 1):
        result = log.append(version, version % 3 + 1, body=b"rows %d" % version)
        if version <= 10:
            assert refused(result, RefusalCode.TOO_OLD, version=version, first=11)
        else:
            assert result == AppendResult(starts[version - 1], starts[version], repeated=True)


def test_below_the_window_is_too_old_even_with_other_content():
    log = a_long_log(WINDOW + 1)
    for version in (0, 1):
        assert refused(log.append(version, body=b"other"), RefusalCode.TOO_OLD)
    assert refused(log.append(2, body=b"other"), RefusalCode.WRITER_CONFLICT)
    assert not log.append(1).is_retryable


def test_the_window_survives_snapshot_and_restore():
    log = a_long_log(WINDOW + 10)
    end = log.partition().end
    log.restart()
    assert refused(log.append(10), RefusalCode.TOO_OLD, first=11)
    assert log.append(11, 3, body=b"rows 11").repeated
    assert refused(log.append(12, body=b"other"), RefusalCode.WRITER_CONFLICT)
    assert refused(log.append(WINDOW + 12), RefusalCode.OUT_OF_ORDER)
    assert log.append(WINDOW + 11) == AppendResult(end, end + 1, repeated=False)


def test_a_refused_append_uses_no_version():
    log = a_log()
    assert refused(log.append(1, rows=0), RefusalCode.EMPTY)
    assert refused(log.append(1, schema=2), RefusalCode.SCHEMA_UNKNOWN)
    assert log.append(1) == AppendResult(0, 1, repeated=False)


def test_an_idle_writer_leaves_only_at_a_seal_that_says_so():
    log = a_log()
    done(log.append(1))
    log.now += IDLE_MAX_US * 2
    assert log.seal().expired_writers == 0
    assert log.append(1).repeated
    log.send(1, b"")  # an empty Seal says nothing
    log.send(1, b"what cannot be read")
    assert ANN in log.partition().writers
    assert log.seal(expire=True).expired_writers == 1
    assert refused(log.append(1 + 1), RefusalCode.WRITER_UNKNOWN)


def test_a_writer_leaves_after_seven_days_and_not_at_them():
    assert IDLE_MAX_US == 7 * DAY
    log = a_log()
    done(log.append(1))
    appended_at = log.now
    log.now = appended_at + IDLE_MAX_US - 1
    assert log.seal(expire=True).expired_writers == 0
    assert log.now == appended_at + IDLE_MAX_US
    assert log.seal(expire=True).expired_writers == 1


def test_appends_keep_a_writer():
    log = a_log()
    for version in range(1, 5):
        log.now += 6 * DAY
        done(log.append(version))
        assert log.seal(expire=True).expired_writers == 0
    assert log.append(1).repeated


def test_only_the_idle_leave():
    log = a_log(partitions=2)
    done(log.append(1, writer=ANN))
    done(log.append(1, writer=ANN, at=P1))
    log.now += 8 * DAY
    done(log.append(1, writer=BOB))
    assert log.seal(expire=True).expired_writers == 2
    assert list(log.partition(P0).writers) == [BOB]
    assert list(log.partition(P1).writers) == []
    assert log.partition(P0).end == 2


def test_a_writer_that_left_may_begin_anew():
    log = a_log()
    done(log.append(1))
    log.now += 8 * DAY
    log.seal(expire=True)
    assert log.append(1) == AppendResult(1, 2, repeated=False)


def test_time_beyond_any_calendar_expires_without_harm():
    log = a_log()
    log.now = 2**63 - 3
    done(log.append(1))
    log.now = 2**64 - 3
    assert log.seal(expire=True).expired_writers == 1


def test_time_that_no_column_holds_is_refused():
    log = a_log()
    log.now = 2**63
    assert refused(log.append(1), RefusalCode.MALFORMED, operation=APPEND)
    assert refused(log.publish(), RefusalCode.MALFORMED, operation=Publish.operation)


def test_there_are_so_many_writers_and_no_more():
    log = a_log()
    for number in range(WRITER_COUNT_MAX - 1):
        window = [Written(1, 0, 1, bytes(16))]
        log.partition().writers[b"%016d" % number] = Writer(window, NOW)
    log.partition().image = None
    done(log.append(1, writer=ANN))
    assert refused(log.append(1, writer=BOB), RefusalCode.WRITERS_FULL, max=WRITER_COUNT_MAX)
    done(log.append(2, writer=ANN))
    log.now += 8 * DAY
    assert log.seal(expire=True).expired_writers == WRITER_COUNT_MAX
    done(log.append(1, writer=BOB))


def test_the_constants_are_those_of_the_design():
    assert (writer_rule.WINDOW, writer_rule.WRITER_COUNT_MAX) == (64, 65_536)
