"""What a salvage makes: the same topics, settings, cursors and times; whole, or not at all."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from tests.doctor import harm, logs
from tests.doctor.logs import CLICKS, ITEMS, ORDERS

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import UNFINISHED, salvage
from headrace.errors import BadRequest, DiskFull
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME

ROOT = Path(__file__).parents[2]


def times(path: Path, topic: str, partition: int) -> list:
    with headrace.open(path, **logs.SETTINGS) as log:
        return pa.table(log.topic(topic).read(partition)).column("_timestamp").to_pylist()


def test_topics_settings_cursors_and_times_are_kept(log, tmp_path):
    new = tmp_path / "new"
    account = salvage(str(log), str(new))
    assert account.is_whole
    assert (account.rows, account.missing_rows) == (460_207, 0)
    with headrace.open(new, **logs.SETTINGS) as made:
        assert made.topics() == [ITEMS, ORDERS, CLICKS]
        orders, items, clicks = (made.topic(name) for name in (ORDERS, ITEMS, CLICKS))
        assert (orders.partitions, orders.key) == (2, "id")
        assert orders.retention.age.days == 30
        assert items.schema.names == ["id", "name", "tags"]
        assert [(one.partition, one.next) for one in clicks.cursors("readers")] == [
            (0, 15),
            (1, 40),
            (2, 0),
        ]
        # Three rows were trimmed before: offsets count from 0 again.
        assert [one.next for one in items.cursors("billing")] == [33 - logs.TRIMMED]
        orders.append([{"id": 1, "note": b"goes on"}], partition=0)
    for key in ((ORDERS, 0), (ITEMS, 0), (CLICKS, 2)):
        old = times(log, *key)
        assert times(new, *key)[: len(old)] == old


def test_the_account_is_left_beside_the_new_log(log, tmp_path):
    harm.body_rot(log)
    salvage(str(log), str(tmp_path / "new"))
    said = json.loads((tmp_path / "new" / "salvage.json").read_text())
    (one,) = [each for each in said["partitions"] if each["missing"]]
    assert (one["topic"], one["partition"]) == (CLICKS, 1)
    assert [(each["start"], each["end"]) for each in one["missing"]] == [(10, 20)]
    assert [list(each.values()) for each in one["ranges"]] == [
        [0, 10, 0, 10, True],
        [20, 40, 10, 30, True],
    ]
    # It had read all 40 rows: it goes on behind the 30 that are left.
    assert one["cursors"] == [{"group": "readers", "old_next": 40, "new_next": 30}]
    assert said["cluster"] != said["new_cluster"]


def test_a_target_that_holds_anything_is_refused_and_untouched(log, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine.txt").write_text("keep")
    with pytest.raises(BadRequest, match="is not empty"):
        salvage(str(log), str(tmp_path / "new"))
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["mine.txt"]
    (tmp_path / "new" / UNFINISHED).mkdir()
    with pytest.raises(BadRequest, match="is not empty"):
        salvage(str(log), str(tmp_path / "new"))
    assert (tmp_path / "new" / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("name", ["groups/mine.txt", "groups/00001/superblock.a"])
def test_what_somebody_else_put_beside_an_unfinished_salvage_stays(stopped, tmp_path, name):
    new = tmp_path / "new"
    (new / UNFINISHED).mkdir(parents=True)
    (new / name).parent.mkdir(parents=True)
    (new / name).write_text("keep")
    with pytest.raises(BadRequest, match="is not empty"):
        salvage(str(stopped), str(new))
    assert (new / name).read_text() == "keep"


def test_a_log_that_is_whole_is_never_begun_anew(stopped, killed, tmp_path):
    """A kill right before the end leaves an empty directory beside a log that can be used."""
    new = tmp_path / "new"
    salvage(str(stopped), str(new))
    (new / UNFINISHED).mkdir()
    with pytest.raises(BadRequest, match="is not empty"):
        salvage(str(killed), str(new))
    assert examine(str(new)).damage == []


def test_a_salvage_that_was_killed_while_it_moved_is_begun_again(stopped, tmp_path):
    new = tmp_path / "new"
    salvage(str(stopped), str(new))
    (new / UNFINISHED).mkdir()
    (new / "cluster.toml").rename(new / UNFINISHED / "cluster.toml")
    assert salvage(str(stopped), str(new)).is_whole
    assert not (new / UNFINISHED).exists()


def test_a_full_disk_says_what_to_do_next(stopped, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        hint = "Free some space or name a directory on another disk"
        with pytest.raises(DiskFull, match=hint):
            salvage(str(stopped), str(small / "new"))
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_a_target_inside_the_damaged_log_is_refused(log):
    with pytest.raises(BadRequest, match="stays as it is"):
        salvage(str(log), str(log / "groups" / "new"))
    assert not (log / "groups" / "new").exists()


def test_a_salvage_that_was_killed_is_begun_again(log, tmp_path, appended):
    new = tmp_path / "new"
    for sign in (UNFINISHED, f"{UNFINISHED}/groups/00001/superblock.b"):
        command = [sys.executable, "-m", "headrace", "doctor", str(log), "--salvage", str(new)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
        while not (new / sign).exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (new / "cluster.toml").exists()
    salvage(str(log), str(new))
    assert sorted(one.name for one in new.iterdir()) == [
        "cluster.toml",
        "groups",
        "salvage.json",
    ]
    found = logs.read(new)
    for key in appended.rows:
        kept = appended.kept(*key)
        assert found[key] == [{**row, "_offset": n} for n, row in enumerate(kept)]


def test_lost_metadata_costs_names_and_no_row(log, tmp_path, appended):
    hit = harm.frames(log / harm.METADATA)[0]
    harm.flip(hit.file, hit.position + 100)
    (log / COPY_NAME).unlink()
    account = salvage(str(log), str(tmp_path / "new"))
    assert {one.topic.split("/")[0] for one in account.partitions} == {"salvaged"}
    assert not any(one.missing for one in account.partitions)
    found = sorted(len(rows) for rows in logs.read(tmp_path / "new").values())
    assert found == sorted(len(appended.kept(*key)) for key in appended.rows)
    assert any(f"named {ORDERS}, {ITEMS}, {CLICKS}" in said for said in account.notes)


def small_log(path: Path) -> dict[tuple[str, int], list[int]]:
    """Make a small log with rows in the journal and in carry files."""
    done: dict[tuple[str, int], list[int]] = {}
    settings = logs.SETTINGS | {"seal__size": "64KiB", "limits__body_size": "64KiB"}
    with headrace.open(path, **settings) as log:
        topic = log.create_topic("a/b", {"id": "int64", "text": "string"}, partitions=2)
        for number in range(60):
            rows = [{"id": number * 10 + n, "text": f"{n}" * 400} for n in range(10)]
            topic.append(rows, partition=number % 2)
            done.setdefault(("a/b", number % 2), []).extend(row["id"] for row in rows)
    return done


@pytest.mark.campaign(3)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_rots_no_row_is_invented_doubled_or_left_behind_unsaid(tmp_path, seed):
    """Flip bytes in any files: what comes over is what was appended, in order, minus what is
    said to be missing.
    """
    done = small_log(tmp_path / "data")
    rng = Random(seed)
    shard = tmp_path / "data" / harm.SHARD
    files = [
        path
        for path in sorted(shard.rglob("*"))
        if path.is_file() and path.suffix in (".wal", ".carry") and path.parent.name != "spare"
    ]
    for _ in range(4):
        path = rng.choice(files)
        used = len(path.read_bytes().rstrip(b"\0"))
        harm.flip(path, rng.randrange(8, used), rng.randrange(8))
    examination = examine(str(tmp_path / "data"), deep=True)
    account = salvage(str(tmp_path / "data"), str(tmp_path / "new"))
    found = logs.read(tmp_path / "new")
    for one in account.partitions:
        ids = [row["id"] for row in found[one.topic, one.partition]]
        appended = done[one.topic, one.partition]
        assert sorted(set(ids)) == ids
        assert set(ids) <= set(appended)
        gone = {appended[n] for each in one.missing for n in range(each.start, each.end)}
        if one.unsure_from is None and not account.lost:
            assert set(appended) - set(ids) == gone
    if not account.is_whole:
        assert examination.damage
