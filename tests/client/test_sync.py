"""The sync API: threads, interrupts, forks, running loops, and what notebooks show."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from tests.client.doors import RunningNode
from tests.client.interrupts import interrupted

import headrace
from headrace.errors import (
    BadConfig,
    BadRequest,
    ConnectionLost,
    DirectoryHeld,
    Refused,
    Unauthorized,
)

SCHEMA = {"id": "int64", "name": "string"}


@pytest.fixture
def log(tmp_path):
    with headrace.open(tmp_path / "data") as log:
        yield log


@pytest.fixture
def topic(log):
    topic = log.create_topic("orders", SCHEMA, partitions=2)
    topic.append([{"id": n, "name": "x"} for n in range(3)])
    topic.append([{"id": n, "name": "x"} for n in range(3, 5)])
    return topic


def test_rows_go_wherever_arrow_goes(topic):
    rows = topic.read()
    assert sorted(pl.DataFrame(rows)["id"]) == [0, 1, 2, 3, 4]
    assert sorted(rows.to_polars()["id"]) == [0, 1, 2, 3, 4]
    assert sorted(rows.to_pandas()["id"]) == [0, 1, 2, 3, 4]
    assert pa.table(rows).num_rows == rows.row_count == 5
    assert duckdb.sql("select sum(id), count(*) from rows").fetchall() == [(10, 5)]
    assert duckdb.from_arrow(pa.RecordBatchReader.from_stream(rows)).shape == (5, 5)


def test_rows_of_one_topic_may_be_appended_to_another(log, topic):
    other = log.create_topic("copy", SCHEMA)
    other.append(topic.read(columns=["id", "name"]))
    assert sorted(other.read().to_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_read_that_is_left_early_leaves_nothing_behind(topic):
    for _ in range(50):
        next(iter(topic.read()))
    assert topic.read().to_table().num_rows == 5


def test_threads_share_a_log(log, topic):
    failures = []

    def work(number):
        try:
            own = log.topic("orders")
            for n in range(20):
                own.append([{"id": 100 * number + n, "name": "t"}])
        except headrace.HeadraceError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = sorted(topic.read().to_table()["id"].to_pylist())
    assert found == sorted([*range(5), *(100 * n + m for n in range(1, 9) for m in range(20))])


def test_threads_share_a_producer(log, topic):
    with log.producer(topic, linger="1ms", batch_rows=50) as producer:

        def work(number):
            for n in range(200):
                producer.send({"id": 1_000 * number + n, "name": "p"})

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = topic.read().to_table()["id"].to_pylist()
    sent = [1_000 * n + m for n in range(1, 5) for m in range(200)]
    assert sorted(found) == [*range(5), *sent]


def test_a_sync_call_works_inside_a_running_loop(topic):
    async def inside():
        return topic.append([{"id": 9, "name": "loop"}]).row_count

    assert asyncio.run(inside()) == 1


def test_an_interrupt_ends_a_wait_and_the_log_goes_on(topic):
    with interrupted(0.3):
        for _ in topic.follow():
            pass
    assert topic.append([{"id": 9, "name": "after"}]).row_count == 1


def test_an_interrupted_consumer_gives_what_it_had_not_given(topic):
    with topic.consumer("billing", partition=0) as consumer:
        next(consumer)
        with interrupted(0.2):
            next(consumer)
        topic.append([{"id": 9, "name": "after"}], partition=0)
        assert consumer.poll("5s")["id"].to_pylist() == [9]


def test_a_closed_log_says_so(log, topic):
    log.close()
    log.close()
    with pytest.raises(BadRequest, match="closed"):
        topic.append([{"id": 1, "name": "x"}])
    with pytest.raises(BadRequest, match="closed"):
        log.topics()
    assert "orders" in repr(topic)
    assert "data" in repr(log)


class TestADirectoryThatAnotherProcessHolds:
    """Held here, by a child that lives until its standard input ends."""

    HOLD = (
        "import sys, headrace\n"
        "log = headrace.open(sys.argv[1], listen__socket=sys.argv[2] == 'socket')\n"
        "log.create_topic('orders', {'id': 'int64'}).append({'id': [1, 2]})\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )

    @contextmanager
    def held(self, path, how="socket"):
        command = [sys.executable, "-c", self.HOLD, str(path), how]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdout.readline() == "held\n"
            try:
                yield process
            finally:
                process.stdin.close()

    def test_it_is_opened_through_its_socket(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with self.held(tmp_path / "data"):
            with headrace.open("data") as log:
                assert log.topic("orders").append({"id": [3]}).row_count == 1
                assert log.address == f"unix:{tmp_path}/data/headrace.sock"

            async def beside():
                async with await headrace.open_async(tmp_path / "data") as third:
                    return (await (await third.topic("orders")).read()).row_count

            assert asyncio.run(beside()) == 3
            with pytest.raises(BadConfig, match="runs with the settings of process"):
                headrace.open("data", seal__size="128MiB")
        with headrace.open("data", seal__size="128MiB") as log:
            assert log.topic("orders").read().row_count == 3

    @pytest.mark.parametrize("how", ["stops", "is killed"])
    def test_one_that_ends_under_us_is_said_soon(self, tmp_path, monkeypatch, how):
        """Long before the timeout, and with what to do: nobody answers there any more."""
        monkeypatch.chdir(tmp_path)
        with self.held("data") as process:
            log = headrace.open("data")  # with 30 s for each operation
            orders = log.topic("orders")
            consumer = orders.consumer("billing", start="latest")
            assert consumer.poll("10ms") is None
            if how == "stops":
                process.stdin.close()
            else:
                process.kill()
            process.wait()
        words = (
            f"process {process.pid}, which held data, has ended.*[Oo]pen the directory again"
        )
        began = time.monotonic()
        for call in (
            lambda: orders.append({"id": [4]}),
            log.topics,
            lambda: consumer.poll("20s"),
            orders.read,
        ):
            with pytest.raises(ConnectionLost, match=words):
                call()
        assert time.monotonic() - began < 10
        with headrace.open("data") as again:
            assert again.topic("orders").append({"id": [3]}).row_count == 1
            assert orders.read().row_count == 3  # through this process, as before
        log.close()

    def test_a_short_timeout_says_it_as_well(self, tmp_path):
        with self.held(tmp_path) as process:
            log = headrace.open(tmp_path, timeout="300ms")
        process.wait()
        with pytest.raises(ConnectionLost, match=f"process {process.pid}, which held"):
            log.topics()
        log.close()

    def wait_for_holder(self, path, pid):
        """Wait until this process holds the directory, listening or not."""
        ends = time.monotonic() + 60
        while str(pid) not in (path / "LOCK").read_text():
            assert time.monotonic() < ends
            time.sleep(0.02)

    def test_one_that_is_started_again_is_reached_again(self, tmp_path):
        with self.held(tmp_path) as process:
            log = headrace.open(tmp_path)
            orders = log.topic("orders")
        process.wait()
        command = [sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path)]
        with subprocess.Popen([*command, "--embedded"], stderr=subprocess.DEVNULL) as node:
            try:
                # An append waits some seconds for somebody: a busy machine starts more slowly.
                self.wait_for_holder(tmp_path, node.pid)
                assert orders.append({"id": [3]}).row_count == 1
                assert orders.read().row_count == 3
            finally:
                log.close()
                node.terminate()

    def test_one_that_listens_nowhere_is_named(self, tmp_path):
        with (
            self.held(tmp_path, "none") as process,
            pytest.raises(
                DirectoryHeld, match=f"in use by process {process.pid}.*connect to it"
            ),
        ):
            headrace.open(tmp_path)

    def test_one_that_ends_while_we_wait_leaves_the_directory_to_us(self, tmp_path):
        with self.held(tmp_path) as process:
            (tmp_path / "headrace.sock").unlink()  # as if it were on its way up
            ending = threading.Timer(0.7, process.stdin.close)
            ending.start()
            with headrace.open(tmp_path) as log:
                assert log.address == str(tmp_path)
                assert log.topic("orders").read().row_count == 2
            ending.join()

    def test_one_that_never_answers_is_named_in_the_end(self, tmp_path):
        with self.held(tmp_path) as process:
            (tmp_path / "headrace.sock").unlink()
            with pytest.raises(DirectoryHeld, match=f"in use by process {process.pid}"):
                headrace.open(tmp_path, timeout="600ms")


def test_a_log_opened_twice_in_one_process_is_the_same(tmp_path, log, topic):
    again = headrace.open(tmp_path / "." / "data")
    assert again.topic("orders").read().row_count == 5
    again.close()
    with pytest.raises(BadRequest, match="closed"):
        again.topics()
    topic.append([{"id": 9, "name": "still there"}])

    async def beside():
        async with await headrace.open_async(tmp_path / "data") as third:
            return (await (await third.topic("orders")).read()).row_count

    assert asyncio.run(beside()) == 6
    with pytest.raises(BadConfig, match="different settings"):
        headrace.open(tmp_path / "data", seal__size="128MiB")
    assert log.topics() == ["default/orders"]
    log.close()
    # The last one has left: the directory is free, also for other settings.
    with headrace.open(tmp_path / "data", seal__size="128MiB") as other:
        assert other.topic("orders").read().row_count == 6


def test_another_process_comes_through_the_socket(tmp_path, topic):
    code = (
        "import sys, headrace\n"
        "with headrace.connect(sys.argv[1]) as log:\n"
        "    print(log.topic('orders').read().to_table().num_rows)\n"
    )
    address = f"unix:{tmp_path / 'data' / 'headrace.sock'}"
    done = subprocess.run(
        [sys.executable, "-c", code, address], capture_output=True, text=True, check=True
    )
    assert done.stdout == "5\n"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_a_fork_is_told_to_open_its_own(topic):
    child = os.fork()
    if not child:
        try:
            topic.bounds()
        except BadRequest:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_program_that_forgets_to_close_ends_and_loses_nothing(tmp_path):
    code = (
        "import sys, headrace\n"
        "log = headrace.open(sys.argv[1])\n"
        "topic = log.create_topic('orders', {'id': 'int64'})\n"
        "topic.append([{'id': 1}])\n"
    )
    path = str(tmp_path / "data")
    command = [sys.executable, "-c", code, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    with headrace.open(path) as log:
        assert log.topic("orders").read().to_table()["id"].to_pylist() == [1]


@pytest.mark.parametrize("host", ["a..b:1", "no.such.host.invalid:1", "unix:a\0b"])
def test_a_name_that_cannot_be_is_told(host):
    with pytest.raises(ConnectionLost):
        headrace.connect(host, timeout="200ms")


def test_a_path_that_cannot_be_is_told(tmp_path):
    with pytest.raises(BadRequest):
        headrace.open("a\0b")
    (tmp_path / "file").write_text("")
    with pytest.raises(headrace.HeadraceError):
        headrace.open(tmp_path / "file")


def test_settings_are_those_of_a_node(tmp_path):
    with headrace.open(tmp_path / "a", seal__size="128MiB", listen__socket=False) as log:
        assert log.topics() == []
        assert not (tmp_path / "a" / "headrace.sock").exists()
    with pytest.raises(BadConfig, match=r"seal\.size"):
        headrace.open(tmp_path / "b", seal__sise="1MiB")
    with pytest.raises(BadConfig, match=r"seal\.size"):
        headrace.open(tmp_path / "b", seal__size="much")


def test_a_token_opens_the_door(tmp_path):
    with RunningNode(tmp_path / "data", auth__token="open-sesame-12345") as node:
        with pytest.raises(Unauthorized):
            headrace.connect(node.address, timeout="5s")
        with pytest.raises(Unauthorized):
            headrace.connect(node.address, token="wrong-token-123456", timeout="5s")
        with headrace.connect(node.address, token="open-sesame-12345") as log:
            assert log.topics() == []


def test_nobody_there_is_told_in_time(tmp_path):
    before = time.monotonic()
    with pytest.raises(ConnectionLost, match="no node answers"):
        headrace.connect(f"unix:{tmp_path}/nothing", timeout="300ms")
    assert time.monotonic() - before < 2


def test_a_node_that_starts_again_is_found_and_nothing_is_twice(tmp_path):
    path = tmp_path / "data"
    node = RunningNode(path)
    port = node.address.rpartition(":")[2]
    log = headrace.connect(node.address)
    topic = log.create_topic("orders", SCHEMA)
    node.stop()
    later = threading.Timer(0.5, lambda: again.append(_start(path, port)))
    again: list[RunningNode] = []
    later.start()
    assert topic.append([{"id": 1, "name": "through"}]).row_count == 1
    assert topic.read().to_table()["id"].to_pylist() == [1]
    log.close()
    later.join()
    again[0].stop()


def test_a_node_of_another_directory_gets_nothing_that_was_meant_for_the_first(tmp_path):
    node = RunningNode(tmp_path / "a")
    port = node.address.rpartition(":")[2]
    with headrace.connect(node.address) as log:
        topic = log.create_topic("shop/orders", SCHEMA)
        topic.append([{"id": 1, "name": "x"}])
        node.stop()
        with _start(tmp_path / "b", port) as other, headrace.connect(other.address) as theirs:
            secrets = theirs.create_topic("bank/secrets", SCHEMA)
            with pytest.raises(Refused, match="cluster"):
                topic.append([{"id": 99, "name": "astray"}])
            with pytest.raises(Refused, match="cluster"):
                log.topics()
            assert secrets.read().row_count == 0


def _start(path: Path, port: str) -> RunningNode:
    return RunningNode(path, listen__address=f"127.0.0.1:{port}")


def test_rows_are_the_same_once_they_are_in_segments(tmp_path):
    table = pa.table({"id": range(200_000), "name": [f"name {n:060}" for n in range(200_000)]})
    with headrace.open(tmp_path / "data", seal__age="100ms") as log:
        topic = log.create_topic("orders", SCHEMA)
        other = log.create_topic("other", SCHEMA)
        topic.append(table)
        before = topic.read(columns=["_offset", "_timestamp", "name"]).to_table()
        deadline = time.monotonic() + 60
        while topic.bounds()[0].sealed_end < 200_000:
            assert time.monotonic() < deadline, log.status()
            # A short run waits for some Seals, and Seals come only while something is appended.
            other.append([{"id": 1, "name": "x"}])
            time.sleep(0.1)
        topic.append([{"id": 200_000, "name": "late"}])
        topic.evolve({"id": "int64", "name": "string", "note": "string"})
        after = topic.read(columns=["_offset", "_timestamp", "name"]).to_table()
        assert after.slice(0, 200_000).equals(before)
        found = topic.read().to_table()
        assert found["id"].to_pylist() == list(range(200_001))
        assert found["note"].null_count == 200_001
        assert topic.read(start=70_001, end=70_003).to_table()["id"].to_pylist() == [
            *(70_001, 70_002),
        ]


def test_a_log_and_a_topic_show_themselves(log, topic):
    text = repr(log)
    assert "default/orders" in text
    assert " 5 " in text
    assert "partition" in repr(topic)
    html = log._repr_html_()
    assert "<table>" in html
    assert "default/orders" in html
    assert "<td>3</td>" in topic._repr_html_()


def test_the_ledger_survives_an_unfinished_line(tmp_path, log, topic):
    path = tmp_path / "ledger"
    path.write_text('{"topic": "unfini')
    with log.producer(topic, ledger=path) as producer:
        producer.send({"id": 1, "name": "x"})
    first, second = path.read_text().splitlines()
    assert first == '{"topic": "unfini'
    assert json.loads(second)["rows"] == 1


def test_import_is_light():
    code = (
        "import sys, headrace, headrace.errors, headrace.wire.frames\n"
        "heavy = {'pyarrow', 'xxhash', 'msgspec', 'headrace.node', 'headrace.client'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "headrace.connect\n"
        "print('headrace.node' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\nFalse\n"


def test_every_public_name_is_there():
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError):
        headrace.nothing  # noqa: B018


def test_an_interrupt_that_wakes_nobody_ends_a_wait_as_well():
    """As it does if it comes just before the wait: the flag is set, and nobody is woken."""
    script = (
        "import asyncio, os, signal, threading\n"
        "from headrace.client.connect.loop_thread import LoopThread\n"
        "runner = LoopThread('test')\n"
        "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in this thread\n"
        "try:\n    runner.run(asyncio.sleep(60))\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize("ended", ["producer", "log"])
def test_what_a_producer_took_is_there_though_it_is_closed_beside(tmp_path, ended):
    taken, is_busy = [], threading.Event()

    def send(producer):
        with suppress(BadRequest):  # it is closed
            while True:
                producer.send({"id": len(taken), "name": "x"})
                taken.append(1)
                if len(taken) == 500:  # ten batches: some are sent, some wait
                    is_busy.set()

    log = headrace.open(tmp_path / "data")
    log.create_topic("orders", SCHEMA)
    producer = log.producer("orders", linger="1ms", batch_rows=50)
    sender = threading.Thread(target=send, args=(producer,))
    sender.start()
    assert is_busy.wait(30)
    (producer if ended == "producer" else log).close()
    sender.join(30)
    assert not sender.is_alive()
    log.close()
    with headrace.open(tmp_path / "data") as again:
        assert again.topic("orders").read().row_count == len(taken) > 0


def test_a_log_that_nobody_closed_is_closed_with_the_program(tmp_path):
    program = """
import sys, headrace

def main():
    log = headrace.open(sys.argv[1])
    log.create_topic("orders", {"id": "int64"})
    producer = log.producer("orders", linger="1h")
    for n in range(10):
        producer.send({"id": n})

main()
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "data"], check=True, timeout=60)
    assert not (tmp_path / "data" / "headrace.sock").exists()
    with headrace.open(tmp_path / "data") as log:
        assert log.topic("orders").read().row_count == 10


def test_a_socket_may_lie_deep(tmp_path):
    data = tmp_path / ("d" * 100) / "data"
    data.parent.mkdir()
    with headrace.open(data) as log:
        log.create_topic("orders", SCHEMA)
        with headrace.connect(f"unix:{data}/headrace.sock", timeout="5s") as near:
            assert near.topics() == ["default/orders"]
    with pytest.raises(ConnectionLost, match="No such file"):
        headrace.connect(f"unix:{data}/nobody.sock", timeout="1s")
