"""`headrace doctor` as its users run it: words, JSON, exit codes, a terminal, a pipe."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.cli.commands import headrace_here
from tests.cli.terminal import Terminal
from tests.doctor import harm
from tests.doctor.harm import METADATA
from tests.doctor.logs import SETTINGS

import headrace
from headrace.cli.terminal.exits import Exit


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small log of two topics, stopped cleanly."""
    path = tmp_path_factory.mktemp("small") / "data"
    with headrace.open(path, **SETTINGS) as log:
        for name in ("shop/orders", "shop/items"):
            topic = log.create_topic(name, {"id": "int64"}, partitions=2)
            for first in range(0, 40, 10):
                topic.append([{"id": first + n} for n in range(10)], partition=first // 20)
    return path


@pytest.fixture
def log(small, tmp_path):
    return shutil.copytree(small, tmp_path / "data")


def rot(log) -> harm.Frame:
    """Flip a bit in the body of the second batch of shop/orders."""
    found = [one for one in harm.frames(log / harm.SHARD) if one.header.row_count]
    harm.flip(found[1].file, found[1].position + found[1].size - 8)
    return found[1]


def test_a_healthy_log_exits_with_0(log):
    ended = headrace_here("doctor", str(log))
    assert ended.code == Exit.OK
    assert ended.out.splitlines()[-1].startswith("No damage: ")
    assert "Nothing was changed." in ended.out
    assert ended.err == ""


def test_notes_do_no_harm(log):
    (log / "notes.txt").write_text("mine")
    ended = headrace_here("doctor", str(log))
    assert ended.code == Exit.OK
    assert "note  notes.txt" in ended.out.replace("note   ", "note  ")
    assert "No damage, 1 note: " in ended.out


def test_damage_exits_with_6_and_names_file_place_and_rows(log):
    hit = rot(log)
    ended = headrace_here("doctor", str(log))
    assert ended.code == Exit.INTEGRITY
    where = f"{harm.relative(log, hit.file)} at byte {hit.position:,}, op {hit.header.op}"
    assert where in ended.out
    assert "shop/orders partition 0, rows 10 to 19" in ended.out
    assert "--salvage NEW_DIR" in ended.out
    assert "Damage in 1 place: " in ended.out


def test_json_is_one_object_with_the_same_facts(log):
    hit = rot(log)
    ended = headrace_here("doctor", str(log), "--deep", "--json")
    assert ended.code == Exit.INTEGRITY
    told = json.loads(ended.out)
    assert (told["damage"], told["notes"], told["deep"], told["held"]) == (1, 0, True, False)
    (one,) = told["findings"]
    assert one["file"] == harm.relative(log, hit.file)
    assert (one["position"], one["first_op"]) == (hit.position, hit.header.op)
    assert one["lost_rows"] == [
        {"topic": "shop/orders", "partition": 0, "start": 10, "end": 20}
    ]
    assert [group["group"] for group in told["groups"]] == [0, 1]


def test_a_salvage_prints_which_rows_are_which(log, tmp_path):
    op = rot(log).header.op
    ended = headrace_here("doctor", str(log), "--salvage", str(tmp_path / "new"))
    assert ended.code == Exit.INTEGRITY
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "shop/orders 0 rows 0 to 9 rows 0 to 9" in lines
    assert f"shop/orders 0 rows 10 to 19 missing op {op} has no intact copy" in lines
    assert lines[-1] == (
        f"70 rows in {tmp_path / 'new'}, each read back and compared; 10 rows missing."
    )
    assert headrace_here("doctor", str(tmp_path / "new"), "--deep").code == Exit.OK


def test_a_salvage_of_a_healthy_log_exits_with_0(log, tmp_path):
    ended = headrace_here("doctor", str(log), "--salvage", str(tmp_path / "new"), "--json")
    assert ended.code == Exit.OK
    told = json.loads(ended.out)
    assert (told["rows"], told["missing_rows"], told["lost"]) == (80, 0, [])


def test_a_log_in_use_is_looked_at_and_said_to_move(small, tmp_path):
    log = shutil.copytree(small, tmp_path / "data")
    with headrace.open(log, **SETTINGS):
        ended = headrace_here("doctor", str(log))
        assert ended.code == Exit.OK
        assert ended.err == f"Process {os.getpid()} uses {log}: the numbers may change.\n"
        refused = headrace_here("doctor", str(log), "--salvage", str(tmp_path / "new"))
        assert refused.code == Exit.UNAVAILABLE
        assert "is in use by process" in refused.err


@pytest.mark.parametrize("content", [None, []], ids=["no directory", "no log"])
def test_what_is_not_there_exits_with_3(tmp_path, content):
    path = tmp_path / "data"
    if content is not None:
        path.mkdir()
    ended = headrace_here("doctor", str(path))
    assert ended.code == Exit.NOT_FOUND
    assert ended.out == ""
    assert ended.err.count("\n") == 1


def test_a_terminal_shows_colour_and_a_pipe_does_not(log):
    rot(log)
    with Terminal("doctor", str(log), "--deep") as terminal:
        assert terminal.wait() == Exit.INTEGRITY
        assert b"\x1b[1;31mdamage" in terminal.raw
        assert "Damage in 1 place" in terminal.text
    assert "\x1b" not in headrace_here("doctor", str(log)).out


def test_a_closed_pipe_ends_it_quietly(log):
    (log / "notes.txt").write_text("mine")
    command = f"{sys.executable} -m headrace doctor {log} | head -1"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.startswith("note")
    assert "Traceback" not in ended.stderr


def test_help_has_a_sentence_and_examples():
    ended = headrace_here("doctor", "--help")
    assert "Check a log's files" in ended.out
    assert ended.out.count("headrace doctor ./data") == 3


def test_lost_metadata_is_said_with_the_names_behind_it(log):
    hit = harm.frames(log / METADATA)[0]
    harm.flip(hit.file, hit.position + 100)
    (log / "metadata.copy").unlink()
    ended = headrace_here("doctor", str(log))
    assert ended.code == Exit.INTEGRITY
    assert "topics created after that: shop/orders, shop/items" in ended.out


def test_a_salvage_that_cannot_count_its_loss_exits_with_6_and_says_so(log, tmp_path):
    shutil.rmtree(log / harm.SHARD)
    ended = headrace_here("doctor", str(log), "--salvage", str(tmp_path / "new"))
    assert ended.code == Exit.INTEGRITY
    assert f"Lost: {harm.SHARD}: every row of 2 topics." in ended.out
    assert "no row missing" not in ended.out
