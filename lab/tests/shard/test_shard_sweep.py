"""The crash sweep of a shard: a sample of its parts in each run, all of it in a soak."""

from dataclasses import replace

import pytest

from headrace_lab.shard.mutants import MUTANTS
from headrace_lab.shard.sweep import SWEEP

PARTS = 4
# One strike of so many: all of them are `python -m headrace_lab.shard.sweep --full`.
PART = replace(SWEEP.short, every=20)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_crash_loses_or_invents_a_row(part):
    tally = SWEEP.sweep(seed=1, share=(part, PARTS), extent=PART)
    assert tally.failures == []
    assert tally.cases >= 60
    assert tally.landed["crash in recovery"] >= 60
    assert tally.found["replayed some ops"] >= 60


@pytest.mark.parametrize("part", range(2))
def test_no_crash_at_any_effect_of_a_recovery_loses_a_row(part):
    tally = SWEEP.sweep_recovery(
        seed=1, share=(part, 2), extent=replace(SWEEP.short, states=2, cuts=1)
    )
    assert tally.failures == []
    assert tally.cases >= 100


@pytest.mark.campaign(3)
@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "sweep"]
)
def test_a_planted_bug_is_caught(mutant):
    assert SWEEP.catch(mutant, seed=1)


def test_the_script_writes_names_and_collects_segments_and_carry_files():
    effects = SWEEP.effects()
    for room in ("segments/", "carry/", "snapshots/"):
        kinds = {effect.kind for effect in effects if effect.path.startswith(room)}
        assert kinds >= {"create", "write", "sync", "rename", "unlink"}
    assert {"segments", "carry"} <= {one.path for one in effects if one.kind == "sync-dir"}


def test_the_same_seed_is_the_same_sweep():
    first, second = (
        SWEEP.sweep(seed=5, share=(0, 8), extent=replace(SWEEP.short, every=50))
        for _ in range(2)
    )
    assert (first.cases, first.landed, first.found) == (
        second.cases,
        second.landed,
        second.found,
    )
