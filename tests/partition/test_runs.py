"""A Seal decides which runs become segments, equally everywhere; the others are carried."""

from collections import Counter
from random import Random

import pytest
from tests.partition.builders import (
    BOB,
    ONE,
    OTHER,
    P0,
    P1,
    SIZES,
    TWO,
    Log,
    a_log,
    done,
    replayed,
)

from headrace.journal.entry import SEAL
from headrace.partition.machine.results import Sealed
from headrace.partition.machine.segment_cut import SEGMENT_SIZES, SegmentSizes
from headrace.partition.machine.state import Segment, Unplaced

MIN, TARGET, WAITED = SIZES.size_min, SIZES.size_target, SIZES.waited_max


def filled(*sizes: int) -> Log:
    """One run: an entry of 10 rows for each body size."""
    log = a_log()
    for version, size in enumerate(sizes, start=1):
        done(log.append(version, 10, body=bytes(size)))
    return log


def ranges(log: Log, at: int = P0) -> list[tuple[int, int]]:
    return [(one.first, one.end) for one in log.partition(at).segments]


def carried(log: Log, at: int = P0) -> list[tuple[int, int, int]]:
    return [(run.first, run.end, run.waited) for run in log.partition(at).runs]


def test_the_sizes_are_those_of_the_design():
    assert SegmentSizes(8 * 2**20, 256 * 2**20, 16) == SEGMENT_SIZES


def test_a_run_of_the_least_size_becomes_a_segment():
    log = filled(MIN - 100, 100)
    assert log.seal() == Sealed(1, 0, 0)
    assert (ranges(log), carried(log)) == ([(0, 20)], [])


def test_a_smaller_run_is_carried():
    log = filled(MIN - 100, 99)
    assert log.seal() == Sealed(0, 0, 0)
    assert (ranges(log), carried(log)) == ([], [(0, 20, 1)])


def test_a_small_run_waits_so_many_seals_and_then_becomes_a_segment():
    log = filled(10)
    for waited in range(1, WAITED + 1):
        assert log.seal().segment_count == 0
        assert carried(log) == [(0, 10, waited)]
    assert log.seal().segment_count == 1
    assert (ranges(log), carried(log)) == ([(0, 10)], [])


def test_waiting_goes_on_after_a_restart():
    log = filled(10)
    for _ in range(WAITED):
        log.seal()
        log.restart()
    assert log.seal().segment_count == 1


def test_a_carried_run_grows_and_keeps_its_waiting():
    log = filled(400)
    log.seal()
    done(log.append(2, 10, body=bytes(599)))
    log.seal()
    assert carried(log) == [(0, 20, 2)]
    done(log.append(3, 10, body=b"!"))
    log.seal()
    assert ranges(log) == [(0, 30)]
    assert log.partition().segments[0].size == MIN


def test_rows_after_a_segment_begin_a_run_that_has_not_waited():
    log = filled(10)
    for _ in range(WAITED + 1):
        log.seal()
    done(log.append(2, 5))
    log.seal()
    assert (ranges(log), carried(log)) == ([(0, 10)], [(10, 15, 1)])


def test_a_seal_of_nothing_makes_nothing():
    log = a_log()
    for _ in range(WAITED + 2):
        assert log.seal() == Sealed(0, 0, 0)
    assert (ranges(log), carried(log)) == ([], [])


