"""A look at a log changes nothing, works beside a process, and never says a wrong thing."""

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doctor import harm, logs
from tests.doctor.logs import CLICKS

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import DirectoryHeld
from headrace.journal.superblock import Superblock, decode, encode
from headrace.node.identity import look

WRITER = """
import sys, time
from pathlib import Path
import headrace
from tests.doctor import logs
done = logs.Appended()
with headrace.open(sys.argv[1], **logs.SETTINGS) as log:
    topic = log.create_topic("web/clicks", {"id": "int64", "page": "string"}, partitions=3)
    print("ready", flush=True)
    for number in range(100_000):
        topic.append([{"id": number, "page": "x" * 50}], partition=number % 3)
        print(number, flush=True)
"""


def prints(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return size, time of change and hash of every file, and the times of directories."""
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (stat.st_size, stat.st_mtime_ns, content)
    found["."] = (0, root.stat().st_mtime_ns, "")
    return found


def every_harm_at_once(log: Path) -> None:
    for do in (harm.torn_tail, harm.body_rot, harm.one_header_block, harm.one_superblock):
        do(log)
    for do in (harm.segment_page, harm.carry_table, harm.leftovers, harm.stranger):
        do(log)


@pytest.mark.parametrize("deep", [False, True], ids=["glance", "deep"])
def test_nothing_is_changed_by_looking(log, deep):
    every_harm_at_once(log)
    before = prints(log)
    examination = examine(str(log), deep=deep)
    assert prints(log) == before
    kinds = {one.kind for one in examination.findings}
    assert {"torn-tail", "superblock-copy", "leftover", "header-block"} <= kinds
    assert {"carry-bad", "journal-entry", "stranger"} <= kinds
    assert ("segment-rows" in kinds) is deep


def test_nothing_is_changed_by_a_salvage(log, tmp_path):
    every_harm_at_once(log)
    before = prints(log)
    salvage(str(log), str(tmp_path / "new"))
    assert prints(log) == before


def test_the_identity_is_looked_at_without_being_made_again(log):
    harm.cluster_file_gone(log)
    before = prints(log)
    assert look(ReadonlyDirectory.of(str(log))).flaw == "cluster.toml was missing"
    assert prints(log) == before


def test_a_sight_cannot_write(log):
    room = ReadonlyDirectory.of(str(log))
    file = room.open("cluster.toml")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"x"])
    for act in (
        room.create,
        room.unlink,
        lambda name: room.child(name, make=True),
        lambda name: room.rename(name, "b"),
        lambda name: room.link(name, "b", room),
    ):
        with pytest.raises(OSError, match="Read-only"):
            act("cluster.toml")
    assert (log / "cluster.toml").exists()


def writer(path: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "20":
        assert process.poll() is None
    return process


def test_a_log_that_a_process_writes_has_no_damage_and_is_not_disturbed(tmp_path):
    process = writer(tmp_path / "data")
    try:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            examination = examine(str(tmp_path / "data"))
            assert examination.damage == []
            assert examination.held
            assert examination.holder_pid == process.pid
        assert process.poll() is None
        with pytest.raises(DirectoryHeld, match=str(process.pid)):
            salvage(str(tmp_path / "data"), str(tmp_path / "new"))
        assert not (tmp_path / "new").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_what_a_killed_process_acknowledged_is_all_salvaged(tmp_path):
    process = writer(tmp_path / "data")
    acknowledged = [int(process.stdout.readline()) for _ in range(20)][-1]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    examination = examine(str(tmp_path / "data"))
    assert examination.damage == []
    assert not examination.held
    salvage(str(tmp_path / "data"), str(tmp_path / "new"))
    ids = sorted(row["id"] for rows in logs.read(tmp_path / "new").values() for row in rows)
    assert ids == list(range(len(ids)))
    assert len(ids) > acknowledged


def test_a_file_of_another_cluster_is_named_and_passed_over(log, tmp_path):
    other = tmp_path / "other"
    with headrace.open(other, **logs.SETTINGS) as made:
        made.create_topic("a/b", {"id": "int64"})
    expected = harm.another_cluster(log, other)
    examination = examine(str(log))
    (one,) = [each for each in examination.findings if each.kind == "foreign-file"]
    assert (one.file, str(one.severity)) == (expected.file, "damage")
    assert "expected cluster" in one.what
    assert examination.groups[0].start == "refuses: ForeignFile"


def test_the_identity_of_another_cluster_is_outvoted(log, tmp_path):
    other = tmp_path / "other"
    with headrace.open(other, **logs.SETTINGS):
        pass
    shutil.copy(other / "cluster.toml", log / "cluster.toml")
    examination = examine(str(log))
    assert [(one.kind, one.file) for one in examination.damage] == [
        ("foreign-file", "cluster.toml")
    ]
    assert examination.groups[1].rows == 460_207


def test_a_group_that_is_gone_is_not_taken_for_a_new_one(log):
    shutil.rmtree(log / harm.SHARD)
    examination = examine(str(log))
    (one,) = examination.damage
    assert (one.kind, one.file) == ("group-gone", harm.SHARD)
    assert "3 topics" in one.lost


def test_a_fork_of_the_superblock_is_named(log):
    (log / harm.SHARD / "superblock.b").write_bytes(_forked(log / harm.SHARD / "superblock.a"))
    examination = examine(str(log))
    assert [one.kind for one in examination.damage] == ["superblock-fork"]


def _forked(path: Path) -> bytes:
    found = decode(path.read_bytes(), str(path))
    assert isinstance(found, Superblock)
    return encode(replace(found, commit=found.commit - 1))


def test_an_empty_directory_holds_no_log(tmp_path):
    assert examine(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_bad_batch_of_clicks_is_said_by_its_rows(log):
    harm.body_rot(log)
    (one,) = examine(str(log)).damage
    assert one.lost == f"{CLICKS} partition 1, rows 10 to 19"
    assert one.next.startswith("Restore the file from a backup, or copy every readable row")
