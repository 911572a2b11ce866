"""Copied segments are proven by the log's digests, and a lie about them is found. No Spark."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import seal_all
from tests.spark.test_prove import prove
from tests.spark.test_prove_claims import LINEAGE, bring, said

import headrace
from headrace.client.connect.embedded_nodes import home_of
from headrace.errors import Busy
from headrace.model.schema import leaves_without_nan
from headrace.spark.prove import copied_files, table_parts
from headrace.spark.prove.prove import OFFSET, PARTITION
from headrace.spark.tables.table_record import DataFile, LogSource, create
from headrace.spark.worker.statistics import footer_statistics

BATCH = 50  # rows of a segment


@pytest.fixture
def sealed(tmp_path, topic):
    """Three segments in partition 0 and one in partition 1."""
    for start in range(0, 3 * BATCH, BATCH):
        topic.append(rows(start, start + BATCH), partition=0)
        if not start:
            topic.append(rows(1_000, 1_000 + BATCH), partition=1)
        seal_all(tmp_path / "data")
    assert [len(paths) for paths in segments_of(topic).values()] == [3, 1]
    return topic


def segments_of(topic):
    with topic.lease_files() as lease:
        return {one.partition: [Path(f.path) for f in one.files] for one in lease.partitions}


def copies(tmp_path, paths, table="table"):
    """Copy segments beside a table's files, and return what a commit says of them."""
    found = []
    for path in paths:
        name = f"part-copy-{len(list((tmp_path / table).glob('part-*')))}.parquet"
        shutil.copy(path, tmp_path / table / name)
        footer = pq.read_metadata(path)
        columns = footer.schema.to_arrow_schema()
        no_nan = leaves_without_nan(footer.metadata)
        stats = footer_statistics(footer, columns, no_nan, [PARTITION, OFFSET, "id", "name"])
        size = path.stat().st_size
        found.append(DataFile(name, size, footer.num_rows, stats, is_segment=True))
    return found


def record_of(tmp_path, topic):
    source = LogSource.reading("orders", topic)
    return create(str(tmp_path / "table"), source, pa.schema([*LINEAGE, *topic.schema]))


def commit(tmp_path, topic, files, ends=None):
    """Commit files, and record that the table has all rows."""
    record = record_of(tmp_path, topic)
    bounds = {each.partition: each for each in topic.bounds()}
    starts = {number: record.start_of(number, each.first) for number, each in bounds.items()}
    every = {number: each.end for number, each in bounds.items()}
    assert record.commit(files, starts, {**every, **(ends or {})})


def copied(tmp_path, topic, without=()):
    """Fill the table with copies of all segments but some of partition 0."""
    record_of(tmp_path, topic)
    paths = segments_of(topic)
    chosen = [path for place, path in enumerate(paths[0]) if place not in without]
    files = copies(tmp_path, [*chosen, *paths[1]])
    commit(tmp_path, topic, files)
    return [tmp_path / "table" / one.path for one in files]


def add(tmp_path, made):
    """Add a file of rows, as somebody else would."""
    write_deltalake(str(tmp_path / "table"), made, mode="append")


def log_rows(topic, partition, start, end):
    found = topic.read(partition=partition, start={partition: start}, end={partition: end})
    found = found.to_table().drop_columns(["_timestamp"])
    return found.rename_columns([PARTITION, OFFSET, *topic.schema.names])


def kinds(found):
    return {name: found[name] for name in ("missing", "duplicated", "changed", "foreign")}


NOTHING = {"missing": 0, "duplicated": 0, "changed": 0, "foreign": 0}


def test_copies_are_proven_without_decoding(tmp_path, sealed, monkeypatch):
    copied(tmp_path, sealed)
    monkeypatch.setattr(table_parts.TableParts, "rows", None)
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["grade"]) == (0, True, "identity")
    assert found["compared"] == found["compared_by_digest"] == 4 * BATCH
    assert found["in_log"] == found["in_table"] == 4 * BATCH
    text = said(tmp_path).out
    assert "200 in the log = 200 in the table at version 1; 0 missing" in text
    assert "compared by the digests of files: 200 rows" in text


