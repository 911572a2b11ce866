"""`headrace chaos spark`: kills that land, what is seen of the recovery, and planted bugs."""

import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from itertools import cycle
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.cli.commands import headrace_here
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, ids, run
from tests.spark.test_topic_source import wait_until

import headrace
from headrace.cli.demo.checks import Claim, Told
from headrace.cli.terminal.exits import Exit
from headrace.errors import Unavailable
from headrace.model.results import PublishResult, Receipt
from headrace.spark.batch_ranges import Backlog
from headrace.spark.source.data_source import StreamReader, spark_schema
from headrace.spark.tables.table_record import Record
from headrace.wire.greeting import ErrorReply
from headrace.wire.topic_messages import ListTopics
from headrace.wire.write_messages import PublishRequest
from headrace_lab.harness.mutants import Mutant
from headrace_lab.spark import driver
from headrace_lab.spark.check import Checked, check, table_rows
from headrace_lab.spark.names import (
    LOCAL,
    OF_BUCKETS,
    OF_COMMITS,
    OF_COPIES,
    OF_DRIVERS,
    OF_EXECUTORS,
    OF_OTHERS,
    ON_CLUSTER,
    Point,
    plan,
    point_named,
)
from headrace_lab.spark.plants import PLANTS
from headrace_lab.spark.process import holder_of, kill
from headrace_lab.spark.proxy import Asked, Proxy
from headrace_lab.spark.run import ChaosReport, Run
from headrace_lab.spark.scene import is_publish
from headrace_lab.spark.strikes import Kill

DRIVERS = (*OF_DRIVERS, Point.RANDOM_DRIVER)
OTHERS = (*OF_OTHERS, Point.RANDOM_NODE, Point.RANDOM_WORKER)
PAIRS = list(zip(DRIVERS, cycle(OTHERS), strict=False))


@pytest.mark.campaign(1, of="strikes around Spark")
@pytest.mark.parametrize("points", PAIRS, ids=" and ".join)
def test_every_row_is_there_once_whoever_is_killed(tmp_path, points):
    holds(tmp_path, points, "path")


# With one kill of a driver at most: a sample of them takes less than a minute.
COMMITS = [
    (Point.ANSWER_LOST, Point.WORKER_IN_FILE, Point.FOREIGN_FIRST),
    (Point.DRIVER_BEFORE_ENTRY,),
    (Point.DRIVER_AFTER_ENTRY,),
    (Point.NODE_IN_SEGMENT, Point.LEASE_LOST),
    (Point.DRIVER_AFTER_COLUMNS,),
]
STORES = [(store, points) for store in ("s3", "path") for points in COMMITS]
STORES.append(("s3", OF_BUCKETS))


@pytest.mark.campaign(1, of="strikes around Spark")
@pytest.mark.parametrize(("store", "points"), STORES)
def test_every_row_is_there_once_whatever_happens_to_a_commit(tmp_path, store, points):
    holds(tmp_path, points, store)


