"""Drivers of chaos seen from outside: start them, send them commands, end them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from headrace.cli.demo.child_process import MARK, Silent, living
from headrace.cli.demo.pipeline_process import DemoDriver, DriverTestimony
from headrace_lab.spark.driver import Job, Settings
from headrace_lab.spark.gated_workers import GATE, MODULE, PLANT, Gate
from headrace_lab.spark.plants import is_of

PATIENCE_SECONDS: Final = 600.0  # that Spark may take to start
GONE_SECONDS: Final = 30.0  # that a process has to be gone after SIGKILL
LOOK_SECONDS: Final = 0.01
# The parent of Spark's Python workers, and their own name.
_DAEMONS: Final = frozenset({"pyspark.daemon", MODULE})
# Of a Java that lives for seconds: no second compiler, no threads to collect garbage with.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Drivers live for seconds: to compile plans costs more than it brings.
HASTE: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_EXECUTOR: Final = "--executor-id"
_APP: Final = "--app-id"


@dataclass(slots=True)
class ChaosTestimony(DriverTestimony):
    """What one driver said, word for word."""

    said: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Take in one line."""
        DriverTestimony.hear(self, line)
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "event" in found:
                self.said.append(found)

    def all(self, event: str) -> list[dict[str, Any]]:
        """Return everything it said of one kind."""
        return [one for one in self.said if one["event"] == event]


class ChaosDriver(DemoDriver):
    """A running driver. Use it as a context: nothing that it started outlives the block."""

    testimony: ChaosTestimony

    def __init__(self, settings: Settings, log: Path, gate: Gate) -> None:
        self.testimony = ChaosTestimony()
        self.mark = f"{MARK}={os.getpid()}-chaos-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        text = msgspec.json.encode(settings).decode()
        with open(log, "ab") as words:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace_lab.spark.driver", text],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env={**os.environ, **self._own_words(settings, gate), name: value},
                process_group=0,
            )
        self._attend(process, process.stdout)

    @staticmethod
    def _own_words(settings: Settings, gate: Gate) -> dict[str, str]:
        """Return what a driver and its workers find in their environment."""
        plant = settings.plant if is_of(settings.plant, "worker") else ""
        own = {GATE: str(gate.directory), PLANT: plant}
        return {"JDK_JAVA_OPTIONS": JAVA_OPTIONS, **own}

    def __exit__(self, *error: object) -> None:
        kill_all(self.mark)
        super().__exit__(None, None, None)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def tell(self, word: str, **more: object) -> None:
        """Give it one word."""
        with suppress(BrokenPipeError):  # it is dead, which is told by what it does not say
            self.say(json.dumps({"word": word, **more}))

    def begin(self, job: Job) -> None:
        """Have it do a job, once it is warm."""
        self.until("a warm driver", lambda found: "warm" in found.events)
        self.tell("job", job=msgspec.to_builtins(job))

    def until(self, what: str, holds: Callable[[DriverTestimony], bool]) -> None:
        """Wait for something, for long: the machine may have much to do. Or raise Silent."""
        self.listen(PATIENCE_SECONDS, lambda _: holds(self.testimony))
        if not holds(self.testimony):
            said = ", ".join(self.testimony.events[-3:]) or "nothing"
            raise Silent(f"no sign of {what} from the driver; it said last: {said}")

    def kill_tree(self) -> bool:
        """Kill it with its Java and Python workers. True if SIGKILL is what ended it."""
        kill_all(self.mark)
        return self.wait() == -signal.SIGKILL

    def workers(self) -> list[int]:
        """Return its Python workers: what Spark's daemons have forked."""
        homes = {self.pid, *self.executors().values()}
        daemons = {pid for pid in processes() if not _DAEMONS.isdisjoint(command_of(pid))}
        return [
            pid
            for pid in daemons
            if parent_of(pid) in daemons and not homes.isdisjoint(ancestors(pid))
        ]

    def executors(self) -> dict[str, int]:
        """Return its executors on a cluster, by name."""
        app = next((one["app"] for one in self.testimony.all("warm")), "")
        found = {pid: executor_words(pid) for pid in processes()}
        return {name: pid for pid, (own, name) in found.items() if app and own == app}


class Garage:
    """Where drivers come from. Use it as a context: none outlives it.

    The next driver is made ready while another works.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings, self._directory = settings, directory
        self.gate = Gate(directory / "gate")
        self._made: list[ChaosDriver] = []
        self._spare: ChaosDriver | None = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """End every driver."""
        self._spare = None
        while self._made:
            self._made.pop().__exit__(None, None, None)

    def prepare(self) -> None:
        """Start the driver that is taken next."""
        if self._spare is None:
            self._spare = self._start()

    def take(self) -> ChaosDriver:
        """Give the driver that was prepared, or start one."""
        spare, self._spare = self._spare, None
        return self._start() if spare is None or not spare.is_alive else spare

    def _start(self) -> ChaosDriver:
        self._count += 1
        driver = ChaosDriver(
            self._settings, self._directory / f"driver-{self._count}.log", self.gate
        )
        self._made.append(driver)
        return driver


def kill(pid: int) -> bool:
    """Kill one process with SIGKILL. True if that ended it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + GONE_SECONDS
    while is_running(pid):
        if time.monotonic() > deadline:
            raise Silent(f"process {pid} does not die")
        time.sleep(LOOK_SECONDS)
    return True


def kill_all(mark: str) -> None:
    """Kill every process with the mark, and what they start meanwhile."""
    deadline = time.monotonic() + GONE_SECONDS
    while pids := living(mark):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Silent(f"processes do not die: {pids}")
        time.sleep(LOOK_SECONDS)


def is_running(pid: int) -> bool:
    """Say whether a process is there; one that only waits to be collected is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_of(pid: int) -> list[str]:
    """Return the words that a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def ancestors(pid: int) -> Iterator[int]:
    """Give a process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = parent_of(pid)


def holder_of(ports: tuple[int, int]) -> int | None:
    """Return the process whose connection has these ports, the first on its side.

    One port alone may be that of several: connections to others, and such as have ended.
    """
    own, other = (f":{port:04X}" for port in ports)
    inode = "0"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(own) and words[2].endswith(other):
            inode = words[9]
    if inode == "0":
        return None
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for one in folder.iterdir():
                with suppress(OSError):
                    if str(one.readlink()) == f"socket:[{inode}]":
                        return int(folder.parent.name)
    return None


def executor_of(pid: int | None) -> tuple[int, str]:
    """Return the executor that a worker is of: its process and name; 0 if it is of none."""
    for each in ancestors(pid or 0):
        _, name = executor_words(each)
        if name:
            return each, name
    return 0, ""


def executor_words(pid: int) -> tuple[str, str]:
    """Return whose executor a process is, and its name; both empty if it is none."""
    words = command_of(pid)
    if _EXECUTOR not in words or _APP not in words:
        return "", ""
    return words[words.index(_APP) + 1], words[words.index(_EXECUTOR) + 1]


def processes() -> list[int]:
    """Return all processes of this machine."""
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