def test_copies_and_rows_are_proven_together(tmp_path, sealed):
    copied(tmp_path, sealed, without=[1])
    add(tmp_path, log_rows(sealed, 0, BATCH, 2 * BATCH))
    sealed.append(rows(500, 530), partition=1)
    bring(tmp_path, sealed)
    code, found = prove(tmp_path)
    assert (code, found["holds"], kinds(found)) == (0, True, NOTHING)
    assert (found["compared"], found["compared_by_digest"]) == (4 * BATCH + 30, 3 * BATCH)


def test_a_copy_that_is_not_there_is_missing(tmp_path, sealed):
    copied(tmp_path, sealed, without=[1])
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": BATCH})
    place = {"partition": 0, "start": BATCH, "end": 2 * BATCH, "note": ""}
    assert found["findings"] == [{"kind": "missing", **place}]
    assert (found["in_log"], found["in_table"]) == (4 * BATCH, 3 * BATCH)


def test_a_copy_that_is_there_twice_is_duplicated(tmp_path, sealed):
    copied(tmp_path, sealed)
    commit(tmp_path, sealed, copies(tmp_path, segments_of(sealed)[0][1:2]))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "duplicated": BATCH})
    place = {"partition": 0, "start": BATCH, "end": 2 * BATCH, "note": ""}
    assert found["findings"] == [{"kind": "duplicated", **place}]
    assert found["in_table"] == 5 * BATCH


def test_rows_that_a_copy_has_too_are_duplicated(tmp_path, sealed):
    copied(tmp_path, sealed)
    add(tmp_path, log_rows(sealed, 0, BATCH - 5, BATCH + 5))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "duplicated": 10})
    place = {"partition": 0, "start": BATCH - 5, "end": BATCH + 5, "note": ""}
    assert found["findings"] == [{"kind": "duplicated", **place}]


def rewrite_file(path, change=lambda table: table, **options):
    """Write a segment anew, with the footer's words about whose rows it has."""
    said = pq.read_metadata(path).metadata
    kept = {key: value for key, value in said.items() if key != b"ARROW:schema"}
    made = change(pq.read_table(path)).replace_schema_metadata(kept)
    pq.write_table(made, path, **options)
    assert copied_files.FooterIdentity.of(pq.read_metadata(path).metadata)


def test_a_changed_copy_is_decoded_and_the_change_is_found(tmp_path, sealed):
    """Its footer is as sealed: only the log's digest tells."""
    paths = copied(tmp_path, sealed)

    def change(table):
        names = pa.array(["other", *table["name"].to_pylist()[1:]], pa.string())
        return table.set_column(table.schema.get_field_index("name"), "name", names)

    rewrite_file(paths[0], change)
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "changed": 1})
    assert found["compared_by_digest"] == 3 * BATCH


def test_a_changed_byte_in_a_copy_is_found(tmp_path, sealed):
    paths = copied(tmp_path, sealed)
    data = bytearray(paths[0].read_bytes())
    column = pq.read_metadata(paths[0]).row_group(0).column(3)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    paths[0].write_bytes(data)
    done = said(tmp_path)
    assert done.code == 6
    assert paths[0].name in done.out + done.err


def test_a_copy_written_anew_is_proven_by_its_rows(tmp_path, sealed):
    """As after a segment was healed or sealed again: the log has another digest."""
    paths = copied(tmp_path, sealed)
    rewrite_file(paths[0], compression="none")
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["grade"]) == (0, True, "identity")
    assert (found["compared"], found["compared_by_digest"]) == (4 * BATCH, 3 * BATCH)


@pytest.fixture
def leased(monkeypatch):
    """Change what the log says of its segments."""

    def change(change_files):
        real = headrace.Topic.lease_files

        def lease_files(self, *given):
            lease = real(self, *given)
            core = lease._core
            core.partitions = tuple(
                change_partition(one, change_files) for one in core.partitions
            )
            return lease

        monkeypatch.setattr(headrace.Topic, "lease_files", lease_files)

    return change


