"""The corruption matrix of a shard: a sample of its parts in each run, all in a soak."""

import pytest

from headrace_lab.harness.damage import Damage
from headrace_lab.shard.damage import Expected, every, expected
from headrace_lab.shard.matrix import MATRIX
from headrace_lab.shard.mutants import MUTANTS
from headrace_lab.shard.scene import STORIES, build

PARTS = 16


@pytest.mark.campaign(5)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("story", STORIES)
def test_every_damage_has_its_exact_outcome(story, part):
    result = MATRIX.share(story, (part, PARTS), MATRIX.counts[story], 1, "")
    assert result.failures == []
    assert result.cases >= 15


@pytest.mark.campaign(2)
@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "matrix"]
)
def test_a_planted_bug_is_caught(mutant):
    assert MATRIX.catch("matrix", mutant, seed=1)


def test_at_least_fifteen_bugs_are_planted():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15


def test_a_missing_segment_costs_its_rows_and_is_said_at_once():
    scene = build("stopped")
    for path, rows in scene.segments.items():
        outcome = expected(scene, Damage(path, "missing"))
        assert outcome == Expected(lost=(rows,), finding=True, scrubbed=True)


def test_a_carry_file_that_the_journal_covers_costs_nothing():
    scene = build("stopped")
    covered = [path for path in scene.regions if path in scene.named - scene.lonely.keys()]
    assert covered
    for path in covered:
        assert expected(scene, Damage(path, "missing")).lost == ()


def test_a_full_run_flips_every_byte():
    scene = build("stopped")
    path = min(scene.segments)
    flips = [one for one in every(scene, 1, None) if (one.path, one.kind) == (path, "flip")]
    assert len({one.at // 8 for one in flips}) == len(scene.disk.content(path))


def test_the_command_lists_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        MATRIX.main(["--help"])
    assert stop.value.code == 0
    assert "--mutants" in capsys.readouterr().out
