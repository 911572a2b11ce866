"""Transcripts of small clusters: what happened once happens again, word for word."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "scenarios"
_spec = importlib.util.spec_from_file_location("scenario_scripts", HERE / "scripts.py")
assert _spec is not None
assert _spec.loader is not None
scripts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scripts)


@pytest.mark.parametrize("name", sorted(scripts.SCRIPTS))
def test_the_transcript_is_as_it_is_kept(name):
    kept = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    assert scripts.SCRIPTS[name]().text() == kept


def test_every_transcript_has_its_script():
    kept = {path.stem for path in HERE.glob("*.txt")}
    assert kept == set(scripts.SCRIPTS)
    assert len(kept) >= 20


def test_in_every_scene_that_ends_well_all_hold_one_log():
    for name in ("primary_crashes", "wiped_replica", "repair_across_a_checkpoint"):
        scene = scripts.SCRIPTS[name]()
        scene.world.oracles.ended([host for host in scene.hosts if host.process is not None])
