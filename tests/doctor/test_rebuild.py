"""A shard without any snapshot is rebuilt from its files: every readable row, each once.

What only the snapshots knew is said. The log is `long_log`; its journal begins late.
"""

import shutil

import pyarrow.parquet as pq
import pytest
from tests.doctor import harm, logs, long_log
from tests.doctor.long_log import AGAIN, ROWS, SHARD, SLOW, ids

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.findings.ownership import who_is
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.salvage.salvage import salvage
from headrace.journal.entry import seal
from headrace.journal.frame import PREFIX_SIZE
from headrace.model.ids import GroupId, Op, View
from headrace.model.proposal import EntryProposal
from headrace.partition.machine.operations import APPEND
from headrace.partition.shard_store import open_store
from headrace.storage.file import FileDirectory

pytestmark = pytest.mark.campaign(7, of="rebuild")

STAGED = range(21, 27)  # in a/slow: published by an op that is drained, and nothing tells it
_STAGED_COUNT = 6  # rows that a transaction on a/rows has in each partition
_METADATA = "groups/00000"
_ID_LEAF = 3  # behind the system's columns


@pytest.fixture(scope="module")
def long_logs(tmp_path_factory):
    room = tmp_path_factory.mktemp("long")
    done = long_log.fill(room / "stopped", room / "killed")
    done[SLOW, 0] = [one for one in done[SLOW, 0] if one not in STAGED]
    return room, done


@pytest.fixture(params=["stopped", "killed"])
def data(long_logs, tmp_path, request):
    return logs.copy_of(long_logs[0] / request.param, tmp_path / "data")


@pytest.fixture
def lasting(long_logs, tmp_path):
    return logs.copy_of(long_logs[0] / "killed", tmp_path / "data")


@pytest.fixture
def done(long_logs):
    return dict(long_logs[1])


def forget(log) -> None:
    """Take all snapshots away."""
    shutil.rmtree(log / SHARD / "snapshots")
    (log / SHARD / "snapshots").mkdir()


def rot_snapshots(log) -> None:
    for path in (log / SHARD / "snapshots").iterdir():
        harm.flip(path, path.stat().st_size // 2)


def bytes_of(log) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in log.rglob("*") if path.is_file()}


def rebuilt(log, tmp_path):
    """Salvage, and see that the source stays as it is and the new log is healthy."""
    before = bytes_of(log)
    account = salvage(str(log), str(tmp_path / "new"))
    assert bytes_of(log) == before
    assert not account.is_whole
    assert examine(str(tmp_path / "new"), deep=True).findings == []
    return account, ids(tmp_path / "new")


@pytest.mark.parametrize("harming", [forget, rot_snapshots], ids=["gone", "rotten"])
def test_every_readable_row_comes_back_once_and_in_order(data, tmp_path, done, harming):
    harming(data)
    account, found = rebuilt(data, tmp_path)
    assert found == done
    assert not account.missing_rows
    assert not any("place or schema" in said for said in account.lost)


def test_the_account_says_what_was_read_where_and_what_is_in_doubt(lasting, tmp_path):
    forget(lasting)
    account, _ = rebuilt(lasting, tmp_path)
    first = next(one for one in account.partitions if (one.topic, one.partition) == (ROWS, 0))
    assert first.rebuilt
    assert set(first.homes) == {"segments", "carry", "journal"}
    assert sum(first.homes.values()) == first.rows
    sealed = first.ranges[0]
    assert (sealed.exact, sealed.old_end) == (True, first.homes["segments"])
    assert first.unsure_from == sealed.old_end
    assert any("cursors stored before op" in said for said in account.notes)
    assert any("trimmed, or purged before op" in said for said in account.notes)


def test_a_trim_takes_no_row_whose_offset_is_not_known(lasting, tmp_path, done):
    """Without segments, carried rows are counted from 0, and are those of higher offsets."""
    with headrace.open(lasting, **long_log.SETTINGS) as log:
        log.topic(ROWS).trim(before={0: 40, 1: 40})
    forget(lasting)
    sealed = [(partition, end) for _, partition, _, end in harm.segments(lasting)]
    shutil.rmtree(lasting / SHARD / "segments")
    _, found = rebuilt(lasting, tmp_path)
    for partition, end in sealed:
        rest = [one for one in done[ROWS, partition] if one >= end]
        gone = set(rest) - set(found[ROWS, partition])
        assert len(gone) <= _STAGED_COUNT  # of which nothing tells without the segments


def test_a_trim_that_a_lost_cursor_may_have_held_takes_no_row(lasting, tmp_path, done):
    with headrace.open(lasting, **long_log.SETTINGS) as log:
        log.topic(ROWS).trim(before={0: 40, 1: 40})
    forget(lasting)
    _, found = rebuilt(lasting, tmp_path)
    assert found == done


