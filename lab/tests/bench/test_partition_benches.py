"""The benches of partitions, at a size that only shows that they run."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace_lab.bench.cases import ingest, partitions, replay
from headrace_lab.bench.frame import measure
from headrace_lab.bench.rows import KIB, ROW_SIZE, Rows
from headrace_lab.bench.stores import STORES, storing

TINY = 1 / 1024


def silent(_: str) -> None:
    return


def test_rows_are_of_the_size_they_are_counted_as():
    rows = Rows.of(64 * KIB)
    assert rows[0].num_rows == 64
    assert rows[0].nbytes == pytest.approx(64 * ROW_SIZE, rel=0.01)


def test_rows_compress_by_about_half_as_records_do():
    batch = Rows.of(1024 * KIB)[0]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    assert 0.4 < sink.getvalue().size / batch.nbytes < 0.6


def test_ingest_is_measured_beside_the_disk_and_every_store(tmp_path: Path):
    cases = ingest.cases(tmp_path, TINY)
    results = [measure(case, 1, silent) for case in cases]
    assert [case.floor for case in cases] == [0.6, 1.0, 1.0, 1.0, 0.5]
    for name, result in zip(STORES, results[1:4], strict=True):
        assert name in result.reference
    assert all(result.ours > 0 for result in results)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", STORES)
def test_a_store_keeps_every_batch(tmp_path: Path, name: str):
    side = storing(name, tmp_path, Rows.of(16 * KIB), 5)
    assert side is not None
    with side() as one_round:
        assert one_round() > 0
        assert sum(file.stat().st_size for file in (tmp_path / name).rglob("*")) > 5 * 16 * KIB


def test_partitions_are_measured_from_ten_to_ten_thousand():
    names = [case.name for case in partitions.cases(Path(), 1.0)]
    assert names == [
        "10 partitions",
        "100 partitions",
        "1,000 partitions",
        "10,000 partitions",
    ]


def test_batches_spread_over_partitions_are_all_sealed(tmp_path: Path):
    [first, *_] = partitions.cases(tmp_path, TINY)
    result = measure(first, 1, silent)
    assert result.ours > 0
    assert result.reference_value > 0


def test_replay_is_measured_with_its_memory(tmp_path: Path):
    results = [measure(case, 1, silent) for case in replay.cases(tmp_path, TINY)]
    assert [result.unit for result in results][-2:] == ["journal/memory"] * 2
    assert all(result.ours > 0 for result in results)
    assert list(tmp_path.iterdir()) == []
