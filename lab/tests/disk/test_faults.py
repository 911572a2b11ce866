"""Which power cuts a test tries: complete when few changes are pending, varied when many."""

import random
from random import Random

from headrace_lab.disk.faults import Keep, Pending, choices, sectors


def a_write(index, path="a", position=0, size=100):
    return Pending(index, "write", path, position, size, len(sectors(position, size)))


def a_name(index):
    return Pending(index, "add-name", f"n{index}")


def chosen(pending, bound=4, seed=0):
    return list(choices(pending, Random(seed), bound))


def test_sectors_are_counted_from_the_start_of_the_file():
    assert sectors(0, 1024) == ((0, 512), (512, 1024))
    assert sectors(500, 600) == ((0, 12), (12, 524), (524, 600))
    assert sectors(512, 1) == ((0, 1),)
    assert sectors(7, 0) == ()


def test_nothing_pending_has_one_outcome():
    assert chosen([]) == [[]]


def test_few_changes_are_kept_in_every_subset():
    found = chosen([a_name(0), a_name(1), a_name(2)], bound=3)
    assert len(found) == 8
    assert {tuple(keep.index for keep in kept) for kept in found} == {
        (), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2),
    }  # fmt: skip


def test_many_changes_are_kept_none_all_alone_missing_and_by_prefix():
    pending = [a_name(index) for index in range(12)]
    found = {tuple(keep.index for keep in kept) for kept in chosen(pending, bound=3)}
    everything = tuple(range(12))
    assert {(), everything} <= found
    for index in range(12):
        assert (index,) in found
        assert everything[:index] in found
        assert everything[:index] + everything[index + 1 :] in found
    assert len(found) > 60


def test_each_write_is_torn_before_and_among_the_others():
    pending = [a_name(0), a_write(1, position=500, size=1000), a_name(2)]
    found = [tuple(kept) for kept in chosen(pending)]
    first, last = Keep(1, ((0, 12),)), Keep(1, ((524, 1000),))
    zeros = Keep(1, ((1000, 1000),))
    for torn in (first, last, zeros):
        assert (Keep(0), torn) in found
        assert (Keep(0), torn, Keep(2)) in found
    cuts = {keep.ranges for kept in found for keep in kept if keep.ranges}
    assert any(len(cut) == 1 and cut[0][0] == 0 and cut[0][1] % 512 != 12 for cut in cuts)


def test_overlapping_writes_also_land_in_the_wrong_order():
    pending = [a_write(0, position=0), a_write(1, position=99), a_write(2, position=400)]
    found = [tuple(kept) for kept in chosen(pending)]
    assert (Keep(1), Keep(0), Keep(2)) in found
    assert (Keep(0), Keep(2), Keep(1)) not in found


def test_writes_to_different_files_do_not_overlap():
    found = [tuple(kept) for kept in chosen([a_write(0, "a"), a_write(1, "b")])]
    assert (Keep(1), Keep(0)) not in found


def test_no_choice_comes_twice():
    pending = [a_write(index, position=index * 50) for index in range(6)]
    found = [tuple(kept) for kept in chosen(pending, bound=3)]
    assert len(found) == len(set(found))


def test_one_seed_gives_one_list_and_leaves_the_global_random_alone():
    pending = [a_write(index, position=index * 900, size=2000) for index in range(6)]
    before = random.getstate()
    assert chosen(pending, seed=5) == chosen(pending, seed=5)
    assert chosen(pending, seed=5) != chosen(pending, seed=6)
    assert random.getstate() == before
