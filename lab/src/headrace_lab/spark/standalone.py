"""Spark's own standalone cluster on machines that share no disk, from the pyspark package.

A master, two workers of one core, a machine for drivers and one for the node. As root, workers
see neither the driver's files, nor those that a test hides from them (`machines.py`).
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pyspark

from headrace.cli.demo.child_process import Silent
from headrace.cli.demo.node_process import free_address
from headrace.spark.spark_session import find_java
from headrace_lab.spark.machines import Machine, MachineNetwork
from headrace_lab.spark.process import JAVA_OPTIONS

WORKERS: Final = 2
START_SECONDS: Final = 120.0
DRIVER_SECONDS: Final = 240.0
NODE_PORT: Final = 7654
_PACKAGE: Final = "org.apache.spark.deploy"
_STARTED: Final = ("Successfully registered with master", "I have been elected leader")
_SERVING: Final = "node.ready"
_LOOK_SECONDS: Final = 0.2
_SPARK: Final = "spark"  # on a worker's disk: the installed Spark


class StandaloneCluster:
    """Use it as a context: no process of it outlives the block."""

    def __init__(self, directory: Path, *, isolated: bool, hidden: Sequence[Path] = ()) -> None:
        self._directory = directory
        self._isolated = isolated
        self._hidden = hidden
        self._exits = ExitStack()
        self.workers: list[Machine] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as failed:
            failed.enter_context(self._exits)
            network = MachineNetwork(self._directory, isolated=self._isolated)
            self.mark = network.mark
            self._exits.enter_context(network)
            home = {Path(pyspark.__file__).parent: _SPARK}
            self.driver = network.add("driver")
            self.node = network.add("node")
            master = network.add("master", bound=home)
            port = _port(self._isolated, 7077)
            self.master = f"spark://{master.address}:{port}"
            started = [self._start(master, "master.Master", "--port", port)]
            self._await_started(*started[0])
            for number in range(WORKERS):
                machine = network.add(f"worker-{number}", hidden=self._hidden, bound=home)
                self.workers.append(machine)
                words = ("--cores", "1", "--memory", "1g", "--work-dir")
                work = str(machine.disk / "work")
                started.append(self._start(machine, "worker.Worker", *words, work, self.master))
            for one in started:
                self._await_started(*one)
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def conf(self) -> dict[str, str]:
        """Return the settings of a session on this cluster."""
        return {
            "spark.driver.host": self.driver.address,
            "spark.driver.bindAddress": self.driver.address,
            "spark.driver.memory": "700m",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": str(WORKERS),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.cores.max": str(WORKERS),
        }

    def drive(
        self, words: Sequence[str], more: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a driver with this interpreter and its packages, on the driver's machine."""
        environment = {
            "SPARK_LOCAL_IP": self.driver.address,
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
            "PYTHONPATH": ":".join(each for each in sys.path if each),
            **(more or {}),
        }
        command = [sys.executable, *words]
        return self.driver.run(command, environment, DRIVER_SECONDS)

    def serve(self, name: str, token: str = "") -> str:
        """Start a node on its own machine, with a token if given, and return its address."""
        port = _port(self._isolated, NODE_PORT)
        address = f"{self.node.address}:{port}"
        log = self._directory / f"{name}.log"
        words = [sys.executable, "-m", "headrace", "serve"]
        words += ["--data", str(self.node.disk / name), "--listen", address]
        words += ["--set", "listen.http=", "--set", "log.format=json"]
        environment = {"PYTHONPATH": ":".join(each for each in sys.path if each)}
        if token:
            environment["HEADRACE_AUTH__TOKEN"] = token
        process = self.node.start(words, log, environment)
        _await_text(log, process, (_SERVING,), "node")
        return address

    def logs(self) -> dict[str, str]:
        """Return the text of every log and output file of the cluster, by path."""
        found = list(self._directory.glob("*.log"))
        for worker in self.workers:
            found += [
                each for each in worker.seen(worker.disk / "work").rglob("*") if each.is_file()
            ]
        return {str(each): each.read_bytes().decode(errors="replace") for each in found}

    def _start(
        self, machine: Machine, main: str, *words: str
    ) -> tuple[str, Path, "subprocess.Popen[bytes]"]:
        home = machine.disk / _SPARK
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": machine.address,
            "SPARK_LOCAL_DIRS": str(machine.disk / "tmp"),
            "SPARK_DAEMON_MEMORY": "256m",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        }
        java = find_java()
        if java.home is not None:
            environment["JAVA_HOME"] = java.home
        log = self._directory / f"{machine.name}.log"
        command = [str(home / "bin" / "spark-class"), f"{_PACKAGE}.{main}"]
        command += ["--host", machine.address, "--webui-port", "0", *words]
        process = machine.start(command, log, environment)
        return machine.name, log, process

    def _await_started(self, name: str, log: Path, process: "subprocess.Popen[bytes]") -> None:
        _await_text(log, process, _STARTED, f"{name} of the cluster")


def _await_text(
    log: Path, process: "subprocess.Popen[bytes]", texts: Sequence[str], what: str
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not any(text in log.read_text(errors="replace") for text in texts):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Silent(f"the {what} does not start; see {log}")
        time.sleep(_LOOK_SECONDS)


def _port(isolated: bool, fixed: int) -> str:
    return str(fixed) if isolated else free_address().rpartition(":")[2]
