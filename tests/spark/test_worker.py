"""What runs on executors, against a real node, without Spark."""

import gc
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.client.doors import RunningNode
from tests.spark.conftest import SCHEMA, rows
from tests.spark.writings import a_writing

import headrace
from headrace.errors import BadRequest, ConnectionLost, Recreated, Unauthorized, Unavailable
from headrace.model.results import PublishResult
from headrace.model.schema import SYSTEM_FIELDS
from headrace.spark.spark_session import packed
from headrace.spark.worker import read as read_module
from headrace.spark.worker.content import Content, content_of
from headrace.spark.worker.files import writer
from headrace.spark.worker.link import Link, LogReplaced
from headrace.spark.worker.read import ROWS, LogAddress, Span, gathered, read
from headrace.spark.worker.settle import settle
from headrace.spark.worker.write import Deed, StageTarget, stage_all
from headrace.wire.read_messages import BoundsReply, Fetch, GetBounds
from headrace.wire.write_messages import PublishRequest, writer_of
from headrace_lab.spark.proxy import Proxy


def a_span(log, topic, partition, start, end, address, **changes):
    view = topic.core.view
    info = view.partition(partition)
    exact = pa.schema([*SYSTEM_FIELDS, *topic.schema])
    given = {
        "where": LogAddress(address, None, "test", ""),
        "topic": topic.name,
        "partition": partition,
        "namespace": info.namespace,
        "created": info.created,
        "start": start,
        "end": end,
        "version": view.version,
        "schemas": tuple((v, s.serialize().to_pybytes()) for v, s in view.schemas.items()),
        "exact": exact.serialize().to_pybytes(),
    }
    return Span(**{**given, **changes})


@pytest.fixture
def remote(node):
    with headrace.connect(node.address) as log:
        yield log


def test_a_span_is_its_rows_and_no_others(node, remote):
    topic = remote.create_topic("orders", SCHEMA)
    for start in range(0, 500, 50):
        topic.append(rows(start, start + 50))
    span = a_span(remote, topic, 0, 120, 333, node.address)
    table = pa.Table.from_batches(list(read(span)))
    assert table["id"].to_pylist() == list(range(120, 333))
    assert table["_offset"].to_pylist() == list(range(120, 333))
    assert set(table["_partition"].to_pylist()) == {0}


def test_rows_of_an_older_schema_are_shown_in_the_newer(node, remote):
    topic = remote.create_topic("orders", {"id": "int32"})
    topic.append([{"id": 1}])
    topic.evolve({"id": "int64", "note": "string"})
    topic.append([{"id": 2, "note": "x"}])
    table = pa.Table.from_batches(list(read(a_span(remote, topic, 0, 0, 2, node.address))))
    assert table.select(["id", "note"]).to_pylist() == [
        {"id": 1, "note": None},
        {"id": 2, "note": "x"},
    ]


def test_rows_of_a_newer_schema_than_the_frame_s_say_what_its_reader_can_do(node, remote):
    topic = remote.create_topic("orders", {"id": "int32"})
    topic.append([{"id": 1}])
    view, older = topic.core.view, pa.schema([*SYSTEM_FIELDS, *topic.schema])
    topic.evolve({"id": "int64", "note": "string"})
    topic.append([{"id": 2, "note": "x"}])
    given = {"version": view.version, "exact": older.serialize().to_pybytes()}
    assert len(list(read(a_span(remote, topic, 0, 0, 1, node.address, **given)))) == 1
    with pytest.raises(BadRequest, match=r"orders: rows from 1 on have .*: load it again"):
        list(read(a_span(remote, topic, 0, 0, 2, node.address, **given)))


@pytest.mark.parametrize("names", [None, ["id", "_offset"], ["name", "id"]])
def test_rows_of_the_tail_come_as_they_were_appended_if_all_columns_are_wanted(
    node, remote, names
):
    topic = remote.create_topic("orders", SCHEMA)
    for start in range(0, 500, 50):
        topic.append(rows(start, start + 50))
    exact = pa.schema([*SYSTEM_FIELDS, *topic.schema])
    exact = exact if names is None else pa.schema([exact.field(name) for name in names])
    with Proxy(node.address) as proxy:
        given = exact.serialize().to_pybytes()
        span = a_span(remote, topic, 0, 120, 333, proxy.address, exact=given)
        table = pa.Table.from_batches(list(read(span)))
    assert table["id"].to_pylist() == list(range(120, 333))
    assert table.schema.equals(exact)
    (fetched,) = [each.answer for each in proxy.asked if isinstance(each.request, Fetch)]
    assert {piece.is_entry for piece in fetched.pieces} == {names is None}