def test_what_the_journal_purges_stays_away(lasting, tmp_path):
    with headrace.open(lasting, **long_log.SETTINGS) as log:
        log.topic(ROWS).purge(0)
    forget(lasting)
    _, found = rebuilt(lasting, tmp_path)
    assert found[ROWS, 0] == []


def test_cursors_are_moved_left_out_or_in_doubt_and_it_is_said(lasting, tmp_path, done):
    """The journal has that of `readers`; that of `ends` is at an end which is not known."""
    with headrace.open(lasting, **long_log.SETTINGS) as log:
        end = len(done[SLOW, 0]) + len(STAGED)
        log.topic(SLOW).store_cursors("ends", {0: end})
    forget(lasting)
    account, _ = rebuilt(lasting, tmp_path)
    slow = next(one for one in account.partitions if one.topic == SLOW)
    assert [(each.group, each.new_next) for each in slow.cursors] == [("readers", 3)]
    assert any("read, because old offsets" in one and "readers" in one for one in account.notes)
    assert any("left out" in one and "groups ends" in one for one in account.notes)


def test_staged_rows_of_which_nothing_tells_stay_out_and_are_counted(lasting, tmp_path):
    forget(lasting)
    account, found = rebuilt(lasting, tmp_path)
    assert long_log.OPEN not in found[SLOW, 0]
    rows = len(STAGED) + 3  # and those of the transaction that was never published
    assert any(f"{rows} rows staged in transactions on {SLOW}" in one for one in account.lost)


def test_a_transaction_is_published_where_a_segment_has_rows_of_it(lasting, tmp_path, done):
    """Its rows in partition 1 are sealed, those in partition 0 are in a carry file alone."""
    forget(lasting)
    _, found = rebuilt(lasting, tmp_path)
    assert found[ROWS, 0] == done[ROWS, 0]
    shutil.rmtree(tmp_path / "new")
    for path in sorted((lasting / SHARD / "segments").iterdir())[1:]:
        path.unlink()
    account, found = rebuilt(lasting, tmp_path)
    assert len(found[ROWS, 0]) == len(done[ROWS, 0]) - 6
    assert any(f"staged in transactions on {ROWS}" in said for said in account.lost)


def test_no_row_of_a_deleted_topic_comes_into_the_one_made_anew(lasting, tmp_path, done):
    forget(lasting)
    account, found = rebuilt(lasting, tmp_path)
    assert not account.missing_rows
    assert found[AGAIN, 0] == done[AGAIN, 0]
    assert long_log.OLD_LIFE not in found[AGAIN, 0]


def test_a_journal_is_enough_for_what_it_has(lasting, tmp_path, done):
    forget(lasting)
    for room in ("segments", "carry"):
        shutil.rmtree(lasting / SHARD / room)
    _, found = rebuilt(lasting, tmp_path)
    for key, own in done.items():
        assert found[key] == own[len(own) - len(found[key]) :]
        assert found[key]


def test_carry_files_are_enough_for_what_they_have(lasting, tmp_path, done):
    forget(lasting)
    for room in ("segments", "journal"):
        shutil.rmtree(lasting / SHARD / room)
    _, found = rebuilt(lasting, tmp_path)
    assert found[SLOW, 0] == done[SLOW, 0][: len(found[SLOW, 0])]
    assert len(found[SLOW, 0]) >= 26
    for partition in (0, 1):
        rows = found[ROWS, partition]
        assert rows == sorted(set(rows))
        assert set(rows) <= set(done[ROWS, partition])


def test_segments_are_enough_for_what_they_have(lasting, tmp_path, done):
    forget(lasting)
    for room in ("carry", "journal"):
        shutil.rmtree(lasting / SHARD / room)
    account, found = rebuilt(lasting, tmp_path)
    for _, partition, first, end in harm.segments(lasting):
        assert found[ROWS, partition] == done[ROWS, partition][first:end]
    assert all(each.exact for one in account.partitions for each in one.ranges)


