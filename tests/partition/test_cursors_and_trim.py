"""Cursors fence by generation and hold rows; Trim and Purge drop rows, never offsets."""

import pytest
from tests.partition.builders import P0, P1, Log, a_log, done, refused

from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    Hold,
    StoredCursor,
    TrimResult,
)
from headrace.partition.machine.partitions_machine import CURSOR_COUNT_MAX
from headrace.partition.machine.results import RefusalCode


def ten_by_ten(partitions: int = 1) -> Log:
    """A partition of 100 rows, 10 in each entry."""
    log = a_log(partitions)
    for version in range(1, 11):
        done(log.append(version, 10, body=bytes(10)))
    return log


def test_a_cursor_is_stored_and_moves_both_ways():
    log = ten_by_ten()
    for place in (0, 100, 40):
        assert log.store("spark", place) == CursorStored(place)
        assert log.partition().cursors["spark"] == StoredCursor("spark", place, 1, hold=False)


def test_a_lower_generation_is_fenced():
    log = ten_by_ten()
    done(log.store("spark", 10, 5))
    assert refused(log.store("spark", 20, 4), RefusalCode.FENCED, found=4, expected=5)
    assert refused(log.delete("spark", 4), RefusalCode.FENCED, found=4, expected=5)
    done(log.store("spark", 20, 5))
    done(log.store("spark", 30, 2**64 - 1))
    log.restart()
    assert refused(log.store("spark", 20, 6), RefusalCode.FENCED)
    done(log.store("audit", 1, 1))


def test_taking_a_cursor_over_keeps_its_place():
    log = ten_by_ten()
    assert refused(log.store("spark", -1, 5), RefusalCode.CURSOR_UNKNOWN, group="spark")
    done(log.store("spark", 40, 5))
    assert log.store("spark", -1, 7) == CursorStored(40)
    assert refused(log.store("spark", 50, 5), RefusalCode.FENCED, found=5, expected=7)
    assert refused(log.store("spark", -1, 6), RefusalCode.FENCED, found=6, expected=7)
    assert log.partition().cursors["spark"] == StoredCursor("spark", 40, 7, hold=False)
    log.restart()
    assert log.partition().cursors["spark"] == StoredCursor("spark", 40, 7, hold=False)
    done(log.store("spark", 30, 7))  # its own member goes back as before
    assert log.store("spark", -1, 7) == CursorStored(30)


def test_taking_a_cursor_over_keeps_its_hold():
    log = ten_by_ten()
    done(log.store("spark", 40, 1, hold=True))
    done(log.store("spark", -1, 2, hold=False))
    assert log.trim(50) == TrimResult(40, (Hold("spark", 40),))
    done(log.store("audit", 40, 1))
    done(log.store("audit", -1, 2, hold=True))
    assert log.partition().cursors["audit"] == StoredCursor("audit", 40, 2, hold=True)


@pytest.mark.parametrize("place", [101, 2**63, 2**64 - 1, -2, -(2**63)])
def test_a_cursor_beyond_the_end_is_refused(place):
    log = ten_by_ten()
    assert refused(log.store("spark", place), RefusalCode.OUT_OF_RANGE, offset=place, end=100)


def test_a_cursor_is_deleted_with_its_hold():
    log = ten_by_ten()
    done(log.store("spark", 10, hold=True))
    assert log.delete("spark") == CursorDeleted()
    assert refused(log.delete("spark"), RefusalCode.CURSOR_UNKNOWN, group="spark")
    assert log.trim(50) == TrimResult(50, ())
    assert log.partition().cursors == {}


def test_a_deleted_cursor_may_begin_anew():
    log = ten_by_ten()
    done(log.store("spark", 10, 9))
    done(log.delete("spark", 10))
    done(log.store("spark", 20, 1))


def test_each_partition_has_its_own_cursors():
    log = ten_by_ten(partitions=2)
    done(log.store("spark", 10, 5))
    assert refused(log.store("spark", 1, 1, at=P1), RefusalCode.OUT_OF_RANGE)
    done(log.store("spark", 0, 1, at=P1))
    assert log.partition(P0).cursors["spark"].next == 10


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a" * 129, "ü", "\0", "a" * 100_000])
def test_a_consumer_group_has_a_name(name):
    log = ten_by_ten()
    assert refused(log.store(name, 0), RefusalCode.BAD_NAME, name=name[:200])
    assert refused(log.delete(name), RefusalCode.CURSOR_UNKNOWN, group=name[:200])


def test_there_are_so_many_cursors_and_no_more():
    assert CURSOR_COUNT_MAX == 1_024
    log = ten_by_ten()
    for number in range(CURSOR_COUNT_MAX):
        done(log.store(f"group-{number}", 1))
    assert refused(log.store("one-more", 1), RefusalCode.CURSORS_FULL, max=CURSOR_COUNT_MAX)
    done(log.store("group-0", 2))
    done(log.delete("group-1"))
    done(log.store("one-more", 1))


