"""The benches of partitions, at a size that only shows that they run."""

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import Rejected
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Partition, Placed, Run, Segment, Unplaced
from headrace.partition.shard_store import StoreOptions
from headrace_lab.bench.cases import ingest, partitions, replay
from headrace_lab.bench.frame import measure
from headrace_lab.bench.report import as_json
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


def test_appends_over_partitions_are_measured_in_a_steady_state(tmp_path: Path):
    [case] = partitions.Steady((10,), seconds=0.1).cases(tmp_path, TINY)
    result = measure(case, 2, silent)
    assert result.ours > 0
    assert result.reference_value > 0
    seen = result.figures
    assert 0 < seen["backlog_end"] <= seen["backlog_max"] < 100  # MiB: runs of 8 and a Seal
    assert seen["read"] > 0
    assert seen["one_read"] > 0
    [shown] = as_json("partitions", [result])["cases"]
    assert shown["figures"] == dict(seen)
    assert list(tmp_path.iterdir()) == []


def a_load(path: Path, options: StoreOptions) -> partitions.SteadyShard:
    return partitions.SteadyShard(
        path / "load", partitions.distinct_rows(), 10, 512 * KIB, 0.1, options
    )


def test_a_backlog_that_goes_on_growing_is_refused(tmp_path: Path):
    never = SegmentSizes(size_min=2**40, first_min=2**40, waited_max=2**40)
    load = a_load(tmp_path, StoreOptions(sizes=never))
    with pytest.raises(Rejected, match="over 10 partitions the backlog grows"):
        load.side().__enter__()
    assert len(load.backlogs) == 64


def test_a_backlog_that_grows_between_rounds_is_refused(tmp_path: Path):
    load = a_load(tmp_path, StoreOptions())
    with load.side() as run:
        run()
        load.bound = load.backlogs[-1] // 100
        with pytest.raises(Rejected, match="the backlog grows"):
            run()


def test_a_disk_that_is_too_small_is_named_at_once(tmp_path: Path):
    load = a_load(tmp_path, StoreOptions())
    load.seal_size = 2**60
    with pytest.raises(Rejected, match="a case may take"):
        load.side().__enter__()


def test_what_is_unsealed_is_what_no_segment_file_has():
    run = Run(1, [], size=5)
    waiting = Unplaced(())
    of = {"version": 1, "tip": b"", "first_timestamp": 0, "last_timestamp": 0}
    ids = {"namespace": 0, "created": 1, "first": 0, "end": 1, "first_op": 1, "seal_op": 2}
    placed = Segment(**ids, **of, size=100, place=Placed(b"", b"", 50))
    unplaced = Segment(**ids, **of, size=7, place=waiting)
    partition = Partition(0, 1, 1, ((1, 0),), runs=[run], segments=(placed, unplaced))
    assert partitions.unsealed_size(partition) == 12


@pytest.mark.parametrize(("text", "counts"), [("1,10,100", (10, 100)), ("1000", (1000,))])
def test_numbers_of_partitions_are_read(text, counts):
    assert partitions.counts_in(text) == counts


@pytest.mark.parametrize("text", ["", "1", "0", "ten", "10,-1"])
def test_what_is_no_list_of_numbers_is_refused(text):
    with pytest.raises(Rejected, match="not a list of numbers of partitions"):
        partitions.counts_in(text)


def test_only_partitions_takes_their_options():
    done = CliRunner().invoke(app, ["bench", "disk", "--partitions", "1,10"])
    assert "does not take --partitions" in str(done.exception)


def test_replay_is_measured_with_its_memory(tmp_path: Path):
    results = [measure(case, 1, silent) for case in replay.cases(tmp_path, TINY)]
    assert [result.unit for result in results][-2:] == ["journal/memory"] * 2
    assert all(result.ours > 0 for result in results)
    assert list(tmp_path.iterdir()) == []
