"""Places that cannot be looked at: each is said, and none ends the look."""

import shutil
import subprocess
import sys

import pytest
from tests.doctor.two_shards import FIRST, SETTINGS, ids

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import HeadraceError

ROOMS = ["carry", "journal", "snapshots", "segments", "quarantine"]


def bar(path) -> None:
    """Put a link to itself in a directory's place: nobody can list it, not even root."""
    shutil.rmtree(path)
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", [*(f"{FIRST}/{room}" for room in ROOMS), FIRST, "groups"])
def test_a_directory_that_cannot_be_listed_is_said_once(stopped, tmp_path, name):
    bar(stopped / name)
    found = examine(str(stopped))
    (one,) = found.damage
    assert (one.kind, one.file) == ("unlistable", name)
    assert "unknown" in one.lost
    account = salvage(str(stopped), str(tmp_path / "new"))
    if "quarantine" in name:  # where a row is looked for only if its segment is bad
        assert account.is_whole
    else:
        assert any(said.startswith(name) and "unknown" in said for said in account.lost)


def test_a_salvage_brings_over_what_is_beside_it(stopped, tmp_path, counts):
    bar(stopped / FIRST)
    salvage(str(stopped), str(tmp_path / "new"))
    found = ids(tmp_path / "new")
    assert {len(rows) for key, rows in found.items() if key in counts} >= {15, 8}


@pytest.mark.parametrize("name", ["LOCK", "node.toml", f"{FIRST}/superblock.a"])
def test_a_directory_in_the_place_of_a_file_is_damage_as_a_start_fails(stopped, tmp_path, name):
    (stopped / name).unlink()
    (stopped / name).mkdir()
    found = examine(str(stopped))
    (one,) = found.damage
    assert (one.file, one.what) == (name, "a directory where a file is expected")
    assert not any(one.kind == "stranger" for one in found.notes)
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    with pytest.raises(HeadraceError):
        headrace.open(stopped, **SETTINGS)


def test_the_command_prints_no_trace(stopped):
    bar(stopped / FIRST / "carry")
    command = [sys.executable, "-m", "headrace", "doctor", str(stopped)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (6, "")
