"""A damaged segment gives only rows that are proven, whichever byte of it is turned over."""

import json
import re
import urllib.request
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import headrace_here
from tests.client.doors import RunningNode
from tests.doctor import harm
from tests.doctor.logs import CLICKS
from tests.node.test_segment_format import as_at_level
from tests.spark.sealing import seal_all

import headrace
from headrace.cli.terminal.exits import Exit
from headrace.doctor.anatomy.segment_anatomy import segment_anatomy
from headrace.doctor.look.orphan_segment import LoneTask, check_lone
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.segments import SegmentTask, check_segment, rows_in
from headrace.errors import CorruptEntry, CorruptSegment
from headrace.model.ids import GroupId, Identity, Offset, Op, ReplicaId
from headrace.model.schema import canonical, encode_schema
from headrace.partition.segments import segment_writer
from headrace.partition.segments.entry_rows import EntryPlace, placed
from headrace.partition.segments.segment import SegmentInfo
from headrace.partition.segments.segment_writer import write_segment
from headrace.storage.file import FileDirectory

SCHEMA = canonical(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
GROUP = 65_536  # rows of a row group


def a_segment(path, count, ids=None, form=2):
    """Write a segment of two row groups; return its task and its rows."""
    rows = pa.record_batch(
        [
            pa.array(range(count) if ids is None else ids, pa.int64()),
            pa.array([["a", str(n % 7)] if n % 3 else None for n in range(count)]),
        ],
        schema=SCHEMA,
    )
    info = SegmentInfo(b"c" * 16, 1, 7, 1, Offset(0), Offset(count), Op(1), Op(9), b"t" * 16, 1)
    whole = placed(rows, EntryPlace(0, Offset(0), 1_000))
    room = FileDirectory.open_root(str(path), create=False)
    with room.create(info.name) as file:
        digests = write_segment(file, info, SCHEMA, [whole], form)
    return SegmentTask(str(path), info.name, info, digests, encode_schema(SCHEMA)), whole


@pytest.mark.parametrize("form", [1, 2])
def test_whatever_byte_rots_no_wrong_row_is_taken(tmp_path, form):
    task, whole = a_segment(tmp_path, GROUP + 500, form=form)
    path = tmp_path / task.name
    data = path.read_bytes()
    rng = Random(1)
    footer = int.from_bytes(data[-8:-4], "little")
    places = [rng.randrange(len(data)) for _ in range(150)]
    # Page headers, which no page checksum covers, stand at the beginning of each column.
    places += range(4, 40)
    places += [rng.randrange(len(data) - 8 - footer, len(data)) for _ in range(60)]
    partly = 0
    for place in places:
        path.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        )
        state = check_segment(task)
        assert not state.is_whole
        storage = ReadonlyDirectory(str(tmp_path)).open(task.name)
        for rows in rows_in(storage, task, state) if state.readable else ():
            start = rows.column("_offset")[0].as_py()
            assert rows.equals(whole.slice(start, rows.num_rows))
            partly += 1
        storage.close()
    assert partly > 100


def test_a_page_header_that_lies_is_not_believed(tmp_path):
    """Find a byte that changes what a page decodes to without its checksum noticing."""
    task, _ = a_segment(tmp_path, 500)
    path = tmp_path / task.name
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little")
    unproven = 0
    for place in range(4, len(data) - 8 - footer):
        path.write_bytes(data[:place] + bytes([data[place] ^ 2]) + data[place + 1 :])
        state = check_segment(task)
        assert state.readable == ()
        said = "differs from its rows when written again"
        unproven += any(said in one.flaw for one in state.bad)
    # Without being written again, these rows would have been taken for right.
    assert unproven > 0


