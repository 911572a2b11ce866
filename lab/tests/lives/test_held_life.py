"""A held group 0 that is opened, with faults; every effect is a command of its own."""

import pytest

from headrace_lab.lives.held_life import catch, main, resumes, stale, sweep
from headrace_lab.lives.held_mutants import MUTANTS


def test_a_crash_leaves_the_same_doubt_or_all_adopted():
    tally = sweep(1, every=16)
    assert tally.failures == []
    assert tally.cases >= 300
    assert set(tally.found) == {"the same doubt", "all adopted"}


def test_a_crash_in_the_start_that_goes_on_with_it_is_gone_on_with():
    tally = resumes(1, every=4)
    assert tally.failures == []
    assert tally.cases >= 50


def test_a_new_group_that_was_not_placed_is_not_taken_once_another_was_put_back():
    assert stale(1).failures == []


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_caught(mutant):
    assert catch(mutant, seed=1)


def test_the_command_lists_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--mutants" in capsys.readouterr().out
