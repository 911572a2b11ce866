"""State is a function of the log: the process, its hash seed and its past do not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.metadata import replay

from headrace.metadata.results import MetadataCode

ROOT = Path(__file__).parent.parent.parent


def test_replicas_fed_the_same_commands_are_equal_at_every_step():
    assert replay.lines() == replay.lines()


def test_the_history_meets_most_outcomes():
    told = replay.lines()
    kinds = ["Created(", "Altered(", "Deleted(", *(f"'{code}'" for code in MetadataCode)]
    met = {kind for kind in kinds if any(kind in line for line in told)}
    assert {"Created(", "Altered(", "Deleted(", "'limit_reached'", "'stream_not_empty'"} <= met
    assert len(met) >= 10


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_the_hash_seed_does_not_show(seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.metadata.replay"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == replay.lines()
