"""Lives of group 0 with its copy; more seeds, and every effect, are a command of their own."""

import pytest

from headrace_lab.lives.copy_life import catch, main, share, sweep
from headrace_lab.lives.copy_mutants import MUTANTS


def test_what_was_acknowledged_comes_back():
    tally = share(1, 8, "")
    assert tally.failures == []
    assert tally.found["Healed"] >= 30
    assert tally.found["Recovered"] >= 50
    assert len(tally.landed) == 11


def test_a_crash_at_any_effect_of_a_heal_is_finished_by_the_next_start():
    tally = sweep(1, every=16)
    assert tally.failures == []
    assert tally.cases >= 300


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_caught(mutant):
    assert catch(mutant, seed=1)


def test_the_command_lists_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--mutants" in capsys.readouterr().out
