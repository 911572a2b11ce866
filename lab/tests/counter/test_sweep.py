"""The crash sweep: a sample of its parts in each run, all of it and more seeds in a soak."""

import pytest

from headrace_lab.counter.sweep import SWEEP
from headrace_lab.harness.mutants import MUTANTS

PARTS = 6


@pytest.mark.campaign(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_crash_loses_or_invents_an_entry(part):
    tally = SWEEP.sweep(seed=1, share=(part, PARTS))
    assert tally.failures == []
    assert tally.landed["crash before"] >= 20
    assert tally.landed["crash in recovery"] >= 500
    assert tally.found["cut a torn tail"] > 0
    assert tally.found["wrote frames again"] > 0


@pytest.mark.parametrize("part", range(2))
def test_no_crash_at_any_effect_of_a_recovery_harms(part):
    tally = SWEEP.sweep_recovery(seed=1, share=(part, 2))
    assert tally.failures == []
    assert tally.cases >= 1_000


@pytest.mark.campaign(4)
@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "sweep"]
)
def test_a_planted_bug_is_caught(mutant):
    assert SWEEP.catch(mutant, seed=1)


def test_the_script_passes_through_every_kind_of_effect():
    effects = SWEEP.effects()
    kinds = {effect.kind for effect in effects}
    assert kinds >= {"create", "write", "truncate", "sync", "rename", "unlink", "sync-dir"}
    assert any("journal/spare" in effect.path for effect in effects)
    assert any("snapshots" in effect.path for effect in effects)


def test_the_same_seed_is_the_same_sweep():
    first, second = (SWEEP.sweep(seed=5, share=(0, 40)) for _ in range(2))
    assert (first.cases, first.landed, first.found) == (
        second.cases,
        second.landed,
        second.found,
    )