def test_the_next_answer_is_asked_for_before_the_rows_of_this_one_are_taken(
    node, remote, monkeypatch
):
    monkeypatch.setattr(read_module, "FETCH_SIZE", 1)  # one entry at a time
    monkeypatch.setattr(read_module, "ROWS", 50)
    topic = remote.create_topic("orders", SCHEMA)
    for start in range(0, 200, 50):
        topic.append(rows(start, start + 50))
    with Proxy(node.address, kept=(Fetch,)) as proxy:
        taken = read(a_span(remote, topic, 0, 0, 200, proxy.address))
        found = [next(taken)]
        end = time.monotonic() + 10
        while len(proxy.asked) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        # To know that the first batch is full, the second was taken: the third is on its way.
        assert [each.request.start for each in proxy.asked] == [0, 50, 100]
        found += taken
        assert [each.request.start for each in proxy.asked] == [0, 50, 100, 150]
    assert pa.Table.from_batches(found)["id"].to_pylist() == list(range(200))


def test_what_was_asked_ahead_is_asked_again_if_it_is_lost_and_left_if_it_is_not_wanted(
    node, remote
):
    topic = remote.create_topic("orders", SCHEMA)
    other = remote.create_topic("others", SCHEMA)
    topic.append(rows(0, 10))
    question, another = (GetBounds((each.core.view.partition(0),)) for each in (topic, other))
    with Proxy(node.address) as proxy, Link(proxy.address, None, "test") as link:
        link.ask_ahead(question)  # there is no connection yet
        assert link.ask(question, BoundsReply)[0].bounds[0].end == 10
        link.ask_ahead(question)
        assert link.ask(another, BoundsReply)[0].bounds[0].end == 0
        link.ask_ahead(question)
        proxy.asked[-1].line.cut()
        assert link.ask(question, BoundsReply)[0].bounds[0].end == 10


def test_a_socket_may_lie_deep(tmp_path):
    data = tmp_path / ("d" * 100) / "data"
    data.parent.mkdir()
    with headrace.open(data) as log:
        info = log.create_topic("orders", SCHEMA).core.view.partition(0)
        with Link(f"unix:{data}/headrace.sock", None, "test") as link:
            assert link.ask(GetBounds((info,)), BoundsReply)[0].bounds[0].end == 0


def test_a_node_that_restarts_is_waited_for(tmp_path):
    first = RunningNode(tmp_path / "node")
    port = first.address
    with headrace.connect(port) as log:
        topic = log.create_topic("orders", SCHEMA)
        topic.append(rows(0, 10))
        span = a_span(log, topic, 0, 0, 10, port)
        link = Link(port, None, "test")
        info = topic.core.view.partition(0)
        question = GetBounds((info,))
        assert link.ask(question, BoundsReply)[0].bounds[0].end == 10
    first.stop()
    with RunningNode(tmp_path / "node", listen__address=port):
        assert link.ask(question, BoundsReply)[0].bounds[0].end == 10
        assert sum(batch.num_rows for batch in read(span)) == 10
    link.close()


def test_another_log_at_the_same_place_is_refused_though_all_its_numbers_fit(tmp_path):
    with RunningNode(tmp_path / "node") as first:
        address = first.address
        with headrace.connect(address) as log:
            topic = log.create_topic("orders", SCHEMA)
            topic.append(rows(0, 10))
            where = LogAddress(address, None, "test", topic.cluster)
            span = replace(a_span(log, topic, 0, 0, 10, address), where=where)
        assert sum(batch.num_rows for batch in read(span)) == 10
    with (
        RunningNode(tmp_path / "other", listen__address=address),
        headrace.connect(address) as log,
    ):
        again = log.create_topic("orders", SCHEMA)
        again.append(rows(50, 60))
        fitting = a_span(log, again, 0, 0, 10, address).created
        span = replace(span, created=fitting)
        with pytest.raises(
            LogReplaced, match=f"expected log [0-9a-f]+, found log {again.cluster}"
        ):
            list(read(span))


