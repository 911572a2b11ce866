"""`headrace produce`: what is on disk, what is not, and which line is to blame."""

import json
import os
import signal
import subprocess
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SECONDS_MAX, a_node, command, headrace_here
from tests.cli.terminal import Terminal

import headrace
from headrace.cli.commands.produce import Produced, Sent, send_all
from headrace.cli.terminal.exits import Exit

ORDERS = {"id": "int64", "name": "string"}


@pytest.fixture
def data(tmp_path):
    """Options that name a log with a topic."""
    path = tmp_path / "data"
    with headrace.open(path) as log:
        log.create_topic("orders", ORDERS)
    return ["--data", str(path)]


def ids(data, topic="orders"):
    with headrace.open(data[1]) as log:
        return sorted(log.topic(topic).read().to_table()["id"].to_pylist())


def lines(start, end):
    return "".join(f'{{"id": {number}, "name": "n{number}"}}\n' for number in range(start, end))


def test_rows_of_a_pipe_are_acknowledged_and_counted(data):
    ended = headrace_here("produce", "orders", *data, given=lines(0, 10))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "10 rows acknowledged in 1 partition\n"
    assert ids(data) == list(range(10))


def test_json_says_where_rows_are(data):
    ended = headrace_here("produce", "orders", "-", "--json", *data, given=lines(0, 10))
    found = msgspec.json.decode(ended.raw, type=Produced)
    assert (found.topic, found.rows, found.error) == ("default/orders", 10, None)
    assert sum(each.end - each.start for each in found.ranges) == 10
    assert ended.err == ""


@pytest.mark.parametrize("name", ["a.ndjson", "a.csv", "a.parquet", "a.arrow", "a.arrows", "a"])
def test_every_format_is_known_by_its_bytes_or_name(data, tmp_path, name):
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, ""]})
    file = tmp_path / name
    match file.suffix:
        case ".ndjson":
            file.write_text('{"id":1,"name":"a"}\n{"id":2}\n{"id":3,"name":""}\n')
        case ".csv":
            file.write_text('name,id\na,1\n,2\n"",3\n')
        case ".arrow":
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        case ".arrows":
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
        case _:
            pq.write_table(table, file)
    assert headrace_here("produce", "orders", file, *data).code == 0
    with headrace.open(data[1]) as log:
        found = log.topic("orders").read(columns=["id", "name"]).to_table()
    assert found.sort_by("id").to_pylist() == table.to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "arrow-file"])
def test_what_needs_going_back_comes_through_a_pipe_too(data, tmp_path, kind):
    table = pa.table({"id": list(range(1_000)), "name": ["x"] * 1_000})
    file = tmp_path / "rows"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    done = subprocess.run(
        f"cat {file} | {sys.executable} -m headrace produce orders {' '.join(data)}",
        shell=True,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"1,000 rows acknowledged in 1 partition\n")
    assert ids(data) == list(range(1_000))


def test_a_bad_line_is_told_and_every_row_before_it_is_there(data, tmp_path):
    file = tmp_path / "orders.ndjson"
    file.write_text(lines(0, 500) + '{"id": "x"}\n' + lines(501, 600))
    ended = headrace_here("produce", "orders", file, *data)
    assert ended.code == Exit.USAGE
    assert ended.err.splitlines() == [
        f"headrace: {file} line 501: column 'id': expected int64, found 'x'",
        "500 rows acknowledged in 1 partition before that",
    ]
    assert ids(data) == list(range(500))


def test_json_of_a_bad_line_says_what_is_there_all_the_same(data):
    given = lines(0, 3) + "nonsense\n" + lines(4, 9)
    ended = headrace_here("produce", "orders", "--json", *data, given=given)
    found = msgspec.json.decode(ended.raw, type=Produced)
    assert (ended.code, found.rows) == (Exit.USAGE, 3)
    assert "line 4: it is not valid JSON" in (found.error or "")


def test_a_head_line_that_does_not_fit_is_told_as_any_line_is(data):
    ended = headrace_here("produce", "orders", "--json", *data, given="id,nam\n1,x\n")
    found = msgspec.json.decode(ended.raw, type=Produced)
    assert (ended.code, found.rows, found.ranges) == (Exit.USAGE, 0, [])
    assert "line 1: column 'nam'" in (found.error or "")


