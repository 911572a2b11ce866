"""Offsets of entries that no state tells: what segments prove of them, and what they do not."""

import pytest

from headrace.doctor.look.orphan_segment import TimedRows
from headrace.doctor.rebuild.dedup_state import Windows
from headrace.doctor.rebuild.lifetimes import Life
from headrace.doctor.rebuild.timeline import Given, OffsetDoubt, Timeline
from headrace.journal.entry import Header, seal
from headrace.model.ids import Identity, Offset, Op, View
from headrace.model.proposal import EntryProposal
from headrace.partition.machine.operations import APPEND
from headrace.partition.machine.state import Piece

LIFE = Life(7, 3)
_IDENTITY = Identity(b"c" * 16, 1, 0, 1, (16, 24, 24))


def given(time: int, count: int) -> Given:
    """An entry whose op is its time."""
    return Given(time, Op(time), count, 100, 1)


def sealed(*times: tuple[int, int, int]) -> Timeline:
    return Timeline.of([TimedRows(*each) for each in times], [])


def places(timeline: Timeline, *entries: Given) -> list[tuple[int, int]]:
    """Arrange entries, and return op and first offset of each that no segment has."""
    return [(piece.op, piece.first) for _, piece in timeline.arrange(entries).pieces]


def test_an_entry_whose_time_a_segment_has_is_in_it():
    timeline = sealed((10, 0, 5), (20, 5, 8))
    assert places(timeline, given(10, 5), given(20, 3), given(30, 4)) == [(30, 8)]


def test_entries_that_fill_a_gap_to_the_row_are_beyond_doubt():
    timeline = sealed((10, 0, 5), (40, 11, 20))
    found = timeline.arrange([given(20, 4), given(30, 2)])
    assert [piece.first for _, piece in found.pieces] == [5, 9]
    assert found.doubts == []


@pytest.mark.parametrize("count", [1, 5])
def test_entries_that_leave_room_are_counted_from_below_and_in_doubt(count):
    found = sealed((10, 0, 5), (40, 11, 20)).arrange([given(20, count)])
    assert [piece.first for _, piece in found.pieces] == [5]
    assert found.doubts == [OffsetDoubt(5, 11)]


def test_what_does_not_fit_is_counted_and_hides_no_sealed_row():
    found = sealed((10, 0, 5), (40, 11, 20)).arrange([given(20, 4), given(30, 3)])
    assert [piece.end for _, piece in found.pieces] == [9]
    assert found.placeless_count == 3


def test_entries_before_the_first_segment_end_where_it_begins():
    assert places(sealed((40, 11, 20)), given(20, 4), given(30, 2)) == [(20, 5), (30, 9)]


def test_rows_that_two_segments_have_count_once():
    timeline = Timeline.of(
        [TimedRows(10, 0, 5), TimedRows(20, 5, 8), TimedRows(20, 5, 8), TimedRows(30, 8, 9)], []
    )
    assert [(one.start, one.end) for one in timeline.rows] == [(0, 5), (5, 8), (8, 9)]


def test_entries_go_on_behind_a_segment_that_cannot_be_read():
    timeline = Timeline.of([TimedRows(10, 0, 5)], [(5, 9)])
    assert places(timeline, given(20, 4)) == [(20, 9)]


def test_a_sealed_entry_moves_those_behind_it():
    pieces = [
        (1, Piece(Offset(first), 2, Op(time), time, 1)) for first, time in ((0, 20), (2, 30))
    ]
    found = sealed((20, 5, 7)).correct(pieces)
    assert [piece.first for _, piece in found.pieces] == [5, 7]
    assert found.shifts == [(0, 5)]


def an_append(version: int, op: int, writer: bytes = b"w" * 16) -> Header:
    return seal(
        _IDENTITY,
        EntryProposal(
            APPEND,
            b"%d" % version,
            writer=writer,
            version=version,
            namespace=LIFE.namespace,
            created=LIFE.created,
            row_count=1,
        ),
        op=Op(op),
        parent=bytes(16),
        view=View(0),
        timestamp=op,
    ).header


def newest(carried: list[int], journaled: list[int]) -> tuple[int | None, int]:
    """Return the newest version that a writer is taken to have had, and the guesses."""
    before = [an_append(version, op) for op, version in enumerate(carried, start=1)]
    after = [an_append(version, op) for op, version in enumerate(journaled, start=50)]
    writers, guess_count = Windows.of(before, after).of_life(LIFE)
    known = writers.get(b"w" * 16)
    return known.window[-1].version if known is not None else None, guess_count


@pytest.mark.parametrize(
    ("carried", "journaled", "expected"),
    [
        ([], [1, 2, 3], (None, 0)),  # a new one
        ([1, 2, 3], [4, 5], (3, 0)),
        ([1, 2, 3], [3, 4, 5], (3, 0)),  # a repeat
        ([], [8, 9, 10], (7, 1)),  # what came before is sealed
        ([2, 3], [8, 9], (7, 1)),
        ([], [5, 8, 9, 10], (7, 1)),  # a repeat, then what is new
        ([], [5, 6, 7, 9], (4, 1)),  # the last one came too early, and was refused
    ],
)
def test_a_writer_goes_on_where_its_versions_say(carried, journaled, expected):
    assert newest(carried, journaled) == expected
