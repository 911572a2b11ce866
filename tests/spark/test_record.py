"""What a table says, and what is told when it does not take a commit. No Spark."""

import pyarrow as pa
import pytest

from headrace.spark.orphans import orphans_of
from headrace.spark.record import DataFile, Source, TableForeign, create
from headrace.spark.worker.files import write_file

SCHEMA = pa.schema([("id", pa.int64())])
SOURCE = Source("p", "shop/orders", 1, "log")


def a_file(table, number=0):
    return DataFile(*write_file(table, SCHEMA, [pa.table({"id": [number]})]))


def test_files_of_other_writers_are_never_orphans(tmp_path):
    table = tmp_path / "table"
    create(str(table), SOURCE, SCHEMA)
    ours = a_file(table)
    others = [
        "part-00000-3f2c1d84-9a0b-4c5d-8e6f-0123456789ab-c000.snappy.parquet",
        "part-00001-3f2c1d84-9a0b-4c5d-8e6f-0123456789ab-c000.zstd.parquet",
        "part-mine.parquet",
        f"part-{'0' * 31}.parquet",
        f"part-{'0' * 32}.parquet.crc",
    ]
    for name in others:
        (table / name).write_bytes(b"of somebody else")
    assert [path.name for path in orphans_of(str(table), 0)] == [ours.path]


class TestCreate:
    """A new table is made where nothing is, and nowhere else."""

    def test_a_directory_with_files_and_no_delta_log_is_refused(self, tmp_path):
        inner = tmp_path / "year=2024"
        inner.mkdir()
        (inner / "part-0.parquet").write_bytes(b"of somebody else")
        with pytest.raises(TableForeign) as caught:
            create(str(tmp_path), SOURCE, SCHEMA)
        said = f"{tmp_path} is no Delta table, and holds year=2024/part-0.parquet"
        assert str(caught.value).startswith(said)
        assert "Name a directory that is empty, or is not there" in caught.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["year=2024"]

    def test_what_a_driver_left_that_died_while_it_made_the_table_is_no_hindrance(
        self, tmp_path
    ):
        (tmp_path / "_delta_log").mkdir()
        (tmp_path / "_delta_log" / "_commit_1.json.tmp").write_bytes(b"")
        (tmp_path / ".hidden").write_bytes(b"")
        (tmp_path / "lost+found").mkdir()
        assert create(str(tmp_path), SOURCE, SCHEMA).count == 0

    def test_a_table_that_is_there_is_taken_whatever_lies_beside_it(self, tmp_path):
        create(str(tmp_path), SOURCE, SCHEMA)
        (tmp_path / "notes.txt").write_bytes(b"of somebody else")
        assert create(str(tmp_path), SOURCE, SCHEMA).count == 0
