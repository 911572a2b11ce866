"""What the look at executors finds, on one machine."""

import json
import time
from pathlib import Path

import pytest
from tests.client.doors import RunningNode

from headrace.errors import Unauthorized, Unavailable
from headrace.spark import cluster_check
from headrace.spark.cluster_check import (
    ExecutorLook,
    Look,
    look,
    refuse_silent_master,
    refuse_unseen,
)
from headrace.spark.executor_look import looking
from headrace.spark.friendly_errors import sentence_of
from headrace.spark.worker.link import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Link, token_here
from headrace.wire.greeting import GetStatus, Ping, Pong, StatusReply
from headrace.wire.ticket import TICKET_SECONDS, Ticket

TOKEN = "a token of these tests"


def an_executor(**changes) -> ExecutorLook:
    plain = {
        "host": "w1",
        "process": 1,
        "python": "/p",
        "python_version": "3.11.7",
        "headrace": "1",
        "installed": "",
        "pyarrow": "1",
        "pyspark": cluster_check.pyspark.__version__,
        "node_flaw": "",
        "table_flaw": "",
        "store_flaw": "",
        "answer": "x",
    }
    return ExecutorLook(**(plain | changes))


def test_the_look_of_one_machine_shares_its_paths(spark, tmp_path):
    path = tmp_path / "a" / "table"
    (found,) = look(spark, Look(table=path, store=lambda: "the store says no"))
    assert found.table_flaw == ""
    assert found.flaws() == [
        f"the executor on {found.host} cannot use the store: the store says no"
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_there_stays(spark, tmp_path):
    path = tmp_path / "table"
    path.mkdir()
    look(spark, Look(table=path))
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == []


def test_in_local_mode_a_path_costs_no_job(spark, tmp_path):
    context = spark.sparkContext
    context.setJobGroup("unseen", "of this test")
    try:
        refuse_unseen(spark, str(tmp_path / "table"))
        assert list(context.statusTracker().getJobIdsForGroup("unseen")) == []
        look(spark, Look())
        assert len(context.statusTracker().getJobIdsForGroup("unseen")) == 1
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_the_driver_does_not_see_is_a_flaw(tmp_path):
    """An executor with a copy of the path sees the driver's file, the driver no answer."""
    copies = [tmp_path / "driver", tmp_path / "executor"]
    for each in copies:
        each.mkdir()
        (each / "try").write_text("text")
    driver, executor = (str(each / "try") for each in copies)
    (said,) = looking(None, (executor, "text"), None, 0.0)([0])
    found = cluster_check._parsed(said, (driver, "text"))
    assert found.table_flaw == "the driver does not see its files there"
    assert cluster_check._parsed(said, (executor, "text")).table_flaw == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("other", "is not the driver's file")],
)
def test_a_file_that_is_not_the_drivers_is_a_flaw(tmp_path, text, said):
    if text is not None:
        (tmp_path / "try").write_text(text)
    (found,) = looking(None, (str(tmp_path / "try"), "text"), None, 0.0)([0])
    assert said in json.loads(found)["table_flaw"]
    assert [each.name for each in tmp_path.iterdir()] == (["try"] if text else [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pyarrow": ""}, "the executor on w1 has no pyarrow in /p. Run there: /p -m pip"),
        ({"headrace": ""}, "the executor on w1 has no headrace in /p. Start the session with"),
        ({"pyspark": "3.5.0"}, "the executor on w1 has Spark 3.5.0, but the driver has"),
        ({"node_flaw": "Busy: x"}, "the executor on w1 cannot use the node: Busy: x"),
        ({"table_flaw": "x"}, "the executor on w1 does not share the path: x"),
    ],
)
def test_each_flaw_is_one_sentence(changes, said):
    (flaw,) = an_executor(**changes).flaws()
    assert flaw.startswith(said)


def test_an_executor_that_has_everything_has_no_flaw():
    assert an_executor().flaws() == []


def test_a_master_that_is_not_there_is_found_before_spark_starts():
    began = time.monotonic()
    with pytest.raises(Unavailable, match="no Spark master answers"):
        refuse_silent_master("spark://127.0.0.1:1")
    assert time.monotonic() - began < cluster_check.MASTER_SECONDS
    refuse_silent_master("local[2]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'Lost task 0.3: java.io.IOException: Cannot run program "/x/python": error=2',
            "there is no Python at /x/python, where",
        ),
        ("  ModuleNotFoundError: No module named 'headrace'\n", "Python on executors has no h"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11.",
            "Python in worker has different version: 3.9 than 3.11. Set PYSPARK_PYTHON",
        ),
    ],
)
def test_what_spark_says_of_another_python_becomes_a_sentence(text, said):
    assert sentence_of(f"Py4JJavaError: \n\tat x\n{text}\n\tat y").startswith(said)


@pytest.mark.parametrize(
    ("file", "environment", "found"),
    [
        ("of the query", {TOKEN_VARIABLE: "t"}, b"of the query"),
        (None, {TOKEN_VARIABLE: " t\n", TOKEN_FILE_VARIABLE: "/nowhere"}, b"t"),
        ("", {TOKEN_VARIABLE: "t"}, b"t"),
        (None, {TOKEN_VARIABLE: " ", TOKEN_FILE_VARIABLE: ""}, None),
        ("", {}, None),
    ],
)
def test_where_a_process_finds_the_token(tmp_path, file, environment, found):
    """The file of the query, if it is here; the environment."""
    path = tmp_path / "token"
    if file:
        path.write_text(f"{file}\n")
    assert token_here(None if file is None else str(path), environment) == found


def test_a_token_file_of_the_environment_must_be_there(tmp_path):
    path = tmp_path / "token"
    with pytest.raises(Unauthorized, match="HEADRACE_TOKEN_FILE: "):
        token_here(None, {TOKEN_FILE_VARIABLE: str(path)})
    path.write_text("of a file\n")
    assert token_here(None, {TOKEN_FILE_VARIABLE: str(path)}) == b"of a file"


@pytest.fixture
def guarded(tmp_path):
    with RunningNode(tmp_path / "node", auth__token=TOKEN) as node:
        yield node.address


def test_a_task_is_let_in_with_a_ticket_until_it_expires(guarded):
    now = time.time()
    good = Ticket.made(TOKEN.encode(), now, range(0))
    with Link(guarded, None, "test", "", good) as link:
        assert link.ask(Ping(), Pong, seconds=5.0)[0] == Pong()
        with pytest.raises(Unauthorized, match="a ticket does not permit this GetStatus"):
            link.ask(GetStatus(), StatusReply, seconds=5.0)
    old = Ticket.made(TOKEN.encode(), now - TICKET_SECONDS, range(0))
    with (
        pytest.raises(Unauthorized, match="the ticket expired"),
        Link(guarded, None, "test", "", old) as link,
    ):
        link.ask(Ping(), Pong, seconds=5.0)
    with (
        pytest.raises(Unauthorized, match="Set HEADRACE_TOKEN_FILE or the option"),
        Link(guarded, None, "test") as link,
    ):
        link.ask(Ping(), Pong, seconds=5.0)


def test_the_token_of_an_executor_comes_before_its_ticket(guarded, monkeypatch, tmp_path):
    old = Ticket.made(TOKEN.encode(), 0.0, range(0))
    path = Path(tmp_path, "token")
    path.write_text(TOKEN)
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(path))
    with Link(guarded, None, "test", "", old) as link:
        assert link.ask(Ping(), Pong, seconds=5.0)[0] == Pong()