@pytest.mark.parametrize("is_alike_first", [False, True])
def test_a_whole_row_group_is_proven_whatever_the_first_one_is_like(tmp_path, is_alike_first):
    """Columns have dictionaries by the first row group; here the second is the other kind."""
    unlike, alike = list(range(GROUP)), [n % 5 for n in range(GROUP)]
    ids = [*alike, *unlike] if is_alike_first else [*unlike, *alike]
    task, whole = a_segment(tmp_path, 2 * GROUP, ids)
    path = tmp_path / task.name
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(3)
    assert chunk.has_dictionary_page == is_alike_first
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    state = check_segment(task)
    assert state.readable == ((GROUP, 2 * GROUP),)
    (found,) = rows_in(ReadonlyDirectory(str(tmp_path)).open(task.name), task, state)
    assert found.equals(whole.slice(GROUP))


@pytest.mark.parametrize("form", [1, 2])
def test_an_orphan_and_its_anatomy_are_read_by_the_format_that_it_names(tmp_path, form):
    task, _ = a_segment(tmp_path, 500, form=form)
    identity = Identity(task.info.cluster, GroupId(1), ReplicaId(0), 1, (16, 24, 24))
    found = check_lone(LoneTask(str(tmp_path), task.name, identity))
    assert (found.why, found.task) == ("", task)
    assert [(one.start, one.end) for one in found.times] == [(0, 500)]
    said = segment_anatomy(str(tmp_path / task.name), 5)
    assert said.flaws == []
    assert said.fields["headrace.format"] == str(form)
    columns = next(table for table in said.tables if table.title == "columns")
    assert columns.rows[1][0] == ("_offset", "_hr_offset")[form - 1]


@pytest.mark.parametrize("form", [1, 2])
def test_a_segment_with_dictionaries_everywhere_is_proven(tmp_path, monkeypatch, form):
    monkeypatch.setattr(segment_writer, "unrepeated", lambda _: set())
    task, whole = a_segment(tmp_path, GROUP + 500, form=form)
    path = tmp_path / task.name
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    state = check_segment(task)
    assert state.readable == ((GROUP, GROUP + 500),)
    (found,) = rows_in(ReadonlyDirectory(str(tmp_path)).open(task.name), task, state)
    assert found.equals(whole.slice(GROUP))


@pytest.mark.parametrize("size", [0, 4, 11, 12, 100])
def test_a_stump_is_no_segment(tmp_path, size):
    task, _ = a_segment(tmp_path, 50)
    path = tmp_path / task.name
    path.write_bytes(path.read_bytes()[:size])
    state = check_segment(task)
    assert not state.is_whole
    assert state.readable == ()


def test_what_nobody_read_is_not_called_whole(log):
    """A flipped bit in a page: only --deep reads it, and the headline says so."""
    harm.segment_page(log)
    shallow = headrace_here("doctor", log)
    assert shallow.code == Exit.OK
    verdict = shallow.out.splitlines()[-1]
    assert verdict.startswith(f"No damage in the journal, headers and tables: {log}. ")
    assert "were NOT read: --deep checks them" in verdict
    told = headrace_here("doctor", log, "--json").json
    assert told["unread_files"] == len(harm.segments(log)) + len(harm.carries(log))
    deep = headrace_here("doctor", log, "--deep")
    assert deep.code == Exit.INTEGRITY
    assert deep.out.splitlines()[-1].startswith("Damage in 1 place: ")
    assert headrace_here("doctor", log, "--deep", "--json").json["unread_files"] == 0