def change_partition(one, change_files):
    return replace(one, files=tuple(change_files(one.files)))


def test_a_node_that_tells_no_digests_has_all_decoded(tmp_path, sealed, leased):
    copied(tmp_path, sealed)
    leased(lambda files: [replace(file, digest=None) for file in files])
    code, found = prove(tmp_path)
    assert (code, found["compared"], found["compared_by_digest"]) == (0, 4 * BATCH, 0)


def test_the_digest_of_another_range_is_not_taken(tmp_path, sealed, leased):
    """The files have digests of the log, and those of each other."""
    copied(tmp_path, sealed)

    def turned(files):
        digests = [file.digest for file in files]
        around = [*digests[1:], digests[0]]
        return [replace(file, digest=one) for file, one in zip(files, around, strict=True)]

    leased(turned)
    code, found = prove(tmp_path)
    assert (code, found["holds"], kinds(found)) == (0, True, NOTHING)
    assert (found["compared"], found["compared_by_digest"]) == (4 * BATCH, BATCH)


def test_all_go_by_rows_if_there_is_no_lease_to_have(tmp_path, sealed, monkeypatch):
    copied(tmp_path, sealed)

    def refused(*_):
        raise Busy("too many leases", 100)

    monkeypatch.setattr(headrace.Topic, "lease_files", refused)
    code, found = prove(tmp_path)
    assert (code, found["compared"], found["compared_by_digest"]) == (0, 4 * BATCH, 0)


def test_all_go_by_rows_where_files_cannot_be_digested(tmp_path, sealed, monkeypatch):
    copied(tmp_path, sealed)
    monkeypatch.setattr(copied_files, "has_file_digest", lambda: False)
    code, found = prove(tmp_path)
    assert (code, found["compared"], found["compared_by_digest"]) == (0, 4 * BATCH, 0)


def test_a_segment_of_another_topic_is_foreign_whatever_its_positions(tmp_path, log, sealed):
    other = log.create_topic("shop/others", SCHEMA, partitions=2)
    other.append(rows(0, BATCH), partition=0)
    seal_all(tmp_path / "data")
    copied(tmp_path, sealed, without=[0])
    commit(tmp_path, sealed, copies(tmp_path, segments_of(other)[0]))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": BATCH, "foreign": BATCH})
    (foreign,) = [one for one in found["findings"] if one["kind"] == "foreign"]
    assert foreign["note"].startswith("50 of another log, topic or life, in part-copy-")
    assert found["compared_by_digest"] == 3 * BATCH
    assert prove(tmp_path, "--own-only")[1]["in_table"] == 3 * BATCH


def test_a_segment_of_an_earlier_life_is_foreign(tmp_path, log, topic):
    topic.append(rows(0, BATCH), partition=0)
    seal_all(tmp_path / "data")
    (old,) = segments_of(topic)[0]
    kept = tmp_path / "old.parquet"
    shutil.copy(old, kept)
    log.delete_topic("shop/orders")
    topic = log.create_topic("shop/orders", SCHEMA, partitions=2)
    topic.append(rows(0, BATCH), partition=0)
    seal_all(tmp_path / "data")
    record_of(tmp_path, topic)
    commit(tmp_path, topic, copies(tmp_path, [*segments_of(topic)[0], kept]))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "foreign": BATCH})
    assert found["compared_by_digest"] == BATCH
    code, found = prove(tmp_path, "--own-only")
    assert (code, found["holds"], found["in_table"]) == (0, True, BATCH)


