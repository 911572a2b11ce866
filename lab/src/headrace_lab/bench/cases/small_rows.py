"""The cost of small calls: rows by `send`, lists of dicts, and one row at a time.

A row has three columns: an integer, a text and a float. `send` takes one dict per call and
sends batches of 10,000 rows; `append` takes lists of 20,000 dicts. Each list or batch is on
disk before the clock stops. SQLite (WAL, FULL) and DuckDB take the same dicts and commit as
often: SQLite by `executemany`, DuckDB by Arrow, its fastest way from Python. pyarrow's
`Table.from_pylist` writes nothing: it shows the cost of building columns alone.

One row per call is given as calls per second at the median and at the 99th percentile, so that
more is better: 2,000 is 0.5 ms. Processor time is that of the caller's process, which includes
an embedded node but not a node behind a socket.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

import headrace
from headrace_lab.bench.frame import Case, Round, Side, rate, scaled
from headrace_lab.bench.remote import sending
from headrace_lab.bench.rows import KIB
from headrace_lab.bench.serving import ProducerLoad, a_server

SENT_ROWS = 400_000
BATCH_ROWS = 10_000  # that a producer sends at once, and the others commit at once
LISTS = 20
LIST_ROWS = 20_000
CALLS = 400
_LONE = ProducerLoad(64, KIB, 1, 20_000)
_LEAST = 0.33  # a lone row takes at most three times as long as SQLite's
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
    ]
)

Row = dict[str, object]
Call = Callable[[], object]
Score = Callable[[Call], float]


def cases(directory: Path, scale: float) -> list[Case]:
    """Give each load beside each of the others."""
    sent, size = scaled(SENT_ROWS, scale), scaled(LIST_ROWS, scale)
    return [
        *_many("send, a dict a call", _producing(directory, sent), directory, sent, BATCH_ROWS),
        *_many(
            f"append, lists of {size:,} dicts",
            _appending(directory, size * LISTS, size),
            directory,
            size * LISTS,
            size,
        ),
        *_single(directory, scaled(CALLS, scale)),
        _lone(directory, scale),
    ]


def _many(name: str, ours: Side, directory: Path, count: int, step: int) -> list[Case]:
    limits = (
        ("SQLite", "SQLite, executemany", _sqlite_rows(directory / "sqlite", count, step), 1.0),
        (
            "DuckDB",
            "DuckDB, INSERT of Arrow",
            _duckdb_rows(directory / "duckdb", count, step),
            None,
        ),
        ("pyarrow", "Table.from_pylist, no disk", _from_pylist(count, step), None),
    )
    return [
        Case(f"{name} / {beside}", "rows/s", ours, reference, limit, floor)
        for beside, reference, limit, floor in limits
    ]


def _single(directory: Path, count: int) -> list[Case]:
    ours = {"embedded": _embedded, "socket": _remote}
    limits = {
        "SQLite": (_sqlite_call, "SQLite, one INSERT"),
        "fdatasync": (_bare_call, "bare pwrite + fdatasync of 1 KiB"),
    }
    scores = {
        "p50": _quantile(0.5, count),
        "p99": _quantile(0.99, count),
        "processor": _processor(count),
    }
    return [
        Case(
            name=f"one row, {where}, {what} / {beside}",
            unit="calls/s",
            ours=_scored(partial(opened, directory / "one"), score),
            reference=reference,
            limit=_scored(partial(limit, directory / beside), score),
            floor=_LEAST if (where, what, beside) == ("embedded", "p50", "SQLite") else None,
        )
        for where, opened in ours.items()
        for what, score in scores.items()
        for beside, (limit, reference) in limits.items()
    ]


def _lone(directory: Path, scale: float) -> Case:
    load = replace(_LONE, count=max(_LONE.producers, scaled(_LONE.count, scale)))
    return Case(
        name=f"{load.producers} producers, a 1 KiB row each / fdatasync",
        unit="rows/s",
        ours=sending(directory / "lone", load, None, in_mib=False),
        reference="bare pwrite + fdatasync of 1 KiB, one after the other",
        limit=_scored(partial(_bare_call, directory / "bare"), _wall(scaled(2_000, scale))),
    )


def made_rows(count: int) -> list[Row]:
    """Make rows as programs have them: no two strings or numbers are one object."""
    return [
        {"id": each, "name": f"customer {each}", "amount": each * 0.5} for each in range(count)
    ]


def _parts(rows: list[Row], step: int) -> list[list[Row]]:
    return [rows[start : start + step] for start in range(0, len(rows), step)]


@contextmanager
def _a_topic(path: Path) -> Iterator[tuple[headrace.Log, headrace.Topic]]:
    with headrace.open(path) as log:
        yield log, log.create_topic("bench/rows", _SCHEMA)


def _producing(directory: Path, count: int) -> Side:
    @contextmanager
    def producing() -> Iterator[Round]:
        rows = made_rows(count)
        with _a_topic(directory / "send") as (log, topic):

            def work() -> None:
                with log.producer(topic, batch_rows=BATCH_ROWS) as producer:
                    send = producer.send
                    for row in rows:
                        send(row)

            yield lambda: rate(count, work)
        shutil.rmtree(directory / "send")

    return producing


def _appending(directory: Path, count: int, step: int) -> Side:
    @contextmanager
    def appending() -> Iterator[Round]:
        parts = _parts(made_rows(count), step)
        with _a_topic(directory / "append") as (_, topic):

            def work() -> None:
                for part in parts:
                    topic.append(part)

            yield lambda: rate(count, work)
        shutil.rmtree(directory / "append")

    return appending


def _sqlite_rows(path: Path, count: int, step: int) -> Side:
    @contextmanager
    def inserting() -> Iterator[Round]:
        parts = _parts(made_rows(count), step)
        with _a_sqlite(path) as database:

            def work() -> None:
                for part in parts:
                    database.execute("BEGIN")
                    database.executemany("INSERT INTO log VALUES (:id, :name, :amount)", part)
                    database.execute("COMMIT")

            yield lambda: rate(count, work)

    return inserting


def _duckdb_rows(path: Path, count: int, step: int) -> Side:
    @contextmanager
    def inserting() -> Iterator[Round]:
        parts = _parts(made_rows(count), step)
        with closing(duckdb.connect(str(path))) as database:
            database.execute("CREATE TABLE log (id BIGINT, name VARCHAR, amount DOUBLE)")

            def work() -> None:
                for part in parts:
                    database.register("part", pa.Table.from_pylist(part, _SCHEMA))
                    database.execute("INSERT INTO log SELECT * FROM part")

            yield lambda: rate(count, work)
        path.unlink()

    return inserting


def _from_pylist(count: int, step: int) -> Side:
    @contextmanager
    def making() -> Iterator[Round]:
        parts = _parts(made_rows(count), step)

        def work() -> None:
            for part in parts:
                pa.Table.from_pylist(part, _SCHEMA)

        yield lambda: rate(count, work)

    return making


@contextmanager
def _embedded(path: Path) -> Iterator[Call]:
    [row] = made_rows(1)
    with _a_topic(path) as (_, topic):
        yield lambda: topic.append([row])
    shutil.rmtree(path)


@contextmanager
def _remote(path: Path) -> Iterator[Call]:
    [row] = made_rows(1)
    with a_server(path) as address, headrace.connect(address) as log:
        topic = log.create_topic("bench/rows", _SCHEMA)
        yield lambda: topic.append([row])
    shutil.rmtree(path)


@contextmanager
def _sqlite_call(path: Path) -> Iterator[Call]:
    [row] = made_rows(1)
    with _a_sqlite(path) as database:  # without BEGIN, each statement is a transaction
        yield lambda: database.execute("INSERT INTO log VALUES (:id, :name, :amount)", row)


@contextmanager
def _bare_call(path: Path) -> Iterator[Call]:
    block = os.urandom(KIB)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(CALLS * KIB))
        os.fsync(descriptor)

        def call() -> None:
            os.pwrite(descriptor, block, 0)
            os.fdatasync(descriptor)

        yield call
    finally:
        os.close(descriptor)
    path.unlink()


def _scored(opened: Callable[[], AbstractContextManager[Call]], score: Score) -> Side:
    @contextmanager
    def calling() -> Iterator[Round]:
        with opened() as call:
            yield lambda: score(call)

    return calling


def _quantile(share: float, count: int) -> Score:
    """Give calls a second, were each as long as the one that this share is not slower than."""

    def score(call: Call) -> float:
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        return 1 / sorted(seconds)[min(count - 1, int(share * count))]

    return score


def _wall(count: int) -> Score:
    return lambda call: rate(count, lambda: [call() for _ in range(count)])


def _processor(count: int) -> Score:
    """Give calls a second of this process's processor time, in all its threads."""

    def score(call: Call) -> float:
        began = time.process_time()
        for _ in range(count):
            call()
        return count / max(time.process_time() - began, 1e-9)

    return score


@contextmanager
def _a_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        database.execute("CREATE TABLE log (id INTEGER, name TEXT, amount REAL)")
        yield database
    path.unlink()