def test_a_node_that_misses_rows_is_degraded(log):
    """From the moment at which it knows: at its start, or at the first read."""
    harm.segment_page(log)
    path, partition, first, end = harm.segments(log)[0]
    with RunningNode(log, listen__http="127.0.0.1:0") as node:
        base = f"http://127.0.0.1:{node.http_port}"
        assert pages(base) == (True, [], 0)
        with headrace.connect(node.address) as other:
            rows = other.topic("shop/orders").read(partition, start=first, end=end)
            with pytest.raises(CorruptSegment):
                rows.to_table()
        is_ready, degraded, count = pages(base)
        assert (is_ready, count) == (True, 1)
        assert path.name in degraded[0]
        shown = headrace_here("status", "--address", node.address).out.splitlines()
        assert "degraded: some rows or topics are unavailable" in shown[0]
        assert any(f"`headrace doctor {log} --deep` lists" in line for line in shown)
        assert headrace_here("status", "--address", node.address, "--json").json["node"][
            "degraded"
        ]
    path.unlink()
    with RunningNode(log, listen__http="127.0.0.1:0") as node:
        is_ready, degraded, count = pages(f"http://127.0.0.1:{node.http_port}")
        assert (is_ready, count) == (True, 1)
        assert "segment is missing" in degraded[0]
    ended = headrace_here("status", "--data", log)
    title, *lines = ended.out.splitlines()
    assert "degraded: some rows or topics are unavailable" in title
    assert "not running, opened by this command" in title
    assert any(f"`headrace doctor {log} --deep` lists" in line for line in lines)
    adopted = headrace_here("metadata", "adopt", "--yes", "--json", "--data", log).json
    assert not adopted["changed"]
    assert not adopted["reasons"]


def rotten_carry(log):
    """Rot in a carry file, which a node does not read at its start."""
    found = harm.carry_entry(log)
    return log / found.file, found.lost[0], lambda: None


def rotten_journal(log):
    """Rot that comes while the node runs: a start looks at every entry of a journal."""
    frame = harm.appends(log, CLICKS, 0)[0]

    def rot():
        harm.flip(frame.file, frame.position + frame.size // 2)

    return frame.file, (CLICKS, 0, 0, 10), rot


@pytest.mark.parametrize("rotten", [rotten_carry, rotten_journal])
@pytest.mark.parametrize("columns", [None, ["id"]])
def test_a_node_that_meets_a_rotten_entry_is_degraded(log, rotten, columns):
    path, (name, partition, first, end), rot = rotten(log)
    with RunningNode(log, listen__http="127.0.0.1:0") as node:
        base = f"http://127.0.0.1:{node.http_port}"
        rot()
        assert pages(base) == (True, [], 0)
        with headrace.connect(node.address) as other:
            for _ in range(2):  # it counts once
                rows = other.topic(name).read(partition, start=first, end=end, columns=columns)
                with pytest.raises(CorruptEntry):
                    rows.to_table()
        is_ready, degraded, count = pages(base)
        assert (is_ready, count) == (True, 1)
        assert path.name in degraded[0]
        shown = headrace_here("status", "--address", node.address).out
        assert "degraded: some rows or topics are unavailable" in shown
        assert path.name in shown


def pages(base):
    """What `/health/ready` says, and the metric."""
    with urllib.request.urlopen(f"{base}/health/ready", timeout=10) as answer:
        found = json.load(answer)
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    (count,) = re.findall(r"(?m)^headrace_degraded (\S+)", text)
    return found["ready"], found["degraded"], float(count)


def test_a_log_with_both_formats_is_examined_and_salvaged_as_one(tmp_path):
    data, saved = tmp_path / "data", tmp_path / "saved"
    with as_at_level(2), headrace.open(data) as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "size": "float64"})
        topic.append([{"id": n, "size": n / 2} for n in range(300)])
        seal_all(data)
    with headrace.open(data) as log:
        topic = log.topic("shop/orders")
        topic.append([{"id": n, "size": n / 2} for n in range(300, 500)])
        seal_all(data)
        expected = topic.read().to_table()
    files = sorted(data.glob("groups/00001/segments/*.parquet"))
    found = [pq.read_metadata(file).metadata[b"headrace.format"] for file in files]
    assert found == [b"1", b"2"]
    ended = headrace_here("doctor", data, "--deep")
    assert (ended.code, "No damage" in ended.out) == (Exit.OK, True)
    for journal in data.glob("groups/00001/journal/*.wal"):
        journal.unlink()  # so that the segments alone have the rows
    headrace_here("doctor", data, "--salvage", saved)
    with headrace.open(saved) as log:
        assert log.topic("shop/orders").read().to_table().equals(expected)
