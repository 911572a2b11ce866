"""Spark on machines that share no disk, where only the driver has the token and the package.

The workers see neither this repository nor the driver's files. They are real processes in
namespaces of their own, so it needs root.
"""

import base64
import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from tests.spark import cluster_driver

import headrace
from headrace.wire.ticket import Ticket

machines = pytest.importorskip("headrace_lab.spark.machines")
standalone = pytest.importorskip("headrace_lab.spark.standalone")

TOKEN = "canary-of-the-tests-0123456789"
REPOSITORY = Path(headrace.__file__).parent.parent
LAB = Path(machines.__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(
    not machines.is_isolating(), reason="machines of their own need root: namespaces"
)


class Cluster:
    """The cluster of all tests here, and a node with a topic."""

    def __init__(self, spark, address):
        self.spark, self.address = spark, address
        self.disk = spark.driver.disk / "work"

    def drive(self, *words, **environment):
        """Run a command on the driver's machine, which has the token."""
        given = {"HEADRACE_TOKEN": TOKEN, "PYSPARK_PYTHON": sys.executable, **environment}
        return self.spark.drive(words, given)

    def play(self, scene, conf=None, **environment):
        """Run a scene, and return what it found and all that it printed."""
        settings = json.dumps({**self.spark.conf(), **(conf or {})})
        words = [cluster_driver.__file__, scene, self.spark.master, self.address]
        ended = self.drive(*words, str(self.disk), settings, **environment)
        found = {}
        for line in ended.stdout.splitlines():
            if line.startswith('{"name"'):
                finding = json.loads(line)
                found[finding["name"]] = finding["value"]
        return found, ended.stdout + ended.stderr

    def check(self, *words, **environment):
        """Run `headrace spark check` with this cluster's settings."""
        settings = [f"--conf={key}={value}" for key, value in self.spark.conf().items()]
        start = ["-m", "headrace", "spark", "check", "--master", self.spark.master]
        return self.drive(*start, *settings, *words, **environment)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    hidden = [REPOSITORY, LAB, *_installed()]
    with standalone.StandaloneCluster(directory, isolated=True, hidden=hidden) as spark:
        address = spark.serve("data", TOKEN)
        script = (
            "import headrace, sys\n"
            "with headrace.connect(*sys.argv[1:3]) as log:\n"
            "    schema = {'id': 'int64', 'name': 'string'}\n"
            "    topic = log.create_topic('shop/orders', schema, partitions=2)\n"
            "    topic.append([{'id': n, 'name': f'n{n}'} for n in range(int(sys.argv[3]))])\n"
            "    log.create_topic('shop/copy', schema)\n"
        )
        made = spark.drive(["-c", script, address, TOKEN, str(cluster_driver.ROWS)])
        assert made.returncode == 0, made.stderr
        yield Cluster(spark, address)


def _installed():
    """Return where an editable install of this environment finds the package."""
    for file in Path(sys.prefix).rglob("*headrace*.pth"):
        yield from (Path(line) for line in file.read_text().splitlines() if Path(line).is_dir())


def whole(cluster):
    """Return what one driver found, its output, its event log, and when it ran."""
    began, events = time.time(), cluster.disk / "events"
    cluster.spark.driver.seen(events).mkdir()
    conf = {
        "spark.eventLog.compress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
    }
    found, text = cluster.play("whole", conf)
    assert "status" in found, text
    logs = {"the driver's output": text, **cluster.spark.logs()}
    for each in cluster.spark.driver.seen(events).rglob("*"):
        if each.is_file():
            logs[f"event log {each.name}"] = each.read_bytes().decode(errors="replace")
    return found, logs, range(int(began), int(time.time()) + 1)


def each_executor_is_described(cluster, whole):
    executors = whole[0]["executors"]
    assert {each["host"] for each in executors} == {"worker-0", "worker-1"}
    assert {each["python"] for each in executors} == {sys.executable}
    assert {each["headrace"] for each in executors} == {headrace.__version__}  # sent
    assert {each["installed"] for each in executors} == {""}
    assert {each["node_flaw"] for each in executors} == {""}
    for each in executors:
        (flaw,) = each["flaws"]
        where = f"the executor on {each['host']} does not share the path: "
        assert flaw.startswith(f"{where}it does not see the driver's files there: No such file")


def a_look_leaves_nothing_behind(cluster, whole):
    assert whole[0]["left behind"] == ["events"]


def executors_without_token_and_package_read_and_write(cluster, whole):
    assert whole[0]["read"] is True
    assert whole[0]["copied"] == cluster_driver.ROWS // 2
    assert whole[0]["stream"] == ""
    assert whole[0]["streamed"] == cluster_driver.ROWS // 2 + cluster_driver.ROWS


def a_path_that_is_not_shared_is_refused_before_anything_is_written(cluster, whole):
    path = cluster.disk / "table"
    assert whole[0]["unseen"].startswith(
        f"TableUnseen: the path {path} is not shared with the executor on worker-0: it does "
        "not see the driver's files there: No such file or directory"
    )
    assert f"the path {path} is not shared with the executor" in whole[0]["table_writer"]
    assert whole[0]["table is made"] is False


def no_text_has_the_token_or_a_key_of_a_ticket(cluster, whole):
    """A canary: it is in no plan, event log, output, exception or log of any process."""
    _, logs, seconds = whole
    assert any(name.startswith("event log") for name in logs)
    assert any("stderr" in name for name in logs)
    assert "EnvironmentUpdate" in "".join(logs.values())
    secrets = {TOKEN, base64.b64encode(TOKEN.encode()).decode(), TOKEN.encode().hex()}
    namespaces = [range(0), *(range(start, start + 2) for start in range(4))]
    for now in seconds:
        for each in namespaces:
            key = Ticket.made(TOKEN.encode(), now, each).key
            shown = repr(key)[2:-1]
            secrets |= {key.hex(), base64.b64encode(key).decode(), shown}
            secrets.add(json.dumps(shown)[1:-1])  # as the event log has a text
    for name, text in logs.items():
        assert not [each for each in secrets if each in text], name


# One test: its cluster and its driver take a minute, and tests may be shared out to processes.
CLAIMS = (
    each_executor_is_described,
    a_look_leaves_nothing_behind,
    executors_without_token_and_package_read_and_write,
    a_path_that_is_not_shared_is_refused_before_anything_is_written,
    no_text_has_the_token_or_a_key_of_a_ticket,
)


@pytest.mark.campaign(2, of="machines of Spark")
def test_spark_works_on_machines_that_share_nothing_but_a_network(cluster):
    seen = whole(cluster)
    for claim in CLAIMS:
        claim(cluster, seen)


def no_such_python(cluster):
    ended = cluster.check(PYSPARK_PYTHON="/nowhere/python")
    return ended, 5, "there is no Python at /nowhere/python, where Spark starts one"


def a_python_without_packages(cluster):
    bare = cluster.spark.workers[0].disk / "bare"
    for machine in (*cluster.spark.workers, cluster.spark.driver):
        command = [sys.executable, "-m", "venv", "--without-pip", str(bare)]
        assert machine.run(command, {}, 60).returncode == 0
    python = str(bare / "bin" / "python")
    ended = cluster.check(PYSPARK_PYTHON=python)
    assert "the executor on worker-1 has no pyarrow in" in ended.stderr
    return ended, 5, f"Run there: {python} -m pip install 'pyarrow=="


def another_token(cluster):
    ended = cluster.check(
        "--address", cluster.address, HEADRACE_TOKEN="another-token-of-24-bytes"
    )
    return ended, 4, "the token is not this node's"


def no_token(cluster):
    return cluster.check("--address", cluster.address, HEADRACE_TOKEN=""), 4, "requires a token"


def no_master(cluster):
    ended = cluster.drive("-m", "headrace", "spark", "check", "--master", "spark://127.0.0.1:1")
    return ended, 5, "no Spark master answers (127.0.0.1:1: "


LACKS = (no_such_python, a_python_without_packages, another_token, no_token, no_master)


@pytest.mark.campaign(2, of="machines of Spark")
@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_said_in_one_sentence(cluster, lack):
    ended, code, sentence = lack(cluster)
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr
    assert "/headrace/" not in ended.stderr  # a trace of ours; Spark may print one as it stops
    assert "\tat " not in ended.stderr  # a stack of Java


@pytest.mark.campaign(2, of="machines of Spark")
def test_a_session_of_ones_own_on_bare_executors_is_told_what_to_do(cluster):
    found, text = cluster.play("own_session")
    assert found, text
    assert found["error"].startswith("Python on executors has no headrace. Install it there")
    assert any("has no headrace in" in flaw for flaw in found["flaws"])


@pytest.mark.campaign(2, of="machines of Spark")
def test_another_release_on_executors_is_refused_by_name(cluster):
    """A copy of the package with another version, where tasks of one's own session find it."""
    old = cluster.spark.workers[0].disk / "old"
    for machine in cluster.spark.workers:
        target = machine.seen(old)
        for package in ("headrace", "pyspark_headrace"):
            shutil.copytree(REPOSITORY / package, target / package)
        root = target / "headrace" / "__init__.py"
        text = root.read_text()
        root.write_text(text.replace(f'"{headrace.__version__}"', '"0.0.9"'))
    found, text = cluster.play("own_session", {"spark.executorEnv.PYTHONPATH": str(old)})
    assert found, text
    assert "has headrace 0.0.9 in" in found["error"]
    assert f"but the driver has {headrace.__version__}" in found["error"]
