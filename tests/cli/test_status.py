"""`headrace status`: what a running node is shown as, in a pipe and on a terminal."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console
from tests.cli.terminal import Terminal

import headrace
from headrace.cli.status.node_look import _status, look, with_rates
from headrace.cli.status.status_figures import LagFigures, Picture, TopicFigures
from headrace.cli.status.status_view import drawn

SECONDS_MAX = 60


@contextmanager
def a_node(path, address="127.0.0.1:0"):
    """Run a node in its own process; give it, and where it listens."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(path)]
    command += ["--listen", address, "--set", "listen.http="]
    command += ["--set", "journal.file_size=4MiB"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if "node.listening" in line:
                    yield process, line.rpartition(" ")[2].strip().strip('"')
                    break
            else:
                pytest.fail("the node did not start")
        finally:
            process.kill()


def status(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "headrace", "status", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def fill(address):
    """Append 30 rows to a topic, of which one consumer group has read 10."""
    with headrace.connect(address) as log:
        topic = log.create_topic("shop/orders", {"id": "int64"})
        topic.append({"id": list(range(10))})
        with topic.consumer("billing", hold=True) as consumer:
            assert consumer.poll().num_rows == 10
            consumer.commit()
        topic.append({"id": list(range(20))})


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "data"
    with a_node(path) as (process, address):
        fill(address)
        yield path, process, address


def test_in_a_pipe_it_prints_once_without_colour(filled):
    path, _, _ = filled
    ended = status("--data", path, "--watch")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"headrace {headrace.__version__}  unix:{path}/headrace.sock  ")
    assert "  ready  up " in lines[0]
    assert "since start 30 rows, " in ended.stdout
    (topic,) = [line.split() for line in lines if line.startswith("shop/orders")]
    assert topic[:3] == ["shop/orders", "1", "30"]
    (lag,) = [line.split() for line in lines if line.startswith("billing")]
    assert lag == ["billing", "20", "1", "shop/orders", "holds", "retention"]
    assert "\x1b" not in ended.stdout


def test_the_json_is_the_picture(filled):
    path, _, address = filled
    told = msgspec.json.decode(status("--address", address, "--json").stdout, type=Picture)
    assert told.node.ready
    assert told.node.served
    assert (told.node.address, told.node.reasons) == (address, ())
    assert told.work.appended_rows == 30
    assert told.work.fetches >= 1
    (topic,) = told.topics
    assert (topic.topic, topic.rows, topic.end, topic.partitions) == ("shop/orders", 30, 30, 1)
    assert topic.rows_per_second is None
    (lag,) = told.lags
    assert (lag.group, lag.lag, lag.holds) == ("billing", 20, True)
    files = [*path.glob("groups/*/journal/**/*.wal")]
    assert told.disk.used == sum(each.stat().st_size for each in files)
    assert told.disk.free_slots < told.disk.slots
    assert told.reconciler.builds == 1


def test_a_log_that_nobody_serves_is_opened_and_said_to_be_not_running(filled, monkeypatch):
    path, process, _ = filled
    process.terminate()
    process.wait(SECONDS_MAX)
    ended = status("--data", path)
    assert ended.returncode == 0
    assert "not running" in ended.stdout.splitlines()[0]
    monkeypatch.setenv("HEADRACE_DATA", str(path))  # named in this way it is the same
    assert json.loads(status("--json").stdout)["node"]["served"] is False


def test_a_group_that_refuses_is_named_and_the_exit_code_is_5(filled):
    path, process, _ = filled
    process.terminate()
    process.wait(SECONDS_MAX)
    (journal,) = (path / "groups/00001/journal").glob("*.wal")
    with journal.open("r+b") as file:
        file.write(bytes(8192))
    with a_node(path) as (_, address):
        ended = status("--address", address, "--timeout", "1s")
        assert ended.returncode == 5
        assert "not ready" in ended.stdout
        assert "group 1 refuses to start" in ended.stdout
        assert str(journal) in ended.stdout
        told = json.loads(
            status("--address", address, "--timeout", "1s", "--json").stdout,
        )
        assert told["node"]["ready"] is False


def test_a_group_0_that_was_healed_is_said_until_the_next_start(filled):
    path, process, _ = filled
    process.terminate()
    process.wait(SECONDS_MAX)
    shutil.rmtree(path / "groups/00000")
    with a_node(path) as (process, address):
        ended = status("--address", address)
        assert ended.returncode == 0
        assert "group 0 was healed from the copy of metadata, from nothing" in ended.stdout
        assert "shop/orders" in ended.stdout
        process.terminate()
        process.wait(SECONDS_MAX)
    with a_node(path) as (_, address):
        assert "healed" not in status("--address", address).stdout


def test_what_is_not_there_is_an_error_without_a_trace(tmp_path):
    ended = status("--data", tmp_path / "none")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert status("--address", "127.0.0.1:1", "--timeout", "1s").returncode == 5


def test_a_directory_without_a_log_stays_as_it_is(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    ended = status("--data", tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "holds no log" in ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_on_a_terminal_it_is_live_until_q(filled):
    path, _, address = filled
    with Terminal("status", "--data", str(path), "--watch") as terminal:
        shown = terminal.read_until("rows/s")
        assert "30 rows since the start" in shown
        with headrace.connect(address) as log:
            log.topic("shop/orders").append({"id": list(range(5000))})
        terminal.read_until("5,030 rows since the start")
        terminal.press("x")
        terminal.read_until("q quits")
        terminal.press("q")
        assert terminal.wait() == 0
    # The screen that was there before is back, with what was seen last below it.
    before, _, after = terminal.raw.partition(b"\x1b[?1049l")
    assert b"\x1b[?1049h" in before
    assert b"5,030" in after


def test_a_watched_node_may_go_and_come_back(tmp_path):
    path = tmp_path / "data"
    with a_node(path) as (process, address):
        fill(address)
        with Terminal("status", "--address", address, "--watch", "--timeout", "1s") as terminal:
            terminal.read_until("rows/s")
            process.kill()
            process.wait(SECONDS_MAX)
            terminal.read_until("no answer, retrying")
            with a_node(path, address):
                shown = terminal.read_until("0 rows since the start")
                assert "-" not in shown.partition("appended")[2].partition("rows/s")[0]
                terminal.press("\x03")
                assert terminal.wait() == 0
    assert "Traceback" not in terminal.text


def test_nobody_is_kept_from_serving_by_somebody_who_watches(filled):
    path, process, _ = filled
    process.terminate()
    process.wait(SECONDS_MAX)
    with Terminal("status", "--data", str(path), "--watch") as terminal:
        assert terminal.wait() == 5
    assert "no process serves" in terminal.text


@pytest.fixture
def picture(tmp_path):
    with headrace.open(tmp_path / "data", journal__file_size="1MiB") as log:
        log.create_topic("shop/orders", {"id": "int64"}).append({"id": [1, 2, 3]})
        return look(log)


def later(picture, seconds, **work):
    """Return the picture as it may be some seconds later."""
    node = msgspec.structs.replace(
        picture.node, uptime_seconds=picture.node.uptime_seconds + seconds
    )
    work = msgspec.structs.replace(picture.work, **work)
    topics = tuple(msgspec.structs.replace(each, end=each.end + 30) for each in picture.topics)
    return msgspec.structs.replace(picture, node=node, work=work, topics=topics)


def test_rates_are_what_happened_between_two_looks(picture):
    now = later(picture, 3, appended_rows=33, appended_bytes=picture.work.appended_bytes + 6)
    rates = with_rates(now, picture).rates
    assert (rates.appended_rows, rates.appended_bytes) == pytest.approx((10, 2))
    assert with_rates(now, picture).topics[0].rows_per_second == pytest.approx(10)


def test_a_node_that_started_anew_has_no_rates_yet(picture):
    now = later(picture, 3, appended_rows=0)
    node = msgspec.structs.replace(now.node, started_at="2026-01-01T00:00:00.000Z")
    assert with_rates(msgspec.structs.replace(now, node=node), picture).rates is None
    assert with_rates(picture, picture).rates is None


def test_an_older_node_tells_less_and_is_still_shown():
    assert _status({"ready": True, "groups": {"0": {"refused": None}}, "new": 1}).ready


def test_tables_are_cut_to_the_terminal_and_say_so(picture):
    topics = tuple(
        TopicFigures(topic=f"t/{n:03}", partitions=1, rows=n, size=n, end=n) for n in range(500)
    )
    lags = tuple(
        LagFigures(group=f"g{n:03}", topic="t/000", lag=500 - n, partitions=1, holds=False)
        for n in range(300)
    )
    full = msgspec.structs.replace(picture, topics=topics, lags=lags)
    for height in (20, 30, 60):
        console = Console(width=100, file=None)
        with console.capture() as capture:
            console.print(drawn(full, height))
        lines = capture.get().splitlines()
        assert len(lines) <= height
        assert sum(" more" in line for line in lines) == 2
        assert any(line.startswith("t/499") for line in lines)
        assert any(line.startswith("g000") for line in lines)


def test_a_hostile_topic_name_is_only_text(picture):
    topic = msgspec.structs.replace(picture.topics[0], topic="[red]x[/red]")
    shown = msgspec.structs.replace(picture, topics=(topic,))
    console = Console(width=100)
    with console.capture() as capture:
        console.print(drawn(shown))
    assert "[red]x[/red]" in capture.get()
