"""A log, or a part of it, that belongs to another user: nothing of it is called damaged."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stuck import immutable

import headrace
from headrace.cli.terminal.exits import Exit

# The tests may be root's, whom no mode stops: this takes that right from a child for good.
_POWERLESS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")
SEE_LS = "Run as the user that owns it, or change its permissions (see ls -ld)"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can make files of another user",
)


@pytest.fixture
def data(tmp_path):
    """A small log."""
    path = tmp_path / "data"
    with headrace.open(path) as log:
        log.create_topic("a", {"id": "int64"}).append({"id": [1, 2, 3]})
    return path


def of_another_user(path: Path) -> Path:
    os.chown(path, 65534, 65534)
    path.chmod(0o700 if path.is_dir() else 0o600)
    return path


def powerless(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command without the rights that root has over others' files."""
    command = [*_POWERLESS, sys.executable, "-m", "headrace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


PARTS = ["groups", "groups/00000/journal", "groups/00001", "groups/00001/carry", "cluster.toml"]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_may_not_be_read_is_named_with_a_step_that_helps(data, name):
    path = of_another_user(data / name)
    ended = powerless("topic", "list", "--data", data)
    assert ended.returncode == Exit.FAILURE, ended
    assert str(path) in ended.stderr
    assert ended.stderr.endswith(f"Permission denied. {SEE_LS}\n")


@pytest.mark.parametrize("pattern", ["journal/*.wal", "superblock.a"])
def test_a_file_that_may_not_be_opened_is_not_called_damaged(data, pattern):
    (path,) = (data / "groups" / "00001").glob(pattern)
    of_another_user(path)
    ended = powerless("status", "--data", data)
    assert ended.returncode != 0
    assert str(path) in ended.stderr + ended.stdout
    assert "copy" not in ended.stderr
    assert "backup" not in ended.stderr
    looked = powerless("doctor", data)
    assert looked.returncode == Exit.INTEGRITY
    assert "Permission denied" in looked.stdout
    assert "Rerun as the user who owns the log" in looked.stdout.replace("\n", " ")
    assert "Restore the file" not in looked.stdout


def test_a_cluster_toml_that_may_not_be_read_is_a_note_with_a_step_that_helps(data):
    of_another_user(data / "cluster.toml")
    looked = powerless("doctor", data, "--json")
    assert looked.returncode == Exit.OK
    (one,) = json.loads(looked.stdout)["findings"]
    assert (one["kind"], one["file"]) == ("identity-file", "cluster.toml")
    assert "cannot be read: open failed: Permission denied" in one["what"]
    assert "nothing is lost" in one["means"]
    assert "ls -l" in one["next"]


def test_a_directory_above_is_named_if_it_is_what_stops(data):
    inner = data / "inner"
    headrace.open(inner).close()
    of_another_user(data)
    ended = powerless("topic", "list", "--data", inner)
    assert ended.returncode == Exit.FAILURE
    assert f"(at {data})" in ended.stderr


def test_the_doctor_says_it_as_other_commands_do(data):
    of_another_user(data)
    ended = powerless("doctor", data)
    assert ended.returncode == Exit.FAILURE
    assert ended.stderr.endswith(f"Permission denied. {SEE_LS}\n")


@pytest.mark.parametrize("name", [*PARTS, "groups/00001/superblock.b", "LOCK", "heads"])
def test_no_salvage_takes_what_may_not_be_read_for_lost(data, tmp_path, name):
    of_another_user(data / name)
    ended = powerless("doctor", data, "--salvage", tmp_path / "new")
    assert ended.returncode == Exit.FAILURE
    assert f"{data / name}: open failed: Permission denied. {SEE_LS}" in ended.stderr
    assert not (tmp_path / "new").exists()
    os.chown(data / name, 0, 0)
    (data / "lost+found").mkdir()  # of a file system, and nothing of the log's
    of_another_user(data / "lost+found")
    assert powerless("doctor", data, "--salvage", tmp_path / "new").returncode == 0


def test_a_lock_that_may_not_be_read_is_not_called_free(data):
    of_another_user(data / "LOCK")
    found = powerless("doctor", data)
    assert found.returncode == Exit.INTEGRITY
    assert "LOCK" in found.stdout
    assert "cannot be accessed: Permission denied" in found.stdout.replace("\n", " ")
    ended = powerless("topic", "list", "--data", data)
    assert "It belongs to another user. Connect to its node with --address" in ended.stderr


def test_an_immutable_lock_belongs_to_nobody_else(data):
    with immutable(data / "LOCK"):
        ended = powerless("topic", "list", "--data", data)
    assert ended.returncode == Exit.FAILURE
    assert "LOCK: lock failed: Operation not permitted" in ended.stderr
    assert "lsattr" in ended.stderr
    assert "another user" not in ended.stderr


def test_an_immutable_copy_of_metadata_is_named_as_what_it_is(data):
    create = ("topic", "create", "b", "--schema", "id:int64", "--data", data)
    with immutable(data / "metadata.copy"):
        ended = powerless(*create, "--timeout", "5s")
    assert ended.returncode == Exit.UNAVAILABLE
    assert "It is the copy of the metadata" in ended.stderr
    assert "lsattr" in ended.stderr
    assert powerless(*create).returncode == 0


def test_heads_that_cannot_be_written_are_tried_again_and_that_is_said(data):
    with immutable(data / "heads"), headrace.open(data) as log:
        log.create_topic("b", {"id": "int64"})
        until = time.monotonic() + 20
        while not (said := log.status()["heads"]["failure"]):
            assert time.monotonic() < until
            time.sleep(0.05)
    assert "The write is retried automatically" in said
    assert "only a restart" not in said


_WITHOUT_ROOM = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.argv = ["headrace", *sys.argv[1:]]
runpy.run_module("headrace", run_name="__main__")
"""


def test_a_start_without_room_says_that_the_disk_is_full(data):
    command = [sys.executable, "-c", _WITHOUT_ROOM, "topic", "list", "--data", str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == Exit.UNAVAILABLE, ended
    assert "LOCK: no space left on the device (lock). Free some space, then" in ended.stderr
