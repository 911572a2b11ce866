"""A table whose log is torn is told by the entry, not by a trace. No Spark."""

import pyarrow as pa
import pytest
from tests.cli.commands import headrace_here

from headrace.errors import CorruptFile
from headrace.spark.source.delta_scan import read_table
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_record import LogSource, create, look, pipelines_of

SOURCE = LogSource("orders", "shop/orders", 1, "log")


@pytest.fixture
def table(tmp_path):
    """A table with four entries in its log."""
    path = tmp_path / "table"
    for end in range(1, 4):
        record = create(str(path), SOURCE, pa.schema([("id", pa.int64())]))
        assert record.commit([], {0: end - 1}, {0: end})
    return path


def entry(table, version):
    return table / "_delta_log" / f"{version:020}.json"


@pytest.mark.parametrize("version", [0, 2, 3])
@pytest.mark.parametrize("size", [1, 50, -5])
def test_a_torn_entry_is_named_with_the_next_step(table, version, size):
    torn = entry(table, version)
    torn.write_bytes(torn.read_bytes()[:size])
    for act in (
        lambda: look(str(table), SOURCE),
        lambda: pipelines_of(str(table)),
        lambda: read_table(None, str(table)),
        lambda: orphans_of(str(table)),
    ):
        with pytest.raises(CorruptFile) as caught:
            act()
        assert str(caught.value).startswith(f"{torn}: an entry of the table's log is torn")
        assert caught.value.path == str(torn)
        assert "Restore it from a backup" in caught.value.hint
        assert caught.value.__cause__ is not None
        assert "\n" not in str(caught.value)


def test_an_entry_that_is_gone_is_named(table):
    entry(table, 2).unlink()
    with pytest.raises(CorruptFile) as caught:
        look(str(table), SOURCE)
    assert str(caught.value).startswith(
        f"{entry(table, 2)}: an entry of the table's log is missing"
    )


def test_a_log_without_a_beginning_is_named(table):
    for version in range(4):
        entry(table, version).write_bytes(b"")
    with pytest.raises(CorruptFile) as caught:
        look(str(table), SOURCE)
    said = f"{table / '_delta_log'}: the table's log cannot be read: "
    assert str(caught.value).startswith(said)


def test_prove_names_the_entry_and_shows_no_trace(tmp_path, table, topic):
    torn = entry(table, 3)
    torn.write_bytes(torn.read_bytes()[:50])
    done = headrace_here("prove", "shop/orders", "--table", table, "--data", tmp_path / "data")
    assert done.code == 6
    assert str(torn) in done.err
    assert "Traceback" not in done.err