def test_a_copy_in_which_a_reader_finds_no_positions_is_not_taken(tmp_path, topic, monkeypatch):
    """Of a segment of format 1: its bytes are the log's, but its names are not the table's."""
    topic.append(rows(0, BATCH), partition=0)
    for running in home_of(str(tmp_path / "data")).channel._serving.boot.node.shards.values():
        monkeypatch.setattr(running.driver.pump, "segment_format", lambda: 1)
    seal_all(tmp_path / "data")
    record_of(tmp_path, topic)
    commit(tmp_path, topic, copies(tmp_path, segments_of(topic)[0]))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": BATCH, "foreign": BATCH})
    assert found["compared_by_digest"] == 0


def test_a_copy_outside_of_the_recorded_ranges_is_foreign(tmp_path, sealed):
    record_of(tmp_path, sealed)
    paths = segments_of(sealed)
    files = copies(tmp_path, [*paths[0], *paths[1]])
    commit(tmp_path, sealed, files, ends={0: 2 * BATCH - 10})
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "foreign": BATCH + 10})
    places = [(one["start"], one["end"]) for one in found["findings"]]
    assert sorted(places) == [(2 * BATCH - 10, 2 * BATCH), (2 * BATCH, 3 * BATCH)]
    assert found["compared"] == found["compared_by_digest"] == 3 * BATCH - 10


def test_trimmed_copies_are_not_compared(tmp_path, sealed):
    copied(tmp_path, sealed)
    sealed.trim(BATCH + 10, partition=0)
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["not_compared"]) == (7, False, BATCH + 10)
    assert kinds(found) == NOTHING
    assert (found["compared"], found["in_table"]) == (3 * BATCH - 10, 4 * BATCH)


def test_columns_that_came_later_are_compared(tmp_path, topic):
    topic.append(rows(0, BATCH), partition=0)
    seal_all(tmp_path / "data")
    topic.evolve({**SCHEMA, "price": "float64"})
    topic.append([{"id": 1, "name": "x", "price": 2.5}], partition=0)
    seal_all(tmp_path / "data")
    record_of(tmp_path, topic)
    commit(tmp_path, topic, copies(tmp_path, segments_of(topic)[0]))
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["columns"]) == (0, "identity", ["id", "name", "price"])
    assert found["compared"] == found["compared_by_digest"] == BATCH + 1
    topic.evolve({**SCHEMA, "price": "float64", "note": "string"})
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["columns_absent"]) == (0, "lineage", ["note"])


def test_a_column_of_others_makes_it_no_identity(tmp_path, sealed):
    copied(tmp_path, sealed)
    table = DeltaTable(str(tmp_path / "table"))
    table.alter.add_columns([Field("extra", PrimitiveType("string"))])
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["grade"]) == (0, True, "lineage")
    assert (found["columns_extra"], found["compared_by_digest"]) == (["extra"], 4 * BATCH)
    assert (
        "columns of the table that the topic lacks, not compared: extra" in said(tmp_path).err
    )


def test_a_table_put_back_to_an_older_version_lacks_rows(tmp_path, sealed):
    copied(tmp_path, sealed, without=[2])
    commit(tmp_path, sealed, copies(tmp_path, segments_of(sealed)[0][2:]))
    assert prove(tmp_path)[0] == 0
    DeltaTable(str(tmp_path / "table")).restore(1)
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": BATCH})


def test_rows_of_others_are_counted_beside_copies(tmp_path, sealed):
    copied(tmp_path, sealed)
    extra = {"id": [1, 2], "name": ["x", "y"], PARTITION: [None, 0], OFFSET: [None, 9_999]}
    schema = pa.schema(DeltaTable(str(tmp_path / "table")).schema().to_arrow())
    add(tmp_path, pa.table({name: extra[name] for name in schema.names}, schema=schema))
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "foreign": 2})
    code, found = prove(tmp_path, "--own-only")
    assert (code, found["holds"], found["in_table"]) == (0, True, 4 * BATCH)


def test_a_missing_copy_is_named_by_its_file(tmp_path, sealed):
    paths = copied(tmp_path, sealed)
    paths[0].unlink()
    done = said(tmp_path)
    assert done.code == 6
    assert paths[0].name in done.err
    assert "is missing" in done.err