def test_trim_drops_whole_entries_and_hides_the_rest():
    log = ten_by_ten()
    assert log.trim(35) == TrimResult(35, ())
    partition = log.partition()
    assert (partition.first, partition.end) == (35, 100)
    assert [piece.first for piece in log.pieces()] == list(range(30, 100, 10))
    assert partition.runs[0].size == partition.size == 70
    assert log.append(11) == AppendResult(100, 101, repeated=False)


def test_trim_never_goes_back():
    log = ten_by_ten()
    done(log.trim(60))
    before = log.machine.digest()
    for first in (0, 30, 60):
        assert log.trim(first) == TrimResult(60, ())
    assert log.machine.digest() == before


@pytest.mark.parametrize("first", [101, 2**63, 2**64 - 1, -1, -(2**63)])
def test_trim_beyond_the_end_is_refused(first):
    log = ten_by_ten()
    for past_hold in (True, False):
        result = log.trim(first, past_hold=past_hold)
        assert refused(result, RefusalCode.OUT_OF_RANGE, offset=first, end=100)


def test_trim_to_the_end_leaves_an_empty_partition_that_goes_on():
    log = ten_by_ten()
    assert log.trim(100) == TrimResult(100, ())
    assert (log.pieces(), log.partition().runs) == ([], [])
    log.restart()
    assert log.append(11) == AppendResult(100, 101, repeated=False)


def test_trim_stops_at_the_lowest_held_cursor_and_names_all_in_its_way():
    log = ten_by_ten()
    done(log.store("slow", 20, hold=True))
    done(log.store("fast", 70, hold=True))
    done(log.store("free", 5))
    done(log.store("beside", 20, hold=True))
    assert log.trim(15) == TrimResult(15, ())
    assert log.trim(20) == TrimResult(20, ())
    holds = (Hold("beside", 20), Hold("slow", 20))
    assert log.trim(50) == TrimResult(20, holds)
    assert log.trim(80) == TrimResult(20, (*holds, Hold("fast", 70)))


def test_past_hold_goes_on_and_names_whom_it_passed():
    log = ten_by_ten()
    done(log.store("slow", 20, hold=True))
    done(log.store("fast", 70, hold=True))
    assert log.trim(60, past_hold=True) == TrimResult(60, (Hold("slow", 20),))
    assert log.partition().first == 60
    assert log.partition().cursors["slow"].next == 20


def test_a_hold_below_what_is_retained_brings_nothing_back():
    log = ten_by_ten()
    done(log.store("slow", 20, hold=True))
    done(log.trim(60, past_hold=True))
    assert log.trim(80) == TrimResult(60, (Hold("slow", 20),))


def test_a_hold_ends_with_a_store_that_holds_no_more():
    log = ten_by_ten()
    done(log.store("spark", 20, hold=True))
    assert log.trim(50).first == 20
    done(log.store("spark", 20, hold=False))
    assert log.trim(50) == TrimResult(50, ())


def test_holds_survive_snapshot_and_restore():
    log = ten_by_ten()
    done(log.store("spark", 20, hold=True))
    log.restart()
    assert log.trim(50) == TrimResult(20, (Hold("spark", 20),))


def test_trim_drops_segments_that_lie_below():
    log = a_log()
    for version in range(1, 4):
        done(log.append(version, 10, body=bytes(1_000)))
        assert log.seal().segment_count == 1
    assert [one.first for one in log.partition().segments] == [0, 10, 20]
    log.trim(15)
    assert [one.first for one in log.partition().segments] == [10, 20]
    log.trim(20)
    assert [one.first for one in log.partition().segments] == [20]
    log.trim(30)
    assert log.partition().segments == ()


def test_trim_keeps_the_schema_in_force_at_the_first_row():
    log = a_log()
    done(log.append(1, 10))
    done(log.set_schema(2))
    done(log.append(2, 10, schema=2))
    done(log.set_schema(3))
    done(log.append(3, 10, schema=3))
    assert log.partition().versions == ((1, 0), (2, 10), (3, 20))
    for first, kept in [(9, 3), (10, 2), (19, 2), (20, 1), (30, 1)]:
        done(log.trim(first))
        assert len(log.partition().versions) == kept
        assert log.partition().version_at(first) == 4 - kept
        log.restart()


def test_purge_drops_all_rows_and_keeps_offsets():
    log = ten_by_ten()
    done(log.store("spark", 20, hold=True))
    log.seal()
    assert log.purge() == TrimResult(100, ())
    partition = log.partition()
    assert (partition.first, partition.end, partition.runs) == (100, 100, [])
    assert log.append(11) == AppendResult(100, 101, repeated=False)
    assert log.append(5, 10, body=bytes(10)) == AppendResult(40, 50, repeated=True)


def test_purge_of_nothing_is_no_refusal():
    log = a_log()
    assert log.purge() == TrimResult(0, ())


def test_what_was_trimmed_is_no_longer_carried():
    log = ten_by_ten()
    log.seal()
    assert len(log.capture.live) == 10
    log.trim(35)
    log.seal()
    assert log.capture.live == tuple(range(5, 12))
    log.purge()
    log.seal()
    assert log.capture.live == ()
