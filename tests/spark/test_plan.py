"""Which rows are next: limits, schema versions, and tasks."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.batch_ranges import Backlog, next_ends, next_version, split


def a_backlog(start, end, versions=((1, 0),), row_size=100.0):
    return Backlog(start, end, row_size, versions)


@st.composite
def backlogs(draw):
    found = {}
    for number in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 50))
        end = start + draw(st.integers(0, 50))
        firsts = sorted(draw(st.sets(st.integers(1, 100), max_size=3)))
        versions = ((1, 0), *((place + 2, first) for place, first in enumerate(firsts)))
        found[number] = a_backlog(start, end, versions, draw(st.floats(0, 1000)))
    return found


LIMITS = st.one_of(st.none(), st.integers(1, 200))


@given(backlogs(), LIMITS, LIMITS)
def test_a_batch_stays_in_its_backlog_and_within_its_limit(found, row_count_max, size_max):
    ends = next_ends(found, row_count_max, size_max)
    assert set(ends) == set(found)
    taken = sum(ends[number] - each.start for number, each in found.items())
    assert all(each.start <= ends[number] <= each.end for number, each in found.items())
    assert row_count_max is None or taken <= row_count_max
    assert (taken > 0) == any(each.row_count for each in found.values())


@given(backlogs(), LIMITS)
def test_a_batch_never_crosses_a_schema_version(found, row_count_max):
    version = next_version(found)
    for number, end in next_ends(found, row_count_max, None).items():
        each = found[number]
        if end > each.start:
            inside = {v for v, first in each.versions if each.start < first < end}
            assert not inside
            assert each.version == version


@given(backlogs())
def test_repeated_batches_read_everything_once(found):
    read = {number: [] for number in found}
    for _ in range(1_000):
        ends = next_ends(found, 7, None)
        for number, end in ends.items():
            read[number] += range(found[number].start, end)
        if all(found[number].start == end for number, end in ends.items()):
            break
        found = {
            number: a_backlog(ends[number], each.end, each.versions)
            for number, each in found.items()
        }
    for number, each in found.items():
        assert each.row_count == 0
        assert read[number] == sorted(set(read[number]))


def test_a_limit_is_shared_by_backlog():
    ends = next_ends({0: a_backlog(0, 900), 1: a_backlog(50, 150)}, 100, None)
    assert ends == {0: 90, 1: 60}


def test_the_smaller_limit_wins():
    found = {0: a_backlog(0, 1_000)}
    assert next_ends(found, 100, 5_000) == {0: 50}
    assert next_ends(found, 20, 5_000) == {0: 20}
    assert next_ends(found, None, 1) == {0: 1}


RANGES = st.dictionaries(
    st.integers(0, 4),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda two: (two[0], sum(two))),
)


@given(RANGES, st.integers(1, 20))
def test_tasks_cover_each_range_once(ranges, count_min):
    tasks = split(ranges, count_min)
    for number, (start, end) in ranges.items():
        own = [(first, last) for each, first, last in tasks if each == number]
        assert [row for first, last in own for row in range(first, last)] == [
            *range(start, end)
        ]
        assert all(first < last for first, last in own)
    row_count = sum(end - start for start, end in ranges.values())
    assert len(tasks) >= min(count_min, row_count)
