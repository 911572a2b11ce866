"""`headrace read`: the rows that were asked for, in the form that was asked for."""

import io
import os
import re
import shlex
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SECONDS_MAX, a_node, command, headrace_here
from tests.cli.terminal import Terminal

import headrace
from headrace.cli.terminal.exits import Exit

SYSTEM = ["_partition", "_offset", "_timestamp"]


@pytest.fixture(scope="module", params=["embedded", "held", "address"])
def place(request, tmp_path_factory):
    """Options that name a log with 20 rows: 10 in each of two partitions."""
    path = tmp_path_factory.mktemp("data")
    with headrace.open(path) as log:
        fill(log)
    if request.param == "embedded":
        yield ["--data", str(path)]
        return
    with a_node(path) as address:
        yield ["--data", str(path)] if request.param == "held" else ["--address", address]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    with headrace.open(path) as log:
        fill(log)
        log.create_topic("empty", {"id": "int64"})
    return ["--data", str(path)]


def fill(log):
    topic = log.create_topic("orders", {"id": "int64", "name": "string"}, partitions=2)
    for partition in (0, 1):
        rows = [{"id": 10 * partition + n, "name": f"n{n}"} for n in range(10)]
        topic.append(rows, partition=partition)


def ids(ended):
    assert ended.code == 0, ended.err
    return [row["id"] for row in ended.rows]


def test_all_rows_come_by_partition_and_offset(place):
    ended = headrace_here("read", "orders", *place)
    assert ids(ended) == list(range(20))
    assert list(ended.rows[0]) == [*SYSTEM, "id", "name"]
    assert ended.err == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "8"], [8, 9, 18, 19]),
        (["--from", "2", "--to", "4"], [2, 3, 12, 13]),
        (["--to", "1"], [0, 10]),
        (["--tail", "1"], [9, 19]),
        (["--tail", "0"], []),
        (["--limit", "3"], [0, 1, 2]),
        (["--limit", "0"], []),
        (["--partition", "1", "--limit", "2"], [10, 11]),
        (["--partition", "1", "--partition", "0", "--tail", "1"], [19, 9]),
        (["--from", "-1h"], list(range(20))),
        (["--from", "now"], []),
        (["--from", "latest"], []),
        (["--from", "earliest", "--to", "latest", "--limit", "1"], [0]),
        (["--to", "-1h"], []),
        (["--where", "id > 8 and id < 12"], [9, 10, 11]),
        (["--where", "name = 'n3'", "--limit", "1"], [3]),
        (["--where", "_offset = 4 and _partition = 1"], [14]),
        (["--where", "_timestamp > '-1h'", "--tail", "1"], [9, 19]),
    ],
)
def test_the_rows_that_were_asked_for_come(data, options, expected):
    assert ids(headrace_here("read", "orders", *options, *data)) == expected


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        (["--no-system"], ["id", "name"]),
        (["--columns", "name,id"], ["name", "id"]),
        (["--columns", "id, _offset"], ["id", "_offset"]),
        (["--columns", "name", "--where", "id = 3"], ["name"]),
        (["--no-system", "--where", "_offset = 3"], ["id", "name"]),
        (["--no-system", "--columns", "name", "--where", "_offset = 3"], ["name"]),
    ],
)
def test_the_columns_that_were_asked_for_come(data, options, columns):
    ended = headrace_here("read", "orders", *options, *data)
    assert ended.code == 0
    assert ended.rows
    assert {tuple(row) for row in ended.rows} == {tuple(columns)}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--from", "5", "--tail", "1"], Exit.USAGE, "--from and --tail cannot be combined"),
        (["--to", "5", "--follow"], Exit.USAGE, "--to and --follow cannot be combined"),
        (["--no-system", "--columns", "_offset"], Exit.USAGE, "cannot be combined"),
        (["--json", "--format", "csv"], Exit.USAGE, "--json means --format ndjson"),
        (["--from", "soon"], Exit.USAGE, "--from: 'soon' is not a valid time. Give an offset"),
        (["--to", "2026-11-15T10:00"], Exit.USAGE, "--to: '2026-11-15T10:00' has no time zone"),
        (["--from", "5", "--to", "3"], Exit.USAGE, "--from 5 is after --to 3"),
        (["--from", "99"], Exit.USAGE, "--from 99 is past the end of every partition"),
        (["--to", "11"], Exit.USAGE, "--to 11 is past the end of every partition"),
        (["--partition", "7"], Exit.USAGE, "has no partition 7"),
        (["--columns", "nam"], Exit.USAGE, "Did you mean 'name'?"),
        (
            ["--columns", "id,id"],
            Exit.USAGE,
            "a column is listed twice. List each column once, or omit columns to get all",
        ),
        (
            ["--columns", "qqq"],
            Exit.USAGE,
            "The columns are _partition, _offset, _timestamp, id, name\n",
        ),
        (["--columns", ""], Exit.USAGE, "there is no column ''"),
        (["--where", "idd > 3"], Exit.USAGE, "  idd > 3\n  ^"),
        (["--format", "xml"], Exit.USAGE, "xml"),
        (["--limit", "-1"], Exit.USAGE, "-1"),
        (["--output", "rows.txt"], Exit.USAGE, "does not imply a format"),
        (
            ["--output", "/nonexistent/rows.csv"],
            Exit.NOT_FOUND,
            "directory /nonexistent does not exist. Create it first: mkdir -p /nonexistent",
        ),
        (["--output", "/tmp", "--format", "csv"], Exit.USAGE, "/tmp is a directory"),
        (
            ["--output", "rows.parquet", "--format", "csv"],
            Exit.USAGE,
            "the name of rows.parquet means parquet, but --format is csv",
        ),
        (["--output", "rows.csv", "--json"], Exit.USAGE, "the name of rows.csv means csv"),
        (
            ["--output", "rows.csv", "--format", "table"],
            Exit.USAGE,
            "the name of rows.csv means",
        ),
    ],
)
def test_what_cannot_be_is_told_before_the_first_row(data, options, code, said):
    ended = headrace_here("read", "orders", *options, *data)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_topic_that_is_not_there_is_not_found(data):
    ended = headrace_here("read", "order", *data)
    assert ended.code == Exit.NOT_FOUND
    assert "orders" in ended.err