def test_a_rotten_segment_costs_its_own_rows_alone(lasting, tmp_path, done):
    forget(lasting)
    path, partition, first, end = harm.segments(lasting)[0]
    column = pq.read_metadata(path).row_group(0).column(_ID_LEAF)
    harm.flip(path, column.data_page_offset + column.total_compressed_size // 2)
    account, found = rebuilt(lasting, tmp_path)
    assert found[ROWS, partition] == done[ROWS, partition][end:]
    assert found[ROWS, 1 - partition] == done[ROWS, 1 - partition]
    (gone,) = [each for one in account.partitions for each in one.missing]
    assert (gone.start, gone.end) == (first, end)
    assert gone.why.startswith("segment: ")


def test_a_rotten_journal_entry_is_read_from_the_carry_file(lasting, tmp_path, done):
    forget(lasting)
    carried = {op for _, file in harm.carries(lasting) for op in file.ops}
    hit = next(one for one in harm.frames(lasting / SHARD) if one.header.op in carried)
    harm.flip(hit.file, hit.position + PREFIX_SIZE + 300)
    _, found = rebuilt(lasting, tmp_path)
    assert found == done


def send_again(log, header) -> None:
    """Let the log take an append a second time, as a producer sends it after a timeout."""
    cluster = who_is(ReadonlyDirectory.of(str(log))).cluster
    assert cluster is not None
    room = FileDirectory.open_root(str(log / SHARD), create=False)
    store = open_store(room, cluster.of(GroupId(1)))
    original = next(
        file.read(header.op) for _, file in harm.carries(log) if header.op in file.ops
    )
    journal = store.group.journal
    entry = seal(
        journal.identity,
        EntryProposal(
            APPEND,
            original.body,
            writer=header.writer,
            version=header.version,
            namespace=header.namespace,
            created=header.created,
            schema_id=header.schema_id,
            row_count=header.row_count,
        ),
        op=Op(journal.durable + 1),
        parent=journal.tip,
        view=View(0),
        timestamp=header.timestamp + 10**9,
    )
    store.group.append([entry])
    assert store.group.apply(entry).repeated
    store.close()
    room.close()


def test_an_append_that_was_sent_again_is_there_once(lasting, tmp_path, done):
    """The journal has the repeat, and a carry file the first copy."""
    journaled = {one.header.op for one in harm.frames(lasting / SHARD)}
    header = next(
        found.header
        for _, file in reversed(harm.carries(lasting))
        for op in reversed(file.ops)
        if op not in journaled and (found := file.read(op)).header.operation == APPEND
    )
    send_again(lasting, header)
    forget(lasting)
    _, found = rebuilt(lasting, tmp_path)
    assert found == done


def test_a_group_of_which_only_segments_and_carry_files_are_left_is_said_so(
    lasting, tmp_path, done
):
    for name in ("journal", "snapshots"):
        shutil.rmtree(lasting / SHARD / name)
    for name in ("superblock.a", "superblock.b"):
        (lasting / SHARD / name).unlink()
    (one,) = examine(str(lasting)).damage
    assert (one.kind, one.file) == ("group-gone", SHARD)
    assert "only segments and carry files are left" in one.what
    account, found = rebuilt(lasting, tmp_path)
    assert not any("every row" in said for said in account.lost)
    for key, own in found.items():
        assert own == done[key][: len(own)]
        assert own


def test_a_segment_under_another_name_is_known_by_its_footer(lasting, tmp_path, done):
    forget(lasting)
    path, *_ = harm.segments(lasting)[0]
    path.rename(path.with_name("1".rjust(16, "0") + "-7-" + path.name.split("-", 2)[2]))
    _, found = rebuilt(lasting, tmp_path)
    assert found[ROWS, 0] != done[ROWS, 0]  # same offsets, another partition: which is right?
    shutil.rmtree(tmp_path / "new")
    renamed = next(one for one in (lasting / SHARD / "segments").iterdir() if "-7-" in one.name)
    renamed.rename(lasting / SHARD / "quarantine" / "set-aside.parquet")
    _, found = rebuilt(lasting, tmp_path)
    assert found == done


def test_a_schema_that_came_in_the_journal_is_in_force_from_there_on(lasting, tmp_path, done):
    with headrace.open(lasting, **{**long_log.SETTINGS, "seal__size": "64KiB"}) as log:
        topic = log.topic(SLOW)
        topic.evolve({"id": "int64", "text": "string"})
        done[SLOW, 0] = [*done[SLOW, 0], *range(100, 220)]
        for first in range(100, 220, 10):
            topic.append([{"id": first + n, "text": "x" * 3_000} for n in range(10)])
    forget(lasting)
    _, found = rebuilt(lasting, tmp_path)
    assert found == done
    with headrace.open(tmp_path / "new", **long_log.SETTINGS) as log:
        assert list(log.topic(SLOW).schemas) == [1, 2]


def test_without_metadata_the_rows_of_segments_still_come(lasting, tmp_path, done):
    forget(lasting)
    (lasting / "metadata.copy").unlink()
    for path in (lasting / _METADATA / "journal").glob("*.wal"):
        path.write_bytes(b"")
    account, found = rebuilt(lasting, tmp_path)
    sealed = {len(own) for key, own in found.items() if key[0].startswith("salvaged/")}
    assert {len(done[ROWS, 0]), len(done[ROWS, 1])} <= sealed
    assert any("whose place or schema is unknown" in said for said in account.lost)


def test_the_doctor_calls_no_file_superfluous_when_no_snapshot_is_left(lasting):
    forget(lasting)
    found = examine(str(lasting))
    assert {one.kind for one in found.damage} == {"snapshot-gone"}
    assert not [one for one in found.notes if one.kind == "unnamed"]