def test_a_wrong_address_is_named():
    link = Link("127.0.0.1:1", None, "test")
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        link.ask(GetBounds(()), BoundsReply, seconds=0.2)


def test_a_token_is_asked_for_and_proven(tmp_path):
    (tmp_path / "token").write_text("a secret of our own\n")
    (tmp_path / "other").write_text("another of somebody else\n")
    with RunningNode(tmp_path / "node", auth__token="a secret of our own") as node:
        with Link(node.address, str(tmp_path / "token"), "test") as link:
            assert link.ask(GetBounds(()), BoundsReply)[0].bounds == ()
        for wrong in (None, str(tmp_path / "other"), str(tmp_path / "none")):
            with Link(node.address, wrong, "test") as link, pytest.raises(Unauthorized):
                link.ask(GetBounds(()), BoundsReply)


def test_rows_of_a_deleted_topic_are_refused_not_replaced(node, remote):
    topic = remote.create_topic("orders", SCHEMA)
    topic.append(rows(0, 3))
    span = a_span(remote, topic, 0, 0, 3, node.address)
    topic.delete()
    remote.create_topic("orders", SCHEMA).append(rows(5, 8))
    with pytest.raises(Recreated):
        list(read(span))


def test_batches_are_put_together_and_cut():
    small = pa.record_batch({"a": list(range(10))})
    large = pa.record_batch({"a": list(range(3 * ROWS + 5))})
    found = list(gathered(iter([small] * 20)))
    assert [each.num_rows for each in found] == [200]
    found = list(gathered(iter([small, large])))
    assert sum(each.num_rows for each in found) == large.num_rows + 10
    assert all(each.num_rows <= ROWS for each in found)
    wide = pa.record_batch({"a": ["x" * 1024] * 4096})
    found = list(gathered(iter([small, wide, wide, small, small])))
    assert [each.num_rows for each in found] == [10, 4096, 4096, 20]
    assert found[1].column(0).buffers()[2].address == wide.column(0).buffers()[2].address


def a_target(topic, address, key=None):
    view = topic.core.view
    return StageTarget(
        where=LogAddress(address, None, "test", ""),
        topic=topic.name,
        created=topic.created,
        partitions=tuple((each.namespace, each.created) for each in view.info.partitions),
        version=view.version,
        schema=topic.schema.serialize().to_pybytes(),
        key=key,
    )


def test_a_task_that_runs_twice_makes_other_stages(node, remote):
    topic = remote.create_topic("orders", SCHEMA, partitions=2, key="id")
    target = a_target(topic, node.address, "id")
    batch = pa.RecordBatch.from_pylist(rows(0, 100), topic.schema)
    one = stage_all(target, Deed("job", 1), [batch], 0)
    two = stage_all(target, Deed("job", 1), [batch], 0)
    assert sum(each.row_count for each in one) == 100
    assert {each.stage_id for each in one}.isdisjoint(each.stage_id for each in two)
    assert topic.read().row_count == 0


def publish(target, deed, receipts):
    namespace, _ = target.partitions[0]
    with target.where.link() as link:
        stages = tuple(receipts)
        request = PublishRequest(
            namespace, target.created, writer_of(deed.app_id), deed.version, stages
        )
        return link.ask(request, PublishResult)[0]


