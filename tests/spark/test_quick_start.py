"""A short run starts Spark with a quick compiler and an archive of classes, made once."""

import os
import subprocess
import sys

import pytest
from tests.client.doors import RunningNode
from tests.spark.conftest import SCHEMA, rows

import headrace
from headrace.spark.quick_start import QuickStart

SERIAL = "-XX:+UseSerialGC"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace"


@pytest.fixture
def java(tmp_path):
    path = tmp_path / "java"
    path.write_text("one")
    return str(path)


def test_the_first_run_makes_the_archive_and_later_ones_take_it(place, java):
    first = QuickStart()
    options = first.options(java)
    assert f"-XX:ArchiveClassesAtExit={first.making}" in options
    assert first.making.name == f"{first.path.name}.{os.getpid()}"
    first.path.write_bytes(b"classes")
    later = QuickStart()
    assert f"-Xshare:auto -XX:SharedArchiveFile={first.path}" in later.options(java)
    assert later.making is None


def test_another_java_has_another_archive(place, java):
    one, other = QuickStart(), QuickStart()
    one.options(java)
    os.utime(java, (1, 1))  # as an upgrade leaves it
    other.options(java)
    assert one.path != other.path


def test_what_killed_runs_left_is_removed_and_what_others_make_is_not(place, java):
    one = QuickStart()
    one.options(java)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, made = (one.path.with_name(f"{one.path.name}.{n}") for n in (ended.pid, os.getppid()))
    left.touch()
    made.touch()
    QuickStart().options(java)
    assert (left.exists(), made.exists()) == (False, True)


@pytest.mark.parametrize("name", ["cache is a file", "ca che"])
def test_without_a_place_for_an_archive_there_is_none(tmp_path, java, monkeypatch, name):
    cache = tmp_path / name
    if name != "ca che":
        cache.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    quick = QuickStart()
    options = quick.options(java)
    assert SERIAL in options
    assert "jsa" not in options
    assert quick.making is None


@pytest.mark.campaign(2, of="machines of Spark")
def test_the_command_leaves_an_archive_which_the_next_run_takes(place, tmp_path):
    file = tmp_path / "orders.toml"
    run = [sys.executable, "-m", "headrace", "pipeline", "run", str(file), "--once"]
    with RunningNode(tmp_path / "node") as node:
        file.write_text(
            f'name = "orders"\ntopic = "shop/orders"\naddress = "{node.address}"\ntable = "t"\n'
        )
        with headrace.connect(node.address) as log:
            topic = log.create_topic("shop/orders", SCHEMA)
            topic.append(rows(0, 20))
            subprocess.run(run, check=True, capture_output=True)
            (archive,) = archives(place)
            assert archive.stat().st_size > 10_000_000
            (place / archive.name).write_bytes(b"rot" * 100_000)  # ignored
            topic.append(rows(20, 30))
            done = subprocess.run(run, check=True, capture_output=True, text=True)
    assert "rows 10 " in done.stdout


def archives(place):
    return sorted(place.glob("classes-*")) if place.exists() else []