def holds(tmp_path, points, store):
    words = [word for one in points for word in ("--point", one)]
    command = [sys.executable, "-m", "headrace", "chaos", "spark", "--runs", "1", *words]
    command += ["--store", store]
    ended = subprocess.run(
        [*command, "--seed", "1", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["verdict"] == "held"
    # One line for each run: many take an hour.
    assert f"run 1: {len(points)} kill" in ended.stderr
    assert told["landed"] == told["recovered"] == told["promised"]
    assert [one["point"] for one in told["strikes"]] == list(points)
    assert all(one["evidence"] and one["pid"] for one in told["strikes"])
    (only,) = told["runs"]
    assert only["acknowledged"] == only["in_table"] == only["in_copy"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_does_not_get_warm_says_so_and_is_not_struck(spark, monkeypatch):
    monkeypatch.setattr(driver, "WARM_SECONDS", 0.001)
    with pytest.raises(Unavailable, match="did not end a first batch"):
        driver.warm_up(spark)
    assert not spark.streams.active


class TestPlan:
    def test_thirty_runs_aim_at_each_point_three_times_or_more(self):
        counts = Counter(
            point for points in plan(30, Random(1), cluster=False) for point in points
        )
        assert set(counts) == set(LOCAL)
        assert min(counts.values()) >= 3

    def test_into_a_bucket_they_aim_at_what_happens_to_requests_too(self):
        found = plan(30, Random(1), cluster=False, bucket=True)
        counts = Counter(point for points in found for point in points)
        assert set(counts) == {*LOCAL, *OF_BUCKETS} == set(Point) - {*OF_EXECUTORS}
        assert min(counts.values()) >= 3

    def test_a_request_is_answered_by_a_bucket_only(self):
        ended = headrace_here("chaos", "spark", "--point", "store is away")
        assert ended.code == Exit.USAGE
        assert "only a bucket answers requests. Add --store s3" in ended.err

    def test_a_cluster_loses_an_executor_in_every_run_and_everybody_in_thirty(self):
        found = plan(30, Random(1), cluster=True)
        assert all(Point.EXECUTOR_IN_READ in points for points in found)
        counts = Counter(point for points in found for point in points)
        assert set(counts) == set(ON_CLUSTER)
        assert set(ON_CLUSTER) == set(Point) - {*OF_COMMITS, *OF_COPIES, *OF_BUCKETS}
        assert min(counts.values()) >= 3

    def test_an_executor_is_looked_for_on_a_cluster_only(self):
        ended = headrace_here("chaos", "spark", "--point", "executor at any")
        assert ended.code == Exit.USAGE
        assert "executors exist only on a cluster. Add --cluster" in ended.err

    def test_a_part_of_a_name_means_the_only_point_that_has_it(self):
        assert point_named("Worker inside a st") == Point.WORKER_IN_STAGE
        with pytest.raises(ValueError, match="driver before files; driver after files"):
            point_named("driver")


def shape_of(function):
    """Return what a function is called with: how many, and which by name."""
    found = inspect.signature(function).parameters.values()
    named = inspect.Parameter.KEYWORD_ONLY
    return [(each.kind, each.default, each.name * (each.kind == named)) for each in found]


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_bug_is_called_like_what_it_replaces(plant):
    for owner, name, value in plant.patches:
        assert shape_of(value) == shape_of(getattr(owner, name))


class TestVerdict:
    def a_report(self, *strikes, promised=(Point.NODE_IN_READ,)):
        report = ChaosReport(1, is_cluster=False)
        report.promised.update(promised)
        report.runs.append(Run(1, promised, list(strikes)))
        return report

    def test_a_point_that_landed_and_recovered_is_shown(self):
        report = self.a_report(Kill(Point.NODE_IN_READ, 7, is_landed=True, evidence="seen"))
        assert report.missing == []

    def test_a_point_that_never_landed_is_named(self):
        report = self.a_report(Kill(Point.NODE_IN_READ, 0, is_landed=False, evidence=""))
        assert report.missing == [
            "node while a driver reads: landed 0 times, expected 1 or more"
        ]

    @pytest.mark.parametrize(("landed", "planned"), [(2, 8), (1, 2)])
    def test_a_point_that_landed_too_rarely_is_named(self, landed, planned):
        hit = Kill(Point.NODE_IN_READ, 7, is_landed=True, evidence="seen")
        report = self.a_report(*[hit] * landed)
        assert report.missing == []
        report.planned[Point.NODE_IN_READ] = planned  # for runs that were not begun, too
        wanted = min(planned, 3)
        assert report.missing == [
            f"{Point.NODE_IN_READ}: landed {landed} times, expected {wanted} or more"
        ]
        report.runs[0].strikes.extend([hit] * (wanted - landed))
        assert report.missing == []

    def test_a_kill_without_a_sign_of_recovery_is_not_shown(self):
        report = self.a_report(Kill(Point.NODE_IN_READ, 7, is_landed=True, evidence=""))
        assert report.missing == ["node while a driver reads: recovery seen after 0 of 1 kills"]

    @pytest.mark.parametrize(
        ("silence", "lost", "twice", "broken"),
        [("", 0, 0, False), ("", 1, 0, True), ("no end", 1, 0, False), ("no end", 1, 1, True)],
    )
    def test_rows_that_are_missing_after_an_unfinished_run_may_be_late(
        self, silence, lost, twice, broken
    ):
        report = self.a_report()
        problems = ("wrong",) if lost or twice else ()
        report.runs[0].checked = Checked(9, 9, 9, lost, twice, 0, problems)
        report.runs[0].silence = silence
        assert report.is_broken == broken
        assert bool(report.missing) or not silence


SAME_PORT = """
import socket, sys
port, to = map(int, sys.argv[1:])
mine = socket.socket()
mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
mine.bind(("127.0.0.1", port))
mine.connect(("127.0.0.1", to))
print("connected", flush=True)
sys.stdin.read()
"""


class TestProxy:
    @pytest.fixture
    def proxy(self, node):
        with Proxy(node.address) as proxy:
            yield proxy

    def test_what_passes_is_kept_with_its_answer(self, proxy):
        with headrace.connect(proxy.address) as log:
            log.create_topic("shop/orders", {"id": "int64", "name": "string"})
            log.topic("shop/orders").append(rows(0, 5_000))
            assert log.topic("shop/orders").read().row_count == 5_000
        assert all(each.answer is not None for each in proxy.asked)

    @pytest.mark.parametrize("answer", [False, True])
    def test_what_is_held_never_arrives_and_is_asked_again(self, proxy, answer):
        with headrace.connect(proxy.address) as log:
            hold = proxy.hold(lambda each: isinstance(each.request, ListTopics), answer=answer)
            found = []
            asking = threading.Thread(target=lambda: found.append(log.topics()))
            asking.start()
            assert wait_until(lambda: hold.caught is not None)
            assert (hold.caught.answer is not None) == answer
            assert found == []
            hold.drop()
            asking.join(30)
            assert found == [[]]
        again = [each for each in proxy.asked if isinstance(each.request, ListTopics)]
        assert len(again) == 2

    def test_a_publish_that_the_node_refuses_is_not_what_a_strike_waits_for(self):
        request = PublishRequest(1, 1, b"w", 1, (Receipt(b"s", 1, 1, b"d"),))
        refused = ErrorReply("Busy", "the queue is full", "Wait", (), 10)
        published = PublishResult((), repeated=False, same=True)
        assert is_publish(Asked(None, request))
        assert is_publish(Asked(None, request, published))
        assert not is_publish(Asked(None, request, refused))

    def test_the_process_at_the_other_end_is_found(self, proxy):
        with headrace.connect(proxy.address) as log:
            log.topics()
            assert holder_of(proxy.asked[-1].line.ports) == os.getpid()
        assert holder_of((1, 1)) is None

    def test_one_port_may_be_of_two_processes(self):
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            first, second = (each.getsockname()[1] for each in (one, two))
            with socket.socket() as mine:
                mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                mine.bind(("127.0.0.1", 0))
                mine.connect(("127.0.0.1", first))
                port = mine.getsockname()[1]
                command = [sys.executable, "-c", SAME_PORT, str(port), str(second)]
                with subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                ) as other:
                    assert other.stdout.readline() == b"connected\n"
                    assert holder_of((port, first)) == os.getpid()
                    assert holder_of((port, second)) == other.pid
                    other.stdin.close()


def test_a_process_is_killed_once():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert kill(process.pid)
    assert process.wait() == -9
    assert not kill(process.pid)


class TestCheck:
    """The oracle sees a table that is wrong."""

    SCHEMA = pa.schema(
        [("source", pa.int32()), ("number", pa.int64()), ("amount", pa.float64())]
    )

    def rows_of(self, numbers, amount=0.0):
        found = {
            "source": [0] * len(numbers),
            "number": list(numbers),
            "amount": [each / 100 + amount for each in numbers],
        }
        return pa.table(found, schema=self.SCHEMA)

    @pytest.fixture
    def judged(self, monkeypatch, node, tmp_path):
        """Judge tables beside a copy that is whole, without a proof."""
        whole = self.rows_of(range(100))
        with headrace.connect(node.address) as log:
            for name in ("demo/orders", "demo/copy"):
                log.create_topic(name, self.SCHEMA).append(whole)
        proof = type("Proof", (), {"holds": True, "in_log": 100, "in_table": 100})
        monkeypatch.setattr("headrace_lab.spark.check.proof_of", lambda topic, table: proof)

        def judge(*parts):
            for part in parts:
                write_deltalake(str(tmp_path / "table"), part, mode="append")
            return check(
                node.address, str(tmp_path / "table"), [Claim(0, 100, (Told(0, 100),))]
            )

        return judge

    def test_each_row_once_is_well(self, judged):
        found = judged(self.rows_of(range(50)), self.rows_of(range(50, 100)))
        assert (found.in_table, found.in_copy, found.problems) == (100, 100, ())

    def test_a_lost_row_is_seen(self, judged):
        assert judged(self.rows_of(range(99))).lost == 1

    def test_a_row_that_is_there_twice_is_seen(self, judged):
        assert judged(self.rows_of(range(100)), self.rows_of([7])).twice == 1

    def test_a_row_that_nobody_sent_is_seen(self, judged):
        assert judged(self.rows_of(range(101))).invented == 1

    def test_a_changed_row_is_seen(self, judged):
        found = judged(self.rows_of(range(99)), self.rows_of([99], amount=1.0))
        assert found.invented == 1
        assert found.problems == ("the table: 1 rows are not as they were sent",)

    def test_a_compacted_table_is_read_as_it_is(self, judged, tmp_path):
        judged(self.rows_of(range(50)), self.rows_of(range(50, 100)))
        DeltaTable(str(tmp_path / "table")).optimize.compact()
        assert sorted(table_rows(str(tmp_path / "table"))["number"].to_pylist()) == list(
            range(100)
        )


def planted(owner, name, value):
    return Mutant(name, "driver", ((owner, name, value),)).planted()


def test_rows_that_a_user_deleted_stay_deleted_unless_the_place_is_the_largest_offset(
    spark, tmp_path, topic
):
    topic.append(rows(0, 20), partition=0)
    run(spark, a_definition(tmp_path))
    DeltaTable(str(tmp_path / "table")).delete("id >= 15")
    assert run(spark, a_definition(tmp_path)) == []
    assert ids(tmp_path) == list(range(15))

    def by_largest_offset(self, partition, first):
        found = self.table.to_pyarrow_table(columns=["_hr_partition", "_hr_offset"]).to_pylist()
        own = [each["_hr_offset"] for each in found if each["_hr_partition"] == partition]
        return max(own, default=first - 1) + 1

    with planted(Record, "start_of", by_largest_offset):
        run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(20))  # the bug brings them back


def test_a_batch_ends_at_a_schema_version_unless_the_boundary_is_not_looked_at(topic, tmp_path):
    topic.append(rows(0, 5), partition=0)
    options = {"topic": "shop/orders", "path": str(tmp_path / "data")}

    def a_batch():
        reader = StreamReader(options, schema)
        return reader.latestOffset(start, ReadAllAvailable())["partitions"]["0"]

    schema = spark_schema(topic.schema)
    start = StreamReader(options, schema).initialOffset()
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    assert a_batch() == 5
    with planted(Backlog, "version_end", property(lambda self: self.end)):
        assert a_batch() == 6  # the bug reads a row without its new column
