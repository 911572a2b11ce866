"""What is proposed to be trimmed: whole units, past their age or size, and no held row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.partition.builders import BOB, DAY, HOUR, Log, a_log, done

from headrace.metadata.state import FOREVER, RetentionLimits
from headrace.node.shard.retention import MAX_HOLD_MS, due_trim
from headrace.partition.machine.operations import Trim
from headrace.partition.machine.segment_cut import SegmentSizes

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
SMALL = SegmentSizes(size_min=1, size_target=1, waited_max=0)  # each piece is a segment


def days(count: float) -> RetentionLimits:
    return RetentionLimits(int(count * DAY_MS), None)


def size(size: int) -> RetentionLimits:
    return RetentionLimits(None, size)


def a_week(rows: int = 10, body: bytes = b"rows") -> Log:
    """A log with a batch of rows for each of seven days, the last of them just now."""
    log = a_log()
    for version in range(1, 8):
        log.now += DAY
        done(log.append(version, rows, body=body))
    return log


def due(log: Log, retention: RetentionLimits, **wanted: int) -> Trim | None:
    return due_trim(log.partition(), retention, log.now, **wanted)


def test_without_a_limit_all_is_kept():
    assert due(a_week(), FOREVER) is None
    assert due(a_log(), RetentionLimits(1, 1)) is None


def test_what_is_older_than_the_age_goes():
    log = a_week()
    assert due(log, days(3.5)) == Trim(30, past_hold=False)
    assert due(log, days(7)) is None
    log.now += 30 * DAY
    assert due(log, days(7)) == Trim(70, past_hold=False)


def test_a_row_that_is_exactly_as_old_as_allowed_stays():
    log = a_log()
    done(log.append(1, 10))
    written = log.now
    partition = log.partition()
    assert due_trim(partition, days(1), written + DAY) is None
    assert due_trim(partition, days(1), written + DAY + 1) == Trim(10, past_hold=False)


def test_at_least_the_size_stays():
    log = a_week(body=bytes(100))
    assert due(log, size(300)) == Trim(40, past_hold=False)
    assert due(log, size(301)) == Trim(30, past_hold=False)
    assert due(log, size(700)) is None
    assert due(log, size(1)) == Trim(60, past_hold=False)  # the newest always stays


def test_both_limits_count():
    log = a_week(body=bytes(100))
    assert due(log, RetentionLimits(5 * DAY_MS, 300)) == Trim(40, past_hold=False)
    assert due(log, RetentionLimits(DAY_MS // 2, 300)) == Trim(60, past_hold=False)


def test_a_segment_goes_whole_or_stays_whole():
    log = a_week()
    log.machine.sizes = SegmentSizes(size_min=1, size_target=1_000, waited_max=0)
    done(log.seal())
    done(log.append(8, 10))
    assert len(log.partition().segments) == 1
    assert due(log, days(3.5)) is None
    log.now += 10 * DAY
    assert due(log, days(10.5)) is None
    assert due(log, days(9.5)) == Trim(80, past_hold=False)


def test_a_segment_between_runs_that_wait_is_found_in_its_place():
    log = a_log(sizes=SegmentSizes(size_min=100, size_target=100, waited_max=9))
    done(log.append(1, 10, body=bytes(10)))
    done(log.set_schema(2))
    done(log.append(2, 10, body=bytes(200)))
    done(log.set_schema(3))
    done(log.append(3, 10, body=bytes(10)))
    done(log.seal())
    partition = log.partition()
    assert [one.first for one in partition.segments] == [10]
    assert [run.first for run in partition.runs] == [0, 20]
    assert due(log, size(210)) == Trim(10, past_hold=False)
    assert due(log, size(10)) == Trim(20, past_hold=False)


def test_nothing_is_proposed_twice():
    log = a_week()
    trim = due(log, days(3.5))
    assert trim is not None
    done(log.trim(trim.first))
    assert due(log, days(3.5)) is None


def test_a_held_row_stays_and_the_cut_is_between_units():
    log = a_week()
    done(log.store("spark", 25, hold=True))
    done(log.store("audit", 3))
    assert due(log, days(1.5)) == Trim(20, past_hold=False)
    done(log.trim(20))
    assert due(log, days(1.5)) is None
    done(log.store("spark", 70, generation=2, hold=True))
    assert due(log, days(1.5)) == Trim(50, past_hold=False)


def test_only_rows_older_than_the_longest_hold_go_past_it():
    log = a_week()
    done(log.store("spark", 5, hold=True))
    hold = int(4.5 * DAY_MS)
    assert due(log, days(1), max_hold_ms=hold) == Trim(20, past_hold=True)
    assert due(log, days(5.5), max_hold_ms=hold) == Trim(10, past_hold=True)
    assert due(log, days(1), max_hold_ms=7 * DAY_MS) is None
    done(log.trim(20, past_hold=True))
    assert due(log, days(1), max_hold_ms=hold) is None


def test_a_hold_lasts_thirty_days_unless_told_otherwise():
    log = a_week()
    done(log.store("spark", 0, hold=True))
    written = log.partition().runs[0].pieces[0].timestamp
    for now, trim in (
        (written + 30 * DAY, None),
        (written + 30 * DAY + 1, Trim(10, past_hold=True)),
    ):
        assert due_trim(log.partition(), days(1), now) == trim
    assert MAX_HOLD_MS == 30 * DAY_MS


batches = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 300), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("sizes", [SMALL, SegmentSizes(200, 300, 2)])
@given(
    batches=batches,
    age=st.none() | st.integers(0, 40),
    kept=st.none() | st.integers(1, 1_500),
    cursors=st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(0, 60), st.booleans())
    ),
    hold=st.integers(0, 40),
)
def test_any_trim_does_what_it_says_and_nothing_is_left_to_propose(
    sizes, batches, age, kept, cursors, hold
):
    log = a_log(sizes=sizes)
    for version, (rows, body, hours, is_sealed) in enumerate(batches, start=1):
        log.now += hours * HOUR
        done(log.append(version, rows, body=bytes(body), writer=BOB))
        if is_sealed:
            done(log.seal())
    partition = log.partition()
    for group, (place, is_held) in cursors.items():
        done(log.store(group, min(place, partition.end), hold=is_held))
    retention = RetentionLimits(None if age is None else age * HOUR_MS, kept)
    now = log.now
    trim = due_trim(partition, retention, now, hold * HOUR_MS)
    assert trim == _by_trying_all(log, retention, hold * HOUR_MS)
    if trim is not None:
        result = done(log.trim(trim.first, past_hold=trim.past_hold))
        assert result.first == trim.first
        assert due_trim(partition, retention, now, hold * HOUR_MS) is None


def _by_trying_all(log: Log, retention: RetentionLimits, hold_ms: int) -> Trim | None:
    """Try each end of a unit as the new first offset, and judge all rows below and above it."""
    partition = log.partition()
    units = [(one.end, one.last_timestamp, one.size) for one in partition.segments]
    units += [(piece.end, piece.timestamp, piece.size) for piece in log.pieces()]

    def is_older(first: int, age_ms: int | None) -> bool:
        times = [timestamp for end, timestamp, _ in units if end <= first]
        return age_ms is not None and max(times) < log.now - age_ms * 1_000

    def is_beyond(first: int) -> bool:
        left = sum(size for end, _, size in units if end > first)
        return retention.size is not None and left >= retention.size

    ends = [end for end, _, _ in units]
    allowed = [end for end in ends if is_older(end, retention.age_ms) or is_beyond(end)]
    holds = [one.next for one in partition.cursors.values() if one.hold]
    free = [end for end in allowed if all(end <= held for held in holds)]
    forsaken = [end for end in allowed if end not in free and is_older(end, hold_ms)]
    if forsaken:
        return Trim(max(forsaken), past_hold=True)
    return Trim(max(free), past_hold=False) if free else None
