"""The corruption matrix: a sample of its parts in each run, all of it in a soak."""

import pytest

from headrace_lab.counter.damage import damaged, every, ranges_of
from headrace_lab.counter.expect import expected
from headrace_lab.counter.matrix import MATRIX, RANGES_SHORT
from headrace_lab.counter.scene import RESTED, STORIES, build
from headrace_lab.harness.damage import RANGE_SIZES, Damage
from headrace_lab.harness.mutants import MUTANTS

PARTS = 16


@pytest.mark.campaign(5)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("story", STORIES)
def test_every_damage_has_its_exact_outcome(story, part):
    result = MATRIX.share(story, (part, PARTS), MATRIX.counts[story], 1, "")
    assert result.failures == []
    # All parts together are at least 50,000 cases that really damaged something.
    assert result.cases >= 50_000 // (PARTS * len(STORIES))


@pytest.mark.campaign(3)
@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "matrix"]
)
def test_a_planted_bug_is_caught(mutant):
    assert MATRIX.catch("matrix", mutant, seed=1)


@pytest.mark.campaign(3)
@pytest.mark.parametrize("story", RESTED)
def test_a_damaged_range_of_a_group_at_rest_takes_nothing(story):
    result = MATRIX.share(story, (0, 1), RANGES_SHORT, 1, "")
    assert result.failures == []
    assert result.cases >= RANGES_SHORT * 9 // 10


@pytest.mark.campaign(2)
@pytest.mark.parametrize(
    "mutant", [mutant.name for mutant in MUTANTS if mutant.harness == "ranges"]
)
def test_a_planted_bug_of_evidence_is_caught_by_ranges(mutant):
    assert MATRIX.catch("ranges", mutant, seed=1)


def test_a_full_run_damages_ranges_of_every_size_at_every_sector_of_every_file():
    scenes = [build(name) for name in RESTED]
    assert sum(1 for scene in scenes for _ in ranges_of(scene)) >= 20_000
    files = {path: len(scenes[0].disk.content(path)) for path in scenes[0].disk.files()}
    damages = set(ranges_of(scenes[0]))
    for path, size in files.items():
        for at in range(0, size, 512):
            assert {Damage(path, "noise", at, each) for each in RANGE_SIZES} <= damages
    assert (min(RANGE_SIZES), max(RANGE_SIZES)) == (512, 64 * 1024)


def test_a_damage_that_changes_nothing_is_no_case():
    scene = build("young")
    newest = scene.layouts[-1].path
    last_sector = len(scene.disk.content(newest)) // 512 - 1
    assert expected(scene, Damage(newest, "zero", last_sector)) is None


def test_every_bit_and_every_length_is_among_the_damages_of_a_full_run():
    scene = build("young")
    damages = list(every(scene))
    for path in ("superblock.a", scene.layouts[0].path):
        size = len(scene.disk.content(path))
        assert sum(one.path == path and one.kind == "flip" for one in damages) == size * 8
        assert sum(one.path == path and one.kind == "cut" for one in damages) == size - 1


def test_a_sector_gets_back_what_it_held_before():
    scene = build("running")
    newest = scene.layouts[-1]
    sector = newest.entries[-1].start // 512
    content = damaged(scene, Damage(newest.path, "old", sector))
    assert content != scene.disk.content(newest.path)
    assert any(
        content[sector * 512 :][:512] == one[sector * 512 :][:512]
        for one in scene.versions[newest.path][:-1]
    )


def test_the_command_lists_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        MATRIX.main(["--help"])
    assert stop.value.code == 0
    assert "--mutants" in capsys.readouterr().out