def test_a_topic_that_is_not_there_is_not_found_and_create_is_offered(data):
    ended = headrace_here("produce", "visits", *data, given=lines(0, 3))
    assert ended.code == Exit.NOT_FOUND
    assert "Add --create to create it" in ended.err


class TestCreate:
    def test_the_schema_is_told_from_the_rows_and_shown(self, tmp_path):
        options = ["--data", str(tmp_path / "new")]
        ended = headrace_here(
            *("produce", "visits", "--create", "--partitions", 2, "--key", "name", *options),
            given=lines(0, 100),
        )
        assert ended.code == 0
        assert ended.err.splitlines()[:3] == [
            "Created topic default/visits:",
            "  id    int64",
            "  name  string",
        ]
        assert ended.err.endswith("100 rows acknowledged in 2 partitions\n")
        with headrace.open(options[1]) as log:
            topic = log.topic("visits")
            assert (topic.partitions, topic.key) == (2, "name")

    def test_a_topic_that_is_there_is_taken(self, data):
        ended = headrace_here("produce", "orders", "--create", *data, given='{"id": 7}\n')
        assert (ended.code, ids(data)) == (0, [7])

    def test_no_rows_make_no_topic(self, data):
        ended = headrace_here("produce", "visits", "--create", *data)
        assert ended.code == Exit.USAGE
        assert "there are no rows to infer a schema from" in ended.err
        assert len(headrace_here("topic", "list", "--json", *data).json["topics"]) == 1

    def test_partitions_and_key_are_those_of_a_new_topic(self, data):
        ended = headrace_here("produce", "orders", "--key", "id", *data, given=lines(0, 1))
        assert ended.code == Exit.USAGE
        assert "Add --create" in ended.err


def test_no_rows_are_no_error(data):
    ended = headrace_here("produce", "orders", *data)
    assert (ended.code, ended.err) == (0, "0 rows acknowledged in 0 partitions\n")


def test_all_rows_go_to_the_partition_that_is_said(data):
    headrace_here("topic", "alter", "orders", "--partitions", 3, *data)
    ended = headrace_here(
        *("produce", "orders", "--partition", 2, "--json", *data), given=lines(0, 5)
    )
    assert ended.json["ranges"] == [{"partition": 2, "start": 0, "end": 5}]
    wrong = headrace_here("produce", "orders", "--partition", 3, *data, given=lines(0, 5))
    assert wrong.code == Exit.USAGE
    assert "has no partition 3" in wrong.err


def test_a_ledger_has_a_line_for_every_acknowledged_batch(data, tmp_path):
    ledger = tmp_path / "orders.ledger"
    headrace_here("produce", "orders", "--ledger", ledger, *data, given=lines(0, 50))
    told = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sum(line["rows"] for line in told) == 50
    assert {line["topic"] for line in told} == {"default/orders"}


def test_columns_of_ours_are_refused_with_the_option_that_leaves_them_out(data):
    rows = '{"_offset": 1, "id": 1}\n'
    ended = headrace_here("produce", "orders", *data, given=rows)
    assert ended.code == Exit.USAGE
    assert "--no-system" in ended.err


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (b"\x1f\x8b\x08\x00", [], "is gzip"),
        (b"PAR1junkjunkPAR1", [], "cannot be read as is"),
        (b"ARROW1\0\0junk", [], "cannot be read as is"),
        (b"\xff\xff\xff\xff\x10\0\0\0junk", [], "cannot be read as is"),
        (b"id,name\n1,2\n", ["--format", "parquet"], "cannot be read as is"),
        (b"[1]", [], "jq -c"),
        (b"\xff\xfe{\0", [], "UTF-16"),
    ],
)
def test_what_is_no_file_of_rows_is_told(data, given, options, said):
    ended = headrace_here("produce", "orders", *options, *data, given=given)
    assert ended.code == Exit.USAGE
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert ids(data) == []


def test_a_csv_with_another_delimiter_is_taken_if_it_is_said(data):
    given = b"id;name\n1;x\n"
    refused = headrace_here("produce", "orders", *data, given=given)
    assert (refused.code, ids(data)) == (Exit.USAGE, [])
    assert "Add --delimiter ';'" in refused.err
    ended = headrace_here("produce", "orders", "--delimiter", ";", *data, given=given)
    assert (ended.code, ids(data)) == (0, [1])


