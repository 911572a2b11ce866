"""Lives of a group with a file of heads; more seeds are a command of their own."""

import pytest

from headrace_lab.harness.mutants import MUTANTS
from headrace_lab.lives.heads_life import catch, main, share


def test_no_crash_makes_a_head_claim_too_much_or_fall():
    tally = share(1, 6, "")
    assert tally.failures == []
    assert tally.cases >= 20
    assert tally.found["refused"] >= 5
    assert tally.landed["failed write"] >= 5


@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "heads"]
)
def test_a_planted_bug_is_caught(mutant):
    assert catch(mutant, seed=1)


def test_the_command_lists_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--mutants" in capsys.readouterr().out
