"""A Spark cluster on this machine, from the Python package: a master and two workers."""

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pyspark

from headrace.cli.demo.child_process import MARK, Silent
from headrace.cli.demo.node_process import HOST, free_address
from headrace.errors import Unavailable
from headrace.spark.spark_session import find_java
from headrace_lab.spark.driver import Settings
from headrace_lab.spark.process import HASTE, JAVA_OPTIONS, kill_all

WORKERS: Final = 2
CORES: Final = 2  # of a worker: one for an executor of each of two drivers
MEMORY_MIN: Final = 8 * 1024**3  # a master, two workers, two drivers with two executors each
START_SECONDS: Final = 120.0
_PACKAGE: Final = "org.apache.spark.deploy"
_LOOK_SECONDS: Final = 0.2
_STARTED: Final = ("Successfully registered with master", "I have been elected leader")


class Cluster:
    """Use it as a context: neither it nor its executors outlive the block."""

    def __init__(self, directory: Path) -> None:
        free = _memory_free()
        if free < MEMORY_MIN:
            raise Unavailable(
                f"a cluster needs about {MEMORY_MIN // 1024**3} GiB of memory, "
                f"{free / 1024**3:.1f} GiB are free",
                hint="End something else, or leave out --cluster",
            )
        self._directory = directory
        self._address = free_address()
        self._mark = f"{MARK}={os.getpid()}-cluster-{time.monotonic_ns()}"
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        self._exits.callback(kill_all, self._mark)
        port = self._address.rpartition(":")[2]
        with ExitStack() as failed:
            failed.enter_context(self._exits)
            master = self._start("master", f"{_PACKAGE}.master.Master", "--port", port)
            self._await_started(*master)
            started = [
                self._start(
                    f"worker-{number}",
                    f"{_PACKAGE}.worker.Worker",
                    *("--cores", str(CORES), "--memory", "2g", "--work-dir"),
                    str(self._directory / f"work-{number}"),
                    f"spark://{self._address}",
                )
                for number in range(WORKERS)
            ]
            for one in started:
                self._await_started(*one)
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def settings(self) -> Settings:
        """Return how a driver uses it."""
        conf = {
            "spark.driver.memory": "1g",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": str(WORKERS),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.cores.max": str(WORKERS),
            **HASTE,
        }
        return Settings(f"spark://{self._address}", conf)

    def _start(
        self, name: str, main: str, *words: str
    ) -> tuple[str, Path, subprocess.Popen[bytes]]:
        home = Path(pyspark.__file__).parent
        mark, _, value = self._mark.partition("=")
        environment = {
            **os.environ,
            mark: value,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "512m",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        }
        java = find_java()
        if java.home is not None:
            environment["JAVA_HOME"] = java.home
        log = self._directory / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), main, "--host", HOST]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                process_group=0,
            )
        self._exits.callback(process.wait)
        self._exits.callback(process.kill)
        return name, log, process

    def _await_started(self, name: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not any(word in log.read_text(errors="replace") for word in _STARTED):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Silent(f"the {name} of the cluster does not start; see {log}")
            time.sleep(_LOOK_SECONDS)


def _memory_free() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