class TestVersionThatWasPublished:
    """Its rows are counted, however they are parted, and compared with those that are there."""

    def test_rows_are_counted_and_none_is_staged(self, node, remote):
        topic = remote.create_topic("orders", SCHEMA, partitions=2)
        target, deed = a_target(topic, node.address), Deed("job", 1)
        batches = [pa.RecordBatch.from_pylist(rows(n, n + 50), topic.schema) for n in (0, 50)]
        assert publish(target, deed, stage_all(target, deed, batches, 0)).same
        again = [each for batch in reversed(batches) for each in (batch[30:], batch[:30])]
        found = [stage_all(target, deed, [each], 0) for each in again]
        assert sum(found, start=Content()) == content_of(pa.concat_batches(batches))
        assert found[0] + found[1] != found[2] + found[3]
        assert topic.read().row_count == 100

    def test_one_of_another_driver_in_the_middle_of_a_task_is_no_silent_success(
        self, node, remote
    ):
        topic = remote.create_topic("orders", SCHEMA)
        target, deed = a_target(topic, node.address), Deed("job", 1)
        batch = pa.RecordBatch.from_pylist(rows(0, 10), topic.schema)
        other = stage_all(target, deed, [batch], 0)
        wide = pa.RecordBatch.from_pylist(
            [{"id": n, "name": "x" * 1_000_000} for n in range(6)], topic.schema
        )

        def batches():
            yield wide
            publish(target, deed, other)
            yield wide

        with pytest.raises(Unavailable, match="orders by another driver while"):
            stage_all(target, deed, batches(), 0)
        assert topic.read().row_count == 10

    def test_each_type_is_counted_by_its_values(self):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        schema = pa.schema(
            [
                ("at", pa.timestamp("us", tz="UTC")),
                (
                    "in",
                    pa.struct(
                        [
                            ("day", pa.list_(pa.date32())),
                            ("at", pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))),
                        ]
                    ),
                ),
                ("real", pa.float64()),
                ("price", pa.decimal128(9, 2)),
            ]
        )
        one = {
            "at": now,
            "in": {"day": [now.date(), None], "at": [("k", now)]},
            "real": float("nan"),
            "price": Decimal("1.10"),
        }
        none = dict.fromkeys(one)
        whole = pa.RecordBatch.from_pylist([one, none, one], schema)
        turned = pa.RecordBatch.from_pylist([none, one, one], schema)
        assert content_of(whole) == content_of(turned)
        seen = {content_of(whole)}
        for change in (
            {"at": now + timedelta(microseconds=1)},
            {"in": {**one["in"], "day": [None, now.date()]}},
            {"real": 0.0},
            {"price": Decimal("1.11")},
            none,
        ):
            rows = [one, none, {**one, **change}]
            seen.add(content_of(pa.RecordBatch.from_pylist(rows, schema)))
        assert len(seen) == 6
        far = pa.array([2**62]).cast(pa.timestamp("us", tz="UTC"))  # no datetime of Python
        assert content_of(pa.RecordBatch.from_arrays([far], ["at"])).row_count == 1


@pytest.fixture
def unsettled():
    """A process that has run no task yet."""
    gc.unfreeze()
    settle.cache_clear()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("work", ["reads", "stages", "writes"])
def test_collections_after_a_task_leave_out_what_came_with_imports(
    node, remote, tmp_path, unsettled, work
):
    topic = remote.create_topic("orders", SCHEMA)
    batch = pa.RecordBatch.from_pylist(rows(0, 10), topic.schema)
    topic.append(batch)

    def run():
        if work == "reads":
            list(read(a_span(remote, topic, 0, 0, 10, node.address)))
        elif work == "stages":
            stage_all(a_target(topic, node.address), Deed("job", 1), [batch], 0)
        else:
            list(writer(a_writing(tmp_path, topic.schema))(iter([batch])))

    run()
    left_out = gc.get_freeze_count()
    assert left_out > 10_000
    more = [[] for _ in range(1_000)]
    run()
    assert gc.get_freeze_count() < left_out + len(more)


def test_garbage_of_the_first_task_is_not_kept(unsettled):
    class Ring:
        pass

    ring = Ring()
    ring.own, left = ring, weakref.ref(ring)
    del ring
    settle()
    gc.collect()
    assert left() is None


def test_executors_need_nothing_but_pyarrow(tmp_path):
    code = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('xxhash', 'msgspec', 'uvloop', 'typer', 'rich'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        f"sys.path.insert(0, {packed()!r})\n"
        "from headrace.spark.source import data_source\n"
        "import headrace.spark.worker.read, pyspark_headrace\n"
        "assert '.zip' in data_source.__file__, data_source.__file__\n"
        "pyspark_headrace.DefaultSource\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)


def test_a_worker_that_reaches_no_node_says_what_to_look_at():
    with pytest.raises(ConnectionLost) as caught, Link("127.0.0.1:1", None, "test") as link:
        link.ask(GetBounds(()), BoundsReply, seconds=0.1)
    said = str(caught.value)
    assert said.startswith("no node answers at 127.0.0.1:1: ")
    assert said.endswith("and that executors, too, can reach its address")
