"""Machines of the lab share nothing, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.cli.demo.child_process import living
from headrace_lab.spark.machines import MachineNetwork, is_isolating
from headrace_lab.spark.standalone import StandaloneCluster

needs_root = pytest.mark.skipif(not is_isolating(), reason="namespaces need root")


def said_by(machine, *words):
    done = machine.run(words, {}, 20)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_root
def test_machines_have_a_disk_a_name_and_a_network_of_their_own(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("hidden")
    with MachineNetwork(tmp_path / "machines", isolated=True) as network:
        (tmp_path / "machines").mkdir(exist_ok=True)
        one = network.add("one")
        two = network.add("two", hidden=[secret], bound={secret: "bound"})
        assert one.disk == two.disk
        said_by(one, "touch", str(one.disk / "file"))
        assert one.seen(one.disk / "file").exists()
        assert not two.seen(two.disk / "file").exists()
        assert not (one.disk / "file").exists()  # nor here
        assert said_by(one, "hostname") == "one"
        assert said_by(two, "hostname") == "two"
        assert said_by(one, "ls", str(secret)) == "token"
        assert said_by(two, "ls", str(secret)) == ""
        assert said_by(two, "ls", str(two.disk / "bound")) == "token"
        code = f"import socket; socket.create_server(('{one.address}', 7000)).accept()"
        server = one.start([sys.executable, "-c", code], tmp_path / "log", {})
        code = f"import socket; socket.create_connection(('{one.address}', 7000), 1)"
        deadline = time.monotonic() + 20
        while two.run([sys.executable, "-c", code], {}, 20).returncode:
            assert time.monotonic() < deadline
        assert server.wait(20) == 0


@needs_root
def test_a_machine_does_not_have_the_variables_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_TOKEN", "of this process")
    monkeypatch.setenv("PYTHONPATH", "of this process")
    with MachineNetwork(tmp_path, isolated=True) as network:
        assert "of this process" not in said_by(network.add("one"), "env")


@needs_root
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_process_of_a_machine_outlives_its_block(tmp_path, error):
    network = MachineNetwork(tmp_path, isolated=True)

    def fail() -> None:
        with network:
            network.add("one").start(["sleep", "1000"], tmp_path / "log", {})
            deadline = time.monotonic() + 20
            while len(living(network.mark)) < 3:  # the bridge, the machine and its process
                assert time.monotonic() < deadline
            raise error

    with pytest.raises(error):
        fail()
    assert not living(network.mark)


LEFT = """
import os, signal, sys
from pathlib import Path
from headrace_lab.spark.machines import MachineNetwork
with MachineNetwork(Path(sys.argv[1]), isolated=True) as network:
    network.add("one").start(["sleep", "1000"], Path(sys.argv[1]) / "log", {})
    print(network.mark, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_the_kernel_ends_them_if_this_process_is_killed(tmp_path):
    words = [sys.executable, "-c", LEFT, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    mark, deadline = done.stdout.strip(), time.monotonic() + 20
    assert mark
    while living(mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.campaign(2, of="machines of Spark")
@pytest.mark.parametrize("isolated", [False, pytest.param(True, marks=needs_root)])
def test_a_cluster_of_spark_runs_a_job_and_leaves_nothing(tmp_path, isolated):
    with StandaloneCluster(tmp_path / "cluster", isolated=isolated) as cluster:
        conf = [f"--conf={key}={value}" for key, value in cluster.conf().items()]
        words = ["-m", "headrace", "spark", "check", "--json", "--master", cluster.master]
        found = cluster.drive([*words, *conf], {"PYSPARK_PYTHON": sys.executable})
        assert found.returncode == 0, found.stderr
        executors = json.loads(found.stdout)["executors"]
        assert len(executors) == 2
        hosts = {each["host"] for each in executors}
        assert hosts == ({"worker-0", "worker-1"} if isolated else {os.uname().nodename})
        assert Path(cluster._directory, "master.log").exists()
        assert cluster.logs()
    assert not living(cluster.mark)