def test_rows_that_retention_took_are_told_and_not_skipped(tmp_path):
    with headrace.open(tmp_path) as log:
        fill(log)
        log.topic("orders").trim(5)
    options = ("read", "orders", "--data", tmp_path)
    ended = headrace_here(*options, "--from", "0")
    assert ended.code == Exit.USAGE
    assert "offset 0 was deleted, the first retained is 5" in ended.err
    assert ids(headrace_here(*options, "--from", "earliest")) == [*range(5, 10), *range(15, 20)]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Options that name a log: partition 0 ends at 4, 1 at 5, and 2 has no rows."""
    path = tmp_path_factory.mktemp("uneven")
    with headrace.open(path) as log:
        topic = log.create_topic("orders", {"id": "int64"}, partitions=3)
        topic.append({"id": list(range(4))}, partition=0)
        topic.append({"id": list(range(10, 15))}, partition=1)
    return ["--data", str(path)]


class TestPartitionsOfDifferentLength:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["--from", "3"], [3, 13, 14]),
            (["--from", "4"], [14]),
            (["--from", "5"], []),
            (["--from", "4", "--to", "5"], [14]),
            (["--from", "5", "--to", "5"], []),
            (["--to", "5"], [0, 1, 2, 3, 10, 11, 12, 13, 14]),
            (["--from", "3", "--to", "4"], [3, 13]),
            (["--from", "4", "--partition", "0"], []),
            (["--from", "4", "--to", "now"], [14]),
            (["--from", "4", "--to", "-1h"], []),
            (["--from", "-1h", "--to", "1"], [0, 10]),
            (["--from", "now", "--to", "1"], []),
            (["--from", "earliest", "--to", "5"], [0, 1, 2, 3, 10, 11, 12, 13, 14]),
            (["--from", "4", "--to", "latest"], [14]),
        ],
    )
    def test_a_shorter_one_gives_what_it_has(self, uneven, options, expected):
        assert ids(headrace_here("read", "orders", *options, *uneven)) == expected

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--from", "6"], "--from 6 is past the end of every partition"),
            (["--from", "1700000000"], "The longest is partition 1, which ends at 5"),
            (
                ["--from", "5", "--partition", "0"],
                "The longest is partition 0, which ends at 4",
            ),
            (["--to", "6"], "--to 6 is past the end of every partition"),
            (["--from", "4", "--to", "3"], "--from 4 is after --to 3"),
            (["--from", "latest", "--to", "earliest"], "--from latest is after --to earliest"),
        ],
    )
    def test_a_place_that_none_reaches_is_told_with_the_bounds(self, uneven, options, said):
        ended = headrace_here("read", "orders", *options, *uneven)
        assert (ended.code, ended.out) == (Exit.USAGE, "")
        assert said in ended.err

    def test_two_times_the_wrong_way_round_are_named(self, uneven):
        ended = headrace_here("read", "orders", "--from", "-10m", "--to", "-20m", *uneven)
        assert ended.code == Exit.USAGE
        found = re.search(r"--from -10m \((\S+)\) is after --to -20m \((\S+)\)", ended.err)
        first, last = map(datetime.fromisoformat, found.groups())
        assert timedelta(minutes=9) < first - last < timedelta(minutes=11)


class TestFormats:
    def test_a_table_has_a_head_and_lines(self, data):
        ended = headrace_here("read", "orders", "--format", "table", "--no-system", *data)
        assert ended.out.splitlines()[:3] == ["id  name", " 0  n0", " 1  n1"]

    def test_a_table_of_nothing_says_so_apart(self, data):
        ended = headrace_here("read", "empty", "--format", "table", "--no-system", *data)
        assert (ended.code, ended.out, ended.err) == (0, "id\n", "no rows\n")

    def test_csv_has_a_head_line(self, data):
        ended = headrace_here(
            *("read", "orders", "--format", "csv", "--no-system", "--limit", 2, *data)
        )
        assert ended.out == '"id","name"\n0,"n0"\n1,"n1"\n'

    def test_csv_of_nothing_is_a_head_line(self, data):
        ended = headrace_here("read", "empty", "--format", "csv", "--no-system", *data)
        assert ended.out == '"id"\n'

    def test_arrow_is_a_stream_with_its_schema(self, data):
        ended = headrace_here("read", "orders", "--format", "arrow", *data)
        table = pa.ipc.open_stream(ended.raw).read_all()
        assert table.schema.names == [*SYSTEM, "id", "name"]
        assert table["id"].to_pylist() == list(range(20))

    def test_parquet_goes_through_a_pipe_too(self, data):
        ended = headrace_here("read", "orders", "--format", "parquet", *data)
        assert pq.read_table(io.BytesIO(ended.raw))["id"].to_pylist() == list(range(20))

    @pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.ndjson", "a.arrow"])
    def test_a_file_is_written_by_its_name_and_others_read_it(self, data, tmp_path, name):
        file = tmp_path / name
        file.write_text("what was there before")
        ended = headrace_here("read", "orders", "--output", file, "--no-system", *data)
        assert (ended.code, ended.out) == (0, "")
        assert ended.err == f"wrote 20 rows to {file}\n"
        assert list(tmp_path.iterdir()) == [file]
        if name == "a.arrow":
            found = pa.ipc.open_stream(file.read_bytes()).read_all()["id"].to_pylist()
        else:
            how = {"a.ndjson": "read_json", "a.csv": "read_csv"}.get(name, "read_parquet")
            with duckdb.connect() as database:
                rows = database.sql(f"select id from {how}('{file}')").fetchall()
            found = [row[0] for row in rows]
        assert found == list(range(20))

    def test_one_row_is_one_row(self, data, tmp_path):
        file = tmp_path / "a.csv"
        ended = headrace_here("read", "orders", "--output", file, "--limit", 1, *data)
        assert ended.err == f"wrote 1 row to {file}\n"

    def test_a_format_that_is_said_may_go_into_a_file_of_any_other_name(self, data, tmp_path):
        for name, kind in (("rows.txt", "table"), ("rows.json", "ndjson"), ("rows", "csv")):
            arguments = ("read", "orders", "-o", tmp_path / name, "--format", kind, *data)
            assert headrace_here(*arguments).code == 0

    def test_parquet_of_nothing_has_a_schema(self, data, tmp_path):
        headrace_here("read", "empty", "--output", tmp_path / "a.parquet", *data)
        assert pq.read_table(tmp_path / "a.parquet").schema.names == [*SYSTEM, "id"]

    def test_what_is_read_is_produced_again(self, data, tmp_path):
        for kind in ("ndjson", "csv", "arrow", "parquet"):
            rows = headrace_here("read", "orders", "--no-system", "--format", kind, *data)
            other = ["--data", str(tmp_path / "other")]
            made = headrace_here("produce", kind, "--create", *other, given=rows.raw)
            assert made.code == 0, made.err
            assert ids(headrace_here("read", kind, *other)) == list(range(20))

    def test_a_read_that_fails_leaves_no_file(self, data, tmp_path):
        file = tmp_path / "a.csv"
        ended = headrace_here("read", "orders", "--partition", 9, "--output", file, *data)
        assert ended.code == Exit.USAGE
        assert list(tmp_path.iterdir()) == []

    def test_a_named_pipe_is_written_to_and_stays_one(self, data, tmp_path):
        pipe = tmp_path / "rows"
        os.mkfifo(pipe)
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(pipe.read_bytes)
            ended = headrace_here("read", "orders", "-o", pipe, "--format", "ndjson", *data)
            assert ended.code == 0
            assert reading.result().count(b"\n") == 20
        assert pipe.is_fifo()

    def test_a_full_disk_is_told(self, data):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                command("read", "orders", *data),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        assert done.returncode == Exit.FAILURE
        assert "standard output: writing failed: No space left on device" in done.stderr
        assert "Traceback" not in done.stderr


class TestTerminal:
    def test_a_person_gets_a_table_within_the_width(self, data):
        with Terminal("read", "orders", *data, width=60) as terminal:
            assert terminal.wait() == 0
        lines = terminal.text.splitlines()
        assert lines[0].split()[:2] == ["_partition", "_offset"]
        assert len(lines) == 21
        assert max(map(len, lines)) <= 60

    @pytest.mark.parametrize("kind", ["arrow", "parquet"])
    def test_bytes_do_not_go_to_a_terminal(self, data, kind):
        with Terminal("read", "orders", "--format", kind, *data) as terminal:
            assert terminal.wait() == Exit.USAGE
        assert (
            f"{kind} cannot be printed on a terminal. Add --output FILE.{kind}" in terminal.text
        )

    def test_follow_shows_new_rows_until_ctrl_c(self, tmp_path):
        with a_node(tmp_path) as address, headrace.connect(address) as log:
            fill(log)
            arguments = ("read", "orders", "--follow", "--tail", "1", "--address", address)
            with Terminal(*arguments) as terminal:
                terminal.read_until("n9")
                log.topic("orders").append([{"id": 77, "name": "new"}])
                terminal.read_until("new")
                terminal.press("\x03")
                assert terminal.wait() == Exit.INTERRUPTED
            assert "Traceback" not in terminal.text


class TestFollow:
    @pytest.fixture
    def node(self, tmp_path):
        with a_node(tmp_path / "data") as address, headrace.connect(address) as log:
            fill(log)
            yield address, log

    def follow(self, address, *options):
        return subprocess.Popen(
            command("read", "orders", "--follow", "--address", address, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def test_rows_come_as_they_are_appended_and_a_newer_schema_too(self, node):
        address, log = node
        with self.follow(address, "--from", "9") as process:
            first = [process.stdout.readline() for _ in range(2)]
            assert sorted('"id":9,' in line for line in first) == [False, True]
            topic = log.topic("orders")
            topic.evolve({"id": "int64", "name": "string", "note": "string"})
            topic.append([{"id": 77, "note": "hello"}])
            assert '"note":"hello"' in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == Exit.INTERRUPTED
            assert process.stderr.read() == ""

    def test_a_limit_ends_it(self, node):
        address, _ = node
        with self.follow(address, "--from", "earliest", "--limit", "3") as process:
            told, words = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
        assert (told.count("\n"), words) == (3, "")

    def test_a_file_is_whole_when_it_is_interrupted(self, node, tmp_path):
        address, log = node
        file = tmp_path / "rows.parquet"
        before = log.status()["work"]["fetches"]
        with self.follow(address, "--from", "earliest", "-o", str(file)) as process:
            part = tmp_path / "rows.parquet.part"
            while log.status()["work"]["fetches"] == before:  # it has not begun to follow
                assert process.poll() is None
            assert part.exists()
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS_MAX)
        assert process.returncode == Exit.INTERRUPTED
        assert pq.read_table(file).schema.names == [*SYSTEM, "id", "name"]
        assert not part.exists()

    def test_csv_cannot_change_its_columns(self, node):
        address, log = node
        with self.follow(address, "--format", "csv") as process:
            assert process.stdout.readline().startswith('"_partition"')
            topic = log.topic("orders")
            topic.evolve({"id": "int64", "name": "string", "note": "string"})
            while process.poll() is None:
                topic.append([{"id": 77, "note": "hello"}])
            assert process.returncode == Exit.USAGE
            assert "newer schema" in process.stderr.read()


@pytest.mark.parametrize("kind", ["ndjson", "table", "csv", "arrow"])
def test_a_closed_pipe_ends_it_quietly(tmp_path, kind):
    with headrace.open(tmp_path) as log:
        topic = log.create_topic("orders", {"id": "int64", "name": "string"})
        topic.append({"id": list(range(200_000)), "name": ["x" * 100] * 200_000})
    reading = shlex.join(command("read", "orders", "--format", kind, "--data", tmp_path))
    done = subprocess.run(
        f"set -o pipefail; {reading} | head -n 1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1 or kind == "arrow"


def test_a_read_that_is_interrupted_leaves_no_file(tmp_path):
    with headrace.open(tmp_path / "data") as log:
        topic = log.create_topic("orders", {"id": "int64", "name": "string"})
        for _ in range(10):
            topic.append({"id": list(range(100_000)), "name": ["x" * 100] * 100_000})
    process = subprocess.Popen(
        command("read", "orders", "--data", tmp_path / "data", "-o", tmp_path / "rows.csv"),
        stderr=subprocess.PIPE,
    )
    with process:
        while not (tmp_path / "rows.csv.part").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, told) == (Exit.INTERRUPTED, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_reading_by_time_begins_and_ends_between_appends(tmp_path):
    with headrace.open(tmp_path) as log:
        topic = log.create_topic("orders", {"id": "int64"})
        moments = []
        for number in range(3):
            topic.append([{"id": number}])
            moments.append(datetime.now(UTC).isoformat())
    options = ("read", "orders", "--data", tmp_path)
    assert ids(headrace_here(*options, "--from", moments[0])) == [1, 2]
    assert ids(headrace_here(*options, "--from", moments[0], "--to", moments[1])) == [1]


def test_values_of_every_type_come_as_they_are_kept(tmp_path):
    row = {
        "blob": b"\xff\x00",
        "at": datetime(2026, 11, 15, 10, 0, 0, 500_000, UTC),
        "tags": ["a", None],
        "x": float("nan"),
    }
    with headrace.open(tmp_path) as log:
        types = {"blob": "binary", "at": "timestamp", "tags": "list<string>", "x": "float64"}
        log.create_topic("orders", types).append([row])
    (found,) = headrace_here("read", "orders", "--no-system", "--data", tmp_path).rows
    assert found == {
        "blob": "/wA=",
        "at": "2026-11-15T10:00:00.500000Z",
        "tags": ["a", None],
        "x": "NaN",
    }
