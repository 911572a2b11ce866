"""The benches of a node, at a size that only shows that they run."""

from pathlib import Path

from typer.testing import CliRunner

from headrace.cli.main import app
from headrace_lab.bench import remote
from headrace_lab.bench.cases import fetch, sealed, small_rows
from headrace_lab.bench.cases import open as opening
from headrace_lab.bench.frame import measure
from headrace_lab.bench.serving import ProducerLoad, a_server, producers

TINY = 1 / 128


def silent(_: str) -> None:
    return


def test_appends_over_tcp_are_measured_beside_the_disk(tmp_path: Path):
    large, medium, single, lone = remote.cases(tmp_path, TINY)
    assert (large.floor, medium.floor, single.floor, lone.floor) == (0.7, 0.4, None, 1.0)
    assert measure(large, 1, silent).ours > 0
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_runs_already_is_used_and_left_running(tmp_path: Path):
    load = ProducerLoad(2, 1024, 1, 20)
    with a_server(tmp_path / "node") as address:
        for _ in range(2):
            with producers(address, load) as running:
                assert running.send_all() > 0


def test_the_tail_is_read_beside_a_bare_copy(tmp_path: Path):
    large, small = fetch.cases(tmp_path, TINY)
    assert (large.floor, small.floor) == (0.5, None)
    result = measure(large, 1, silent)
    assert result.ours > 0
    assert result.reference_value > 0


def test_opening_is_measured_after_a_stop_and_after_a_kill(tmp_path: Path):
    clean, killed = opening.cases(tmp_path, TINY)
    assert (clean.floor, killed.floor) == (1.0, 1.0)
    assert measure(killed, 1, silent).reference_value == 1 / 3
    assert measure(clean, 1, silent).reference_value == 1.0
    assert list(tmp_path.iterdir()) == []


def test_small_rows_are_measured_beside_what_users_would_take_instead(tmp_path: Path):
    cases = {case.name: case for case in small_rows.cases(tmp_path, TINY)}
    assert len(cases) == 19
    sample = [each for each in cases if each.startswith(("send", "append"))]
    sample += ["one row, embedded, p50 / SQLite", "one row, socket, processor / fdatasync"]
    for name in sample:
        result = measure(cases[name], 1, silent)
        assert result.ours > 0
        assert result.reference_value > 0
    assert list(tmp_path.iterdir()) == []


def test_sealed_rows_are_measured_as_rows_and_as_files(tmp_path: Path):
    for case in sealed.cases(tmp_path, TINY):
        result = measure(case, 1, silent)
        assert result.ours > 0
        assert result.reference_value > 0
        assert set(result.figures) == {"seconds, sealed", "seconds, unsealed"}
    assert list(tmp_path.iterdir()) == []


def test_only_ingest_takes_an_address():
    done = CliRunner().invoke(app, ["bench", "disk", "--address", "local"])
    assert "does not take --address" in str(done.exception)
