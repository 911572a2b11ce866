"""Spark over a topic, next to Spark over its own files.

The same rows, with all columns, are in a topic and in zstd-Parquet files that Spark wrote from
it; page checksums are verified on both sides. A scan is a streaming query that reads everything
and discards it, timed by Spark's own batch durations. One column of history is a sum, eight
times per round; its table and the frame of the files are created before the clock starts, as a
program keeps them, and summed forty times until Java has compiled most of it. For batches of
1,000 rows it is the median of their triggers. The sink appends rows from Spark's memory, synced
by the node and sealed as usual; Parquet writes them with snappy and syncs nothing.

A pipeline loads a topic into a new Delta table, which it syncs. `write_deltalake` writes the
same rows, with the same columns, from memory, and syncs nothing. Sealed rows through SQL are
compared with Spark itself: the same query over the segments, page checksums verified, written
as zstd-Parquet files, which are neither synced nor a table.

A proof compares a topic with the table that a pipeline filled from it: with the segments that
it copied, and with the same rows that it wrote through SQL.
"""

import secrets
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.client.public import connect
from headrace.errors import Unavailable
from headrace.partition.machine.segment_cut import SEGMENT_SIZES
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Case, Round, rate, scaled
from headrace_lab.bench.rows import ROW_SIZE
from headrace_lab.bench.serving import a_server
from headrace_lab.bench.spark_rows import (
    EVENTS_WITH_A_MAP,
    PARTITIONS,
    RECORDS_OF_1_KIB,
    SEALED,
    TOPIC,
    UNSEALED,
    Shape,
    a_log,
    fill,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from headrace import Topic

_COUNT: Final = 1024  # MiB
_TABLE_COUNT: Final = 512  # MiB: `write_deltalake` has them in memory
_VIEW: Final = "source"  # what a pipeline calls its rows in SQL
_ALL: Final = "select * from source"
_SOME: Final = "select id, amount, _hr_partition, _hr_offset from source where id % 5 = 0"
_SINK_COUNT: Final = 512  # MiB: Spark keeps them in memory
_SUMS: Final = 8  # of a column in a round: one takes a tenth of a second
_WARMING_SUMS: Final = 40  # that do not count: Java compiles what runs often, bit by bit
_BATCH_ROWS: Final = 1_000
_BATCHES: Final = 20  # that count
_WARMING: Final = 3  # that do not
_SEALING_SECONDS: Final = 300.0
_CHECKED: Final = ("parquet.page.verify-checksum.enabled", "true")
_FILES: Final = "Spark's own zstd-Parquet files"


def cases(directory: Path, scale: float) -> list[Case]:
    """Give the scans, the small batches, and the sink."""
    size = scaled(_COUNT, scale) * MIB
    made = [
        _scan(directory, f"the unsealed tail, {shape.name}", shape, size, UNSEALED, floor)
        for shape, floor in ((RECORDS_OF_1_KIB, 1.0), (EVENTS_WITH_A_MAP, 0.8))
    ]
    made.append(_scan(directory, "sealed rows", RECORDS_OF_1_KIB, size, SEALED, 0.6))
    history, batches, sink = (_Shared(directory) for _ in range(3))
    table_size = scaled(_TABLE_COUNT, scale) * MIB
    return [
        *made,
        _table(directory, "a table of unsealed rows", table_size, UNSEALED),
        _table(directory, "the same through SQL", table_size, UNSEALED, _ALL),
        _table(directory, "a table of sealed rows", table_size, SEALED),
        _sealed_sql(directory, "sealed rows through SQL", table_size, _ALL),
        _sealed_sql(directory, "a fifth of them, two columns", table_size, _SOME),
        _proof(directory, table_size),
        Case(
            name="one column of history",
            unit="MiB/s",
            ours=lambda: history.one_column(size),
            reference=_FILES,
            limit=history.one_column_of_files,
            floor=0.9,
        ),
        Case(
            name=f"batches of {_BATCH_ROWS:,} rows",
            unit="batches/s",
            ours=lambda: batches.small_batches(scaled(_BATCHES, scale)),
            reference="Spark's rate source",
            limit=lambda: batches.small_batches_of_rate(scaled(_BATCHES, scale)),
            floor=1 / 1.5,
        ),
        Case(
            name="the sink",
            unit="MiB/s",
            ours=lambda: sink.appending(scaled(_SINK_COUNT, scale) * MIB),
            reference="Spark writing snappy Parquet",
            limit=sink.writing,
            floor=0.6,
        ),
    ]


def _scan(
    directory: Path, name: str, shape: Shape, size: int, settings: tuple[str, ...], floor: float
) -> Case:
    shared = _Shared(directory)
    return Case(
        name=name,
        unit="MiB/s",
        ours=lambda: shared.streaming(shape, size, settings),
        reference=_FILES,
        limit=shared.streaming_files,
        floor=floor,
    )


def _table(
    directory: Path, name: str, size: int, settings: tuple[str, ...], sql: str = ""
) -> Case:
    shared = _Shared(directory)
    return Case(
        name=name,
        unit="MiB/s",
        ours=lambda: shared.loading(size, settings, sql),
        reference="write_deltalake from memory",
        limit=shared.writing_a_table,
    )


def _proof(directory: Path, size: int) -> Case:
    return Case(
        name="a proof of copied segments",
        unit="M rows/s",
        ours=lambda: _Shared(directory).proving(size, ""),
        reference="a proof of the same rows, decoded",
        limit=lambda: _Shared(directory).proving(size, _ALL),
    )


def _sealed_sql(directory: Path, name: str, size: int, sql: str) -> Case:
    shared = _Shared(directory)
    return Case(
        name=name,
        unit="MiB/s",
        ours=lambda: shared.loading(size, SEALED, sql),
        reference="Spark's scan of the segments, and its writer",
        limit=lambda: shared.querying_segments(sql),
        floor=0.7,
    )


class _Shared:
    """The two sides of one case: the second reads the files that the first one made."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"spark-{secrets.token_hex(4)}"
        self._size = 0
        self._row_count = 0  # of the topic, and of the files that were written of it
        self._frame: DataFrame | None = None
        self._rows: pa.Table | None = None
        self._address = ""

    @property
    def _files(self) -> str:
        return str(self._path / "parquet")

    @contextmanager
    def _place(self) -> Iterator[Path]:
        self._path.mkdir()
        try:
            yield self._path / "node"
        finally:
            shutil.rmtree(self._path, ignore_errors=True)

    @contextmanager
    def _log(self, shape: Shape, size: int, settings: tuple[str, ...]) -> Iterator[str]:
        self._size = size
        with self._place() as node, a_log(node, shape, size, *settings) as address:
            if settings == SEALED:
                _wait_until_sealed(address)
            with connect(address) as log:
                self._row_count = sum(each.row_count for each in log.topic(TOPIC).bounds())
            rows = _spark().read.format("headrace")
            rows = rows.option("topic", TOPIC).option("address", address)
            rows.load().write.option("compression", "zstd").parquet(self._files)
            yield address

    @contextmanager
    def streaming(self, shape: Shape, size: int, settings: tuple[str, ...]) -> Iterator[Round]:
        with self._log(shape, size, settings) as address:
            stream = _spark().readStream.format("headrace")
            yield lambda: self._drained(
                stream.option("topic", TOPIC).option("address", address)
            )

    @contextmanager
    def streaming_files(self) -> Iterator[Round]:
        columns = _spark().read.parquet(self._files).schema
        stream = _spark().readStream.format("parquet").schema(columns)
        yield lambda: self._drained(stream.option(*_CHECKED).option("path", self._files))

    def _drained(self, stream: "DataStreamReader") -> float:
        """Take all there is, and give it to nobody. Unavailable: a row was left out."""
        place = self._path / f"checkpoint-{secrets.token_hex(4)}"
        query = stream.load().writeStream.format("noop").trigger(availableNow=True)
        running = query.option("checkpointLocation", str(place)).start()
        running.awaitTermination()
        done = _with_rows(running)
        read = sum(one["numInputRows"] for one in done)
        if read != self._row_count:
            raise Unavailable(
                f"a scan of the bench read {read:,} rows, not the {self._row_count:,} that are "
                "there"
            )
        took = float(sum(one["durationMs"]["addBatch"] for one in done))
        shutil.rmtree(place, ignore_errors=True)
        return self._size / MIB / took * 1_000

    @contextmanager
    def one_column(self, size: int) -> Iterator[Round]:
        from headrace.spark import release, table

        with self._log(RECORDS_OF_1_KIB, size, SEALED) as address:
            rows = table(_spark(), TOPIC, address=address)
            self._summed(rows, _WARMING_SUMS)
            yield lambda: self._summed(rows)
            release(rows)

    @contextmanager
    def one_column_of_files(self) -> Iterator[Round]:
        rows = _spark().read.option(*_CHECKED).parquet(self._files)
        self._summed(rows, _WARMING_SUMS)
        yield lambda: self._summed(rows)

    def _summed(self, rows: "DataFrame", count: int = _SUMS) -> float:
        def sums() -> None:
            for _ in range(count):
                rows.agg({"amount": "sum"}).collect()

        return rate(count * self._size / MIB, sums)

    @contextmanager
    def small_batches(self, count: int) -> Iterator[Round]:
        size = (count + _WARMING) * _BATCH_ROWS * ROW_SIZE
        with self._place() as node, a_log(node, RECORDS_OF_1_KIB, size, *UNSEALED) as address:
            stream = _spark().readStream.format("headrace")
            stream = stream.option("topic", TOPIC).option("address", address)
            stream = stream.option("maxOffsetsPerTrigger", _BATCH_ROWS)
            yield lambda: self._triggered(stream, count, availableNow=True)

    @contextmanager
    def small_batches_of_rate(self, count: int) -> Iterator[Round]:
        stream = _spark().readStream.format("rate-micro-batch")
        stream = stream.option("rowsPerBatch", _BATCH_ROWS)
        stream = stream.option("numPartitions", PARTITIONS)
        yield lambda: self._triggered(stream, count, processingTime="0 seconds")

    def _triggered(self, stream: "DataStreamReader", count: int, **trigger: Any) -> float:  # noqa: ANN401
        """Run until `count` batches are done; batches a second, by their median."""
        place = self._path / f"checkpoint-{secrets.token_hex(4)}"
        query = stream.load().writeStream.format("noop").trigger(**trigger)
        running = query.option("checkpointLocation", str(place)).start()
        while len(done := _with_rows(running)) < count + _WARMING and running.isActive:
            time.sleep(0.05)
        running.stop()
        took = [float(one["durationMs"]["triggerExecution"]) for one in done[_WARMING:]]
        shutil.rmtree(place, ignore_errors=True)
        return 1_000 / statistics.median(took)

    @contextmanager
    def loading(self, size: int, settings: tuple[str, ...], sql: str) -> Iterator[Round]:
        from headrace.spark.pipeline.definition import define
        from headrace.spark.pipeline.pipeline import opened

        self._size = size
        with self._place() as node, a_log(node, RECORDS_OF_1_KIB, size, *settings) as address:
            if settings == SEALED:
                _wait_until_sealed(address)
            with connect(address) as log:
                rows = log.topic(TOPIC).read().to_table().drop_columns(["_timestamp"])
            self._rows, self._row_count = rows, _row_count(rows, sql)
            self._address = address

            def one_round() -> float:
                name = f"bench-{secrets.token_hex(4)}"
                given = {"name": name, "topic": TOPIC, "address": address, "table": name}
                with opened(_spark(), define({**given, "sql": sql}, self._path)) as pipeline:
                    found = rate(self._size / MIB, lambda: list(pipeline.run(once=True)))
                self._refuse_other(self._path / name)
                return found

            yield one_round
            self._rows = None

    @contextmanager
    def writing_a_table(self) -> Iterator[Round]:
        from deltalake import write_deltalake

        rows = self._rows
        assert rows is not None

        def one_round() -> float:
            path = self._path / f"plain-{secrets.token_hex(4)}"
            found = rate(self._size / MIB, lambda: write_deltalake(str(path), rows))
            self._refuse_other(path)
            return found

        yield one_round

    @contextmanager
    def querying_segments(self, sql: str) -> Iterator[Round]:
        with connect(self._address) as log, log.topic(TOPIC).lease_files() as lease:
            files = [file.path for each in lease.partitions for file in each.files]

            def query() -> None:
                rows = _spark().read.option(*_CHECKED).parquet(*files)
                rows.createOrReplaceTempView(_VIEW)
                found = _spark().sql(sql).write.option("compression", "zstd")
                found.mode("overwrite").parquet(self._files)

            yield lambda: rate(self._size / MIB, query)
            _spark().catalog.dropTempView(_VIEW)

    def _refuse_other(self, path: Path) -> None:
        """Check the row count of a table that a round wrote, and remove it."""
        from deltalake import DeltaTable

        actions = DeltaTable(str(path)).get_add_actions(flatten=True)
        row_count = sum(pa.table(actions)["num_records"].to_pylist())
        if row_count != self._row_count:
            raise Unavailable(f"{path} has {row_count:,} rows, expected {self._row_count:,}")
        shutil.rmtree(path)

    @contextmanager
    def proving(self, size: int, sql: str) -> Iterator[Round]:
        from headrace.spark.pipeline.definition import define
        from headrace.spark.pipeline.pipeline import opened

        with self._place() as node, a_log(node, RECORDS_OF_1_KIB, size, *SEALED) as address:
            _wait_until_sealed(address)
            given = {"name": "bench", "topic": TOPIC, "address": address, "table": "table"}
            given |= {"sql": sql} if sql else {"tail": "sealed"}
            with opened(_spark(), define(given, self._path)) as pipeline:
                list(pipeline.run(once=True))
            with connect(address) as log:
                yield lambda: _proven(log.topic(TOPIC), str(self._path / "table"), sql)

    @contextmanager
    def appending(self, size: int) -> Iterator[Round]:
        spark, self._size = _spark(), size
        with self._place() as node, a_server(node) as address:
            fill(address, RECORDS_OF_1_KIB, size)
            rows = spark.read.format("headrace").option("topic", TOPIC)
            columns = RECORDS_OF_1_KIB.schema.names
            frame = rows.option("address", address).load().select(*columns).cache()
            frame.count()
            self._frame = frame

            def one_round() -> float:
                name = f"bench/{secrets.token_hex(4)}"
                with connect(address) as log:
                    log.create_topic(name, RECORDS_OF_1_KIB.schema, partitions=PARTITIONS)
                sink = frame.write.format("headrace").mode("append")
                sink = sink.option("topic", name).option("address", address)
                return rate(self._size / MIB, sink.save)

            yield one_round
            frame.unpersist()

    @contextmanager
    def writing(self) -> Iterator[Round]:
        frame = self._frame
        assert frame is not None

        def one_round() -> float:
            files = frame.write.option("compression", "snappy").mode("overwrite")
            return rate(self._size / MIB, lambda: files.parquet(self._files))

        yield one_round


def _proven(topic: "Topic", table: str, sql: str) -> float:
    """Prove a table; millions of rows a second. Unavailable: not as the case says."""
    from headrace.spark.prove.prove import prove
    from headrace.spark.tables.table_record import LogSource, look

    started = time.perf_counter()
    *_, proof = prove(topic, look(table, LogSource.reading("bench", topic)))
    took = time.perf_counter() - started
    by_digest = 0 if sql else proof.compared
    if not proof.holds or proof.by_digest != by_digest:
        raise Unavailable(
            f"{proof.by_digest:,} of {proof.compared:,} rows were proven by digests, "
            f"expected {by_digest:,}"
        )
    return proof.compared / took / 1e6


def _spark() -> "SparkSession":
    from headrace.spark import session

    return session("headrace bench", spark__driver__memory="4g", spark__log__level="OFF")


def _row_count(rows: pa.Table, sql: str) -> int:
    """Return how many rows a query of the bench leaves."""
    return sum(one % 5 == 0 for one in rows["id"].to_pylist()) if sql == _SOME else len(rows)


def _with_rows(query: "StreamingQuery") -> list[Any]:
    """Return what Spark says of the batches that had rows."""
    failed = query.exception()
    if failed is not None:
        raise Unavailable(f"a query of the bench ended: {failed}")
    return [one for one in query.recentProgress if one["numInputRows"]]


def _wait_until_sealed(address: str) -> None:
    """Wait until all but what is too small for a segment is in one."""
    end = time.monotonic() + _SEALING_SECONDS
    with connect(address) as log:
        topic = log.topic(TOPIC)
        while True:
            with topic.lease_files() as lease:
                rest = max(one.end - one.sealed_end for one in lease.partitions)
            if rest * ROW_SIZE <= SEGMENT_SIZES.size_min:
                return
            if time.monotonic() > end:
                raise Unavailable(f"{rest:,} rows of a partition are not sealed")
            time.sleep(0.5)