class TestLimits:
    """Each partition has limits of its own, so that not all come due at one Seal."""

    @pytest.mark.parametrize(
        "sizes", [SEGMENT_SIZES, SIZES, SegmentSizes(1, 1, 0), SegmentSizes(2, 9, 1)]
    )
    def test_they_lie_between_half_and_the_whole(self, sizes):
        for namespace in [*range(2_000), 2**64 - 1, *(1 << bit for bit in range(64))]:
            size, waited = sizes.of(namespace)
            assert sizes.size_min / 2 <= size <= sizes.size_min
            assert sizes.waited_max / 2 <= waited <= sizes.waited_max

    @pytest.mark.parametrize("step", [1, 2, 8, 1 << 16, 1 << 32, 1 << 40])
    def test_they_are_spread_evenly_however_namespaces_are_counted(self, step):
        found = [SEGMENT_SIZES.of(number * step) for number in range(900)]
        seals = Counter(waited for _, waited in found)
        assert sorted(seals) == list(range(8, 17))
        assert all(80 <= count <= 120 for count in seals.values())
        sizes = Counter(size * 8 // SEGMENT_SIZES.size_min for size, _ in found)
        assert all(sizes[eighth] >= 200 for eighth in range(4, 8))

    def test_they_are_constants(self):
        assert [SEGMENT_SIZES.of(number) for number in (0, 1, 2, 2**64 - 1)] == [
            (8_388_608, 16),
            (5_796_385, 11),
            (7_398_467, 14),
            (6_786_527, 13),
        ]

    def test_partitions_that_are_written_alike_come_due_at_different_seals(self):
        log = a_log(partitions=64, sizes=SegmentSizes(10**6, 10**6, 16))
        for at in range(64):
            done(log.append(1, 10, at=at))
        made = [log.seal().segment_count for _ in range(17)]
        assert made[:8] == [0] * 8
        assert sum(made) == 64
        assert all(3 <= count <= 12 for count in made[8:])

    def test_the_first_segment_is_due_at_a_part_of_the_limit(self):
        firsts = [SEGMENT_SIZES.first_of(number) for number in range(1_000)]
        limits = [SEGMENT_SIZES.of(number)[0] for number in range(1_000)]
        assert all(2**20 <= first <= limit for first, limit in zip(firsts, limits, strict=True))
        parts = Counter(first * 8 // limit for first, limit in zip(firsts, limits, strict=True))
        assert all(parts[eighth] >= 110 for eighth in range(2, 8))
        assert firsts[:4] == [1_048_576, 2_400_941, 6_129_090, 1_166_190]

    def test_partitions_that_begin_together_come_due_one_after_the_other(self):
        sizes = SegmentSizes(1_600, 10**6, 100, first_min=200)
        log = a_log(partitions=64, sizes=sizes)
        made = []
        for version in range(1, 33):
            for at in range(64):
                done(log.append(version, 1, body=bytes(100), at=at))
            made.append(log.seal().segment_count)
        assert all(2 <= count <= 12 for count in made[3:])
        sizes_made = [one.size for at in range(64) for one in log.partition(at).segments[1:]]
        assert min(sizes_made) >= 800

    def test_only_the_first_rows_of_a_partition_come_due_early(self):
        log = a_log(sizes=SegmentSizes(1_600, 10**6, 100, first_min=200))
        done(log.append(1, 10, body=bytes(200)))
        log.seal()
        done(log.append(2, 10, body=bytes(1_500)))
        log.seal()
        assert (ranges(log), carried(log)) == ([(0, 10)], [(10, 20, 1)])
        done(log.purge())
        log.seal()
        done(log.append(3, 10, body=bytes(1_500)))
        log.seal()
        assert carried(log) == [(20, 30, 1)]

    def test_small_limits_are_left_as_they_are(self):
        assert SIZES.first_of(1) == SIZES.of(1)[0]

    def test_a_replay_cuts_the_same_segments(self):
        log = a_log(partitions=16)
        for version in range(1, 12):
            for at in range(16):
                done(log.append(version, 1, body=bytes(40 * at), at=at))
            log.seal()
        again = replayed(log.entries)
        assert again.digest() == log.machine.digest()
        parted = {at: [one.seal_op for one in log.partition(at).segments] for at in range(16)}
        assert len(set(map(tuple, parted.values()))) >= 3
        for at, partition in again.state.partitions.items():
            assert [one.seal_op for one in partition.segments] == parted[at]


@pytest.mark.parametrize(
    ("sizes", "files"),
    [
        ([TARGET], [1]),
        ([TARGET, MIN], [1, 1]),
        ([TARGET, MIN - 1], [2]),
        ([TARGET - 1, 1, MIN], [2, 1]),
        ([TARGET - 1, 2 * TARGET, MIN - 1], [3]),
        ([500] * 10, [4, 4, 2]),
        ([500] * 9, [4, 5]),
        ([3 * TARGET, 3 * TARGET, 10], [1, 2]),
        ([0, TARGET, 0, MIN, 0], [2, 3]),
    ],
)
def test_a_long_run_becomes_several_files_and_a_short_rest_joins_the_last(sizes, files):
    log = filled(*sizes)
    assert log.seal().segment_count == len(files)
    assert carried(log) == []
    assert [end - first for first, end in ranges(log)] == [10 * count for count in files]


@pytest.mark.parametrize("seed", range(20))
def test_no_file_is_smaller_than_the_least_or_larger_than_it_must_be(seed):
    random = Random(seed)
    sizes = [random.randrange(1, 900) for _ in range(40)]
    log = filled(*sizes)
    made = log.seal().segment_count
    segments = log.partition().segments
    assert made == len(segments)
    assert sum(one.size for one in segments) == sum(sizes)
    assert all(MIN <= one.size < TARGET + 900 + MIN for one in segments)
    covered = [place for one in segments for place in range(one.first, one.end)]
    assert covered == list(range(400))


def test_a_segment_says_where_its_rows_come_from():
    log = a_log(partitions=2)
    done(log.append(1, 3, body=bytes(600), at=P1))
    first_timestamp = log.now
    done(log.append(2, 4, body=bytes(600), at=P1))
    last_timestamp = log.now
    log.seal()
    (segment,) = log.partition(P1).segments
    assert segment == Segment(
        namespace=P1,
        created=1,
        first=0,
        end=7,
        version=1,
        first_op=3,
        seal_op=5,
        tip=log.entries[-1].checksum,
        first_timestamp=first_timestamp,
        last_timestamp=last_timestamp,
        size=1_200,
        place=Unplaced(((0, 3, 3, first_timestamp, 600), (3, 4, 4, last_timestamp, 600))),
    )


def test_the_first_op_is_the_lowest_even_if_rows_were_published_late():
    log = a_log()
    staged = log.stage(ONE, 0, rows=2, body=bytes(700))
    done(log.append(1, 3, body=bytes(700), writer=BOB))
    done(log.publish(staged.receipt))
    log.seal()
    (segment,) = log.partition().segments
    assert [piece.op for piece in segment.place.pieces] == [3, 2]
    assert segment.first_op == 2
    assert segment.last_timestamp == log.entries[3].header.timestamp


def test_the_bytes_of_a_staged_entry_count_once_it_is_published():
    log = a_log()
    staged = log.stage(ONE, 0, body=bytes(MIN))
    assert log.seal().segment_count == 0
    done(log.publish(staged.receipt))
    assert log.seal().segment_count == 1


def test_runs_end_at_a_schema_and_each_is_judged_alone():
    log = filled(100)
    done(log.set_schema(2))
    done(log.append(2, 10, body=bytes(MIN), schema=2))
    assert [run.version for run in log.partition().runs] == [1, 2]
    assert log.seal().segment_count == 1
    assert (ranges(log), carried(log)) == ([(10, 20)], [(0, 10, 1)])
    done(log.append(3, 10, schema=1))
    assert carried(log) == [(0, 10, 1), (20, 30, 0)]
    log.restart()
    for _ in range(WAITED):
        log.seal()
    assert (ranges(log), carried(log)) == ([(0, 10), (10, 20)], [(20, 30, 3)])
    assert [one.version for one in log.partition().segments] == [1, 2]


def test_a_trimmed_run_is_judged_by_what_is_left():
    log = filled(600, 600)
    done(log.trim(10))
    assert log.seal().segment_count == 0
    done(log.append(3, 10, body=bytes(400)))
    assert log.seal().segment_count == 1
    assert ranges(log) == [(10, 30)]


def test_trimming_a_run_does_not_make_it_wait_anew():
    log = filled(10, 10)
    for _ in range(WAITED):
        log.seal()
    done(log.trim(10))
    assert log.seal().segment_count == 1
    assert ranges(log) == [(10, 20)]


def test_a_capture_names_what_a_seal_decided_and_what_is_carried():
    log = a_log(partitions=2)
    done(log.open(OTHER))
    log.seal()
    done(log.append(1, 10, body=bytes(MIN)))
    done(log.append(1, 10, at=P1))
    done(log.append(1, 10, at=OTHER))
    done(log.stage(TWO, 0, at=P1))
    done(log.set_schema(2))
    log.seal()
    capture = log.capture
    assert capture.op == 10
    assert capture.segments == (log.partition().segments,)
    assert capture.live == (6, 7, 8)
    assert capture.schemas == {0: log.topic().schemas, 1: log.topic(OTHER).schemas}
    log.seal()
    assert log.capture.segments == (log.partition().segments,)
    assert list(log.machine.captures) == [4, 10, 11]


def test_a_capture_is_not_changed_by_what_comes_later():
    log = filled(MIN)
    log.seal()
    capture = log.capture
    done(log.append(2, body=bytes(MIN)))
    log.purge()
    log.seal()
    assert [one.end for segments in capture.segments for one in segments] == [10]
    assert capture.live == ()


def test_an_entry_that_rows_of_two_runs_point_to_is_carried_once():
    log = a_log()
    staged = log.stage(ONE, 0)
    done(log.publish(staged.receipt))
    log.seal()
    assert log.capture.live == (2,)


def test_a_discarded_stage_is_no_longer_carried():
    log = a_log()
    done(log.stage(ONE, 0))
    log.seal()
    assert log.capture.live == (2,)
    log.discard(ONE)
    log.seal()
    assert log.capture.live == ()


def test_a_seal_whose_body_cannot_be_read_still_seals():
    log = filled(MIN)
    assert log.send(SEAL, b"\xc1") == Sealed(1, 0, 0)
    assert log.machine.state.sealed_op == 3


def test_reads_find_each_row_before_during_and_after_a_cut():
    log = filled(*[MIN] * 3)
    runs, segments = log.partition().runs, log.partition().segments
    log.seal()
    # The lists that a reader took before are as they were.
    assert (runs[0].first, runs[0].end) == (0, 30)
    assert segments == ()
