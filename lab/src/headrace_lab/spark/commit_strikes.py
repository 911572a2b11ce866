"""Crash points of a commit and of what comes before it: files, segments, columns, its answer.

Where a request of a bucket can be held or broken, the proxy before it does that; on a path the
driver stops on that side of the commit. Some of these strikes kill nobody: their process is the
driver that goes through it.
"""

import re
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

import headrace
from headrace.cli.demo.demo_rows import SCHEMA, TOPIC
from headrace.spark.stores.store import store_of
from headrace.spark.tables.table_record import table_at
from headrace.spark.worker.link import Link
from headrace.wire.file_messages import FetchFile, FileChunk
from headrace.wire.lease_messages import LeaseReleased, ReleaseLease
from headrace_lab.spark.check import filesystem_of
from headrace_lab.spark.gated_workers import Gate
from headrace_lab.spark.process import kill
from headrace_lab.spark.proxy import Asked
from headrace_lab.spark.s3_proxy import Exchange, Fault
from headrace_lab.spark.scene import ChaosScene

AWAY_SECONDS: Final = 6.0
_ENTRY: Final = r"_delta_log/\d{20}\.json"
_FAILED: Final = "round failed"


def before_entry(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the driver while its entry is on its way; the entry never comes."""
    if scene.bucket is None:
        return _at_entry(scene, "before entry", is_there=False)
    exchange = _at_request(scene, Fault.HOLD)
    pid = scene.kill_driver()
    return _judged(scene, pid, exchange, is_there=False)


def after_entry(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the driver when its entry is there, and nobody has told it so."""
    if scene.bucket is None:
        return _at_entry(scene, "after entry", is_there=True)
    exchange = _at_request(scene, Fault.HANG)
    store = store_of(scene.location)
    scene.await_that("the entry", lambda: store.head(_entry_of(exchange)) is not None)
    pid = scene.kill_driver()
    return _judged(scene, pid, exchange, is_there=True)


def _at_entry(scene: ChaosScene, step: str, *, is_there: bool) -> tuple[int, str]:
    """Kill the driver before or after the library's call that makes the entry on a path."""
    told = scene.tell_at("halt", step).version
    before = scene.record().table.version()  # a compaction's is not told
    pid = scene.kill_driver()
    newest = scene.record().table.version()
    word = scene.went_on()[1]
    if is_there:
        return pid * (
            newest > told
        ), f"version {newest} was there and untold; {word}" if word else ""
    return pid * (newest == before), f"version {newest + 1} never came; {word}" if word else ""


def _at_request(scene: ChaosScene, fault: Fault) -> Exchange:
    """Break the next put of an entry, and return it."""
    assert scene.bucket is not None
    proxy = scene.bucket.proxy
    before = len(proxy.asked)
    proxy.add(fault, target=_ENTRY, status=500 if fault == Fault.ANSWER_AFTER else 503)

    def found() -> list[Exchange]:
        return [one for one in proxy.asked[before:] if one.fault == fault]

    scene.await_that("a put of an entry", found)
    return found()[0]


def _entry_of(exchange: Exchange) -> str:
    found = re.search(_ENTRY, exchange.target)
    assert found is not None
    return found.group()


def _version_of(exchange: Exchange) -> int:
    return int(_entry_of(exchange).rpartition("/")[2].partition(".")[0])


def _judged(
    scene: ChaosScene, pid: int, exchange: Exchange, *, is_there: bool
) -> tuple[int, str]:
    """See whether the entry is there, and what the next driver makes of it."""
    version, name = _version_of(exchange), _entry_of(exchange)
    has_it = store_of(scene.location).head(name) is not None
    word = scene.went_on()[1]
    found = "was there and untold" if is_there else "never came"
    return pid * (has_it == is_there), f"version {version} {found}; {word}" if word else ""


def answer_lost(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Carry out a commit and lose its answer; the driver knows its commit again."""
    if scene.bucket is not None:
        return _answered(scene, Fault.LOSE)
    lost = scene.driver.testimony.lost
    scene.tell_at("fail", "after entry")
    return _recalled(scene, scene.record().table.version(), lost)


def answer_failed(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Carry out a commit and answer with an error."""
    return _answered(scene, Fault.ANSWER_AFTER)


def _answered(scene: ChaosScene, fault: Fault) -> tuple[int, str]:
    lost = scene.driver.testimony.lost
    return _recalled(scene, _version_of(_at_request(scene, fault)), lost)


def _recalled(scene: ChaosScene, version: int, lost: int) -> tuple[int, str]:
    """Wait until the driver has gone on from its commit, which it takes for its own."""
    testimony = scene.driver.testimony
    failed = len(testimony.all(_FAILED))
    scene.await_that(
        "a later round",
        lambda: testimony.version >= version or len(testimony.all(_FAILED)) > failed,
    )
    is_known = testimony.lost == lost and len(testimony.all(_FAILED)) == failed
    return scene.driver.pid, f"version {version} was known again" * is_known


def foreign_first(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Have another writer append before a commit; the same files come after it."""
    testimony = scene.tell_at("pause", "after files")
    files = scene.leftovers(newest_number=True)
    _append_nothing(scene)
    lost = testimony.lost
    rounds = testimony.rounds
    scene.driver.tell("wake")
    scene.await_that("a round", lambda: testimony.rounds > rounds)
    is_so = bool(files) and files.isdisjoint(scene.leftovers()) and testimony.lost == lost
    return scene.driver.pid, f"the same files came after it: {len(files)}" * is_so


def _append_nothing(scene: ChaosScene) -> None:
    """Append a file without rows, as another program would."""
    system, root = filesystem_of(scene.location)
    table = table_at(scene.location)
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    name = f"part-00000-{table.version():036}-c000.snappy.parquet"
    pq.write_table(empty, f"{root}/{name}", filesystem=system)
    size = system.get_file_info(f"{root}/{name}").size
    added = AddAction(name, size, {}, 0, True, '{"numRecords": 0}')
    table.create_write_transaction([added], "append", table.schema())


def store_away(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Have no store for seconds, from before a commit on; the driver waits for it."""
    assert scene.bucket is not None
    testimony = scene.tell_at("pause", "after files")
    failed, rounds = len(testimony.all(_FAILED)), testimony.rounds
    scene.bucket.proxy.away(AWAY_SECONDS)
    scene.driver.tell("wake")
    scene.await_that("a round", lambda: testimony.rounds > rounds)
    is_so = len(testimony.all(_FAILED)) == failed
    return scene.driver.pid, f"the round waited {AWAY_SECONDS:.0f} s" * is_so


def after_columns(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the driver when the table is wider, and no row of that schema is in it."""
    with headrace.connect(scene.stage.address) as log:
        topic = log.topic(TOPIC)
        name = f"note{len(topic.schema) - len(SCHEMA)}"
        wider = topic.schema.append(pa.field(name, pa.string()))
        scene.tell_at("halt", "after columns", lambda: topic.evolve(wider))
    pid = scene.kill_driver()
    is_landed = name in scene.record().columns.names
    word = scene.went_on()[1]
    return pid * is_landed, f"the table has {name}; {word}" if word else ""


def worker_in_file(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill a worker that has written a file, and not synced and named it."""
    gate, store = scene.gate, store_of(scene.location)
    gate.arm()
    try:
        scene.await_that("a new file", gate.held)
        pid, name = _held(gate)
        is_killed = kill(pid)
    finally:
        gate.free()
    rounds = scene.driver.testimony.rounds
    scene.await_that("a round", lambda: scene.driver.testimony.rounds > rounds)
    is_absent = store.head(name) is None
    parts = {each.name for each in store.uploads.list()} if scene.bucket is None else {name}
    is_shown = is_absent and name in parts
    word = f"{name[:14]}… never was a file, and another attempt wrote its rows"
    return pid * is_killed, word * is_shown


def _held(gate: Gate) -> tuple[int, str]:
    found = gate.held()
    assert found is not None
    return found


def node_in_segment(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """Kill the node while it sends a segment; the new one sends it, under a lease again."""
    scene.gate.hide_disk(is_hidden=True)
    try:
        hold = scene.to_table.hold(_is_fetch_file)
        held = scene.await_held(scene.to_table, hold)
        pid = scene.kill_node()
        hold.drop()
        return pid, _sent_again(scene, held, "by the new node")
    finally:
        scene.gate.hide_disk(is_hidden=False)


def lease_lost(scene: ChaosScene, _: Random) -> tuple[int, str]:
    """End a lease while a worker asks for its file: nothing of that round comes in."""
    scene.gate.hide_disk(is_hidden=True)
    try:
        hold = scene.to_table.hold(_is_fetch_file)
        held = scene.await_held(scene.to_table, hold)
        assert isinstance(held.request, FetchFile)
        with Link(scene.stage.address, None, "chaos") as link:
            link.ask(ReleaseLease(held.request.lease_id), LeaseReleased)
        hold.drop()
        return scene.driver.pid, _sent_again(scene, held, "under another lease")
    finally:
        scene.gate.hide_disk(is_hidden=False)


def _is_fetch_file(asked: Asked) -> bool:
    return isinstance(asked.request, FetchFile)


def _sent_again(scene: ChaosScene, held: Asked, how: str) -> str:
    """Wait until the rows of a file are in the table: fetched, or copied by another round."""
    first = held.request
    assert isinstance(first, FetchFile)

    def sent() -> bool:
        return any(
            isinstance(each.request, FetchFile)
            and (each.request.namespace, each.request.first) == (first.namespace, first.first)
            and isinstance(each.answer, FileChunk)
            for each in scene.to_table.since(held)
        )

    rounds = scene.driver.testimony.rounds
    scene.await_that("the same file", sent)
    scene.await_that("a round", lambda: scene.driver.testimony.rounds > rounds)
    return f"the file with row {first.first:,} was sent {how}"
