"""Each planted bug of metadata in doubt is seen by the test that is there for it."""

import pytest
from tests.metadata import test_adoption, test_records
from tests.node import test_branches, test_doubt, test_reconcile, test_way_out
from tests.node.test_doubt import two_topics  # noqa: F401 - a fixture
from tests.partition.test_machine import TestBranches

from headrace.errors import HeadraceError
from headrace_lab.harness.mutants import planted
from headrace_lab.lives.doubt_plants import PLANTS


def short_of(two_topics, tmp_path, *, heads: bool):  # noqa: F811 - the fixture's value
    data = test_doubt.copied(two_topics, tmp_path / "data")
    test_doubt.damage_end(test_doubt.journal_of(data, 0), 512)
    if not heads:
        (data / "heads").unlink()
    return data


def lost(two_topics, tmp_path):  # noqa: F811
    short = short_of(two_topics, tmp_path, heads=False)
    test_doubt.test_a_topic_that_metadata_lost_is_neither_removed_nor_given_to_another(
        short, two_topics, "shop/c"
    )


def removed(two_topics, tmp_path):  # noqa: F811
    short = short_of(two_topics, tmp_path, heads=False)
    test_doubt.test_in_doubt_nothing_is_trimmed_purged_or_expired(short)


def replaced(two_topics, tmp_path):  # noqa: F811
    short = short_of(two_topics, tmp_path, heads=False)
    test_doubt.test_in_doubt_the_copy_of_metadata_stays_as_it_is(short)


def held(two_topics, tmp_path):  # noqa: F811
    test_doubt.test_a_held_group_0_keeps_each_byte_and_its_head(two_topics, tmp_path)


def branched(_, tmp_path):
    test_doubt.test_a_life_of_a_lost_history_is_never_taken_for_one_that_came_in_its_place(
        tmp_path
    )


def another_history(_, tmp_path):
    place = test_branches.two_branches(tmp_path)
    test_branches.test_a_record_of_another_history_deletes_nothing(place, tmp_path, "a", 0, "b")


def plain(_, tmp_path):
    place = test_branches.two_plain_branches(tmp_path)
    data = test_branches.put_plain(place, tmp_path / "data")
    test_branches.test_a_record_of_a_plain_count_ends_no_life_of_another_history(data)


SEEN_BY = {
    "a plain count of any history": plain,
    "stamps compared as numbers": lambda *_: (
        TestBranches().test_what_was_planned_with_metadata_of_a_branch_is_stale()
    ),
    "life from the counter alone": branched,
    "history not remembered": lambda *_: (
        test_records.test_metadata_knows_its_own_history_from_a_branch()
    ),
    "ForgetLife without a rise": lambda *_: (
        test_records.test_a_life_that_is_given_up_is_recorded_and_raises_the_revision_once()
    ),
    "a held group 0 is cut": held,
    "metadata not judged": lost,
    "copy replaced in doubt": replaced,
    "trim in doubt": removed,
    "expiry in doubt": removed,
    "adopt lowers the counter": lambda *_: (
        test_adoption.test_a_floor_alone_raises_the_revision_above_it_and_forgets_the_branch()
    ),
    "adopt begins offsets at 0": lambda _, tmp_path: (
        test_way_out.test_an_adopted_topic_has_its_rows_cursors_writers_and_offsets(tmp_path)
    ),
    "adopt takes a used stream id": lambda *_: (
        test_adoption.test_a_stream_id_or_name_that_is_taken_is_refused()
    ),
    "an orphan is served": lambda *_: (
        test_reconcile.test_a_life_of_the_same_number_and_another_schema_is_not_served()
    ),
    "a record of a later life counts": another_history,
    "built in a shard that is astray": another_history,
    "a checkpoint of metadata in doubt": lambda _, tmp_path: (
        test_branches.test_metadata_that_is_put_back_after_a_long_doubt_is_taken(tmp_path)
    ),
    "adopted while a shard is away": lambda _, tmp_path: (
        test_branches.test_nothing_is_decided_while_a_shard_does_not_serve(tmp_path)
    ),
    "adopt keeps retention": lambda *_: (
        test_adoption.test_an_adoption_keeps_the_rows_of_every_topic()
    ),
}


@pytest.mark.parametrize("name", [one.name for one in PLANTS])
def test_a_planted_bug_is_seen(name, two_topics, tmp_path):  # noqa: F811
    seen = (AssertionError, HeadraceError, TimeoutError, pytest.fail.Exception)
    with planted(name, PLANTS), pytest.raises(seen):
        SEEN_BY[name](two_topics, tmp_path)


@pytest.mark.parametrize("name", [one.name for one in PLANTS])
def test_without_it_the_same_test_passes(name, two_topics, tmp_path):  # noqa: F811
    SEEN_BY[name](two_topics, tmp_path)