def test_a_delimiter_is_for_csv_only(data):
    ended = headrace_here("produce", "orders", "--delimiter", ";", *data, given=lines(0, 3))
    assert (ended.code, ids(data)) == (Exit.USAGE, [])
    assert "--delimiter is only for CSV, but standard input was detected as ndjson" in ended.err


def test_a_file_that_is_not_there_is_not_found(data, tmp_path):
    ended = headrace_here("produce", "orders", tmp_path / "nope.csv", *data)
    assert (ended.code, ended.out) == (Exit.NOT_FOUND, "")


def test_a_row_larger_than_a_body_is_refused_and_those_before_it_are_there(data, tmp_path):
    file = tmp_path / "huge.ndjson"
    with open(file, "w") as out:
        out.write(lines(0, 3))
        out.write('{"id": 3, "name": "')
        out.writelines("x" * 1024 * 1024 for _ in range(70))
        out.write('"}\n')
    ended = headrace_here("produce", "orders", file, *data)
    assert ended.code == Exit.USAGE
    assert "line 4: it is longer than" in ended.err
    assert "3 rows acknowledged" in ended.err
    assert ids(data) == [0, 1, 2]


def test_rows_of_a_pipe_do_not_wait_for_others(data):
    with a_node(data[1]) as address:
        process = subprocess.Popen(
            command("produce", "orders", "--address", address),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process, headrace.connect(address) as log:
            process.stdin.write(lines(0, 1).encode())
            process.stdin.flush()
            batch = next(iter(log.topic("orders").follow(start="earliest")))
            assert batch["id"].to_pylist() == [0]
            assert process.poll() is None
            process.stdin.write(lines(1, 2).encode())
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 0
            assert process.stderr.read() == b"2 rows acknowledged in 1 partition\n"


def test_an_interrupt_says_what_is_there_and_exits_with_130(data):
    process = subprocess.Popen(
        command("produce", "orders", *data), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        process.stdin.write(lines(0, 5).encode())
        process.stdin.flush()
        _wait_for_socket(data[1])
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == Exit.INTERRUPTED
    assert told == b"5 rows acknowledged in 1 partition before the interrupt\n"
    assert ids(data) == list(range(5))


def test_a_person_sees_progress_and_it_goes_away(data, tmp_path):
    file = tmp_path / "orders.ndjson"
    file.write_text(lines(0, 50_000))
    with Terminal("produce", "orders", str(file), *data) as terminal:
        assert terminal.wait() == 0
    assert "rows/s" in terminal.text
    assert terminal.text.rstrip().endswith("50,000 rows acknowledged in 1 partition")


def test_memory_does_not_grow_with_the_file(data, tmp_path):
    file = tmp_path / "orders.ndjson"
    with open(file, "w") as out:
        out.writelines(lines(start, start + 1_000) for start in range(0, 1_000_000, 1_000))
    script = (
        "import resource, sys\n"
        "from headrace.cli.main import main\n"
        "sys.argv = ['headrace', *sys.argv[1:]]\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (700 * 2**20, 700 * 2**20))\n"
        "try:\n    main()\nfinally:\n"
        "    [peak] = [one for one in open('/proc/self/status') if one.startswith('VmHWM')]\n"
        "    print(peak.split()[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "produce", "orders", str(file), *data],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # KiB; Python with Arrow and a node takes about 170. (ru_maxrss counts the parent's, too.)
    assert int(done.stdout) < 350 * 1024


def test_what_landed_before_the_log_failed_is_counted(tmp_path):
    with headrace.open(tmp_path, timeout="2s") as log:
        topic = log.create_topic("orders", {"id": "int64"})
        producer, sent = log.producer(topic, batch_rows=1), Sent()

        def batches():
            yield pa.record_batch({"id": [1, 2]})
            while not topic.bounds()[0].row_count:
                pass
            topic.delete()
            yield pa.record_batch({"id": [3]})

        send_all(producer, batches(), sent, lambda _: None)
        assert isinstance(sent.failure, headrace.HeadraceError)
        assert (sent.row_count, sent.acknowledged) == (3, 2)


def _wait_for_socket(path):
    """Wait until rows that were sent are there, told by the log itself."""
    with headrace.connect(f"unix:{os.path.realpath(path)}/headrace.sock", timeout="30s") as log:
        next(iter(log.topic("orders").follow(start="earliest")))
