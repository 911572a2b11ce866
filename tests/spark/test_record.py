"""What a table says, and what is told when it does not take a commit. No Spark."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures

from headrace.spark.orphans import orphans_of
from headrace.spark.record import (
    CommitRefused,
    DataFile,
    Place,
    Source,
    TableForeign,
    create,
    look,
)
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


class TestCommit:
    """A commit that is lost to another is repeated; one that is refused is not."""

    @pytest.mark.parametrize("feature", ["RowTracking", "IdentityColumns"])
    def test_a_feature_that_deltalake_does_not_write_is_named_and_is_no_lost_race(
        self, tmp_path, feature
    ):
        record = create(str(tmp_path), SOURCE, SCHEMA)
        DeltaTable(str(tmp_path)).alter.add_feature(
            getattr(TableFeatures, feature), allow_protocol_versions_increase=True
        )
        assert not record.commit([], {0: 0}, {0: 1})  # the feature came in between
        record = look(str(tmp_path), SOURCE)
        more = pa.schema([("more", pa.int64())])
        place = Place({0: 0}, {0: 1}, {})
        for act in (
            lambda: record.commit([a_file(tmp_path)], {0: 0}, {0: 1}),
            lambda: record.widen(more),
            lambda: record.restart([], [], place),
        ):
            with pytest.raises(CommitRefused) as caught:
                act()
            said = f"the table at {tmp_path} takes no commit: "
            assert str(caught.value).startswith(said)
            assert f"Unsupported table features required: [{feature}]" in str(caught.value)
            assert "bring the rows into a new table" in caught.value.hint
        assert look(str(tmp_path), SOURCE).number == 0

    def test_who_was_slower_has_lost_and_is_told_no_more(self, tmp_path):
        one, other = (create(str(tmp_path), SOURCE, SCHEMA) for _ in range(2))
        assert one.commit([a_file(tmp_path)], {0: 0}, {0: 1})
        assert not other.commit([a_file(tmp_path)], {0: 0}, {0: 1})
        assert look(str(tmp_path), SOURCE).ends == {0: 1}
