"""The sample of a campaign: small, other cases each time, and none that is never tried."""

from pathlib import Path

import pytest
from tests.rotation import sample

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("count", [1, 2, 7, 30, 80])
@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_every_case_is_tried_within_as_many_runs_as_are_needed(count, size):
    runs = -(-count // size)
    for first in (0, 371):
        tried = [sample(count, size, first + number) for number in range(runs)]
        assert frozenset().union(*tried) == frozenset(range(count))
        assert all(1 <= len(each) <= size for each in tried)


def test_two_runs_of_one_commit_try_the_same_and_the_next_commit_others():
    assert sample(80, 5, 371) == sample(80, 5, 371)
    assert not sample(80, 5, 371) & sample(80, 5, 372)


CAMPAIGN = """
import pytest

@pytest.mark.campaign(1)
@pytest.mark.parametrize("case", range(3))
def test_each(case):
    pass

@pytest.mark.campaign(1, of="pool")
def test_one():
    pass

@pytest.mark.campaign(1, of="pool")
def test_other():
    pass

def test_plain():
    pass
"""


def run(pytester, *options):
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makepyfile(CAMPAIGN)
    pytester.makeini("[pytest]\nmarkers = campaign: ...")
    ended = pytester.runpytest_inprocess("-v", "-p", "no:cacheprovider", *options)
    outcomes = ended.parseoutcomes()
    return {
        line.split("::")[1].split()[0] for line in ended.outlines if "PASSED" in line
    }, outcomes


def test_a_run_keeps_a_sample_of_each_campaign_and_all_that_is_none(pytester):
    first, outcomes = run(pytester, "--rotation", "0")
    assert first == {"test_each[0]", "test_one", "test_plain"}
    assert outcomes == {"passed": 3, "deselected": 3}
    assert run(pytester, "--rotation", "1")[0] == {"test_each[1]", "test_other", "test_plain"}


def test_a_whole_run_keeps_every_case(pytester):
    assert run(pytester, "--whole")[1] == {"passed": 6}
