"""Machines that share nothing: each has a network, a host name and a disk of its own.

As root, a machine is three Linux namespaces (network, mounts, host name), held by a process
that sleeps. Those of one `MachineNetwork` are joined by a bridge, and no name of one resolves
on another. `disk` is the same path on each of them, and a file system of its own. Without root,
machines are directories, all on loopback: processes and code paths are real, the isolation is
not.

No namespace has a name, so nothing is left to remove: all end with the processes in them, which
are ended by their ids, and by the kernel if this process is killed.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from headrace.cli.demo.child_process import MARK
from headrace_lab.spark.process import kill_all

_NET: Final = "10.77.0"  # of the bridge; no packet leaves it
_DYING: Final = ("setpriv", "--pdeathsig", "KILL")  # with this process
_READY_SECONDS: Final = 10.0
_HIDDEN_VARIABLES: Final = ("AWS_", "PYTHON", "HEADRACE", "SPARK", "PYSPARK", "VIRTUAL_ENV")


def is_isolating() -> bool:
    """Return whether this process may make namespaces."""
    command = ["unshare", "-m", "-n", "-u", "true"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


class Machine:
    """Where processes run."""

    def __init__(
        self, name: str, address: str, disk: Path, holder: int, network: "MachineNetwork"
    ) -> None:
        self.name = name
        self.address = address
        self.disk = disk  # as processes of this machine name it
        self._holder = holder  # 0: not isolated
        self._network = network

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on this machine."""
        if not self._holder:
            return [*_DYING, *words]
        return [*_DYING, "nsenter", "-t", str(self._holder), "-m", "-n", "-u", "--", *words]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return variables: the machine knows nothing of the environment of this process."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_HIDDEN_VARIABLES)
        }
        mark, _, value = self._network.mark.partition("=")
        return {**kept, mark: value, "TMPDIR": str(self.disk / "tmp"), **more}

    def start(
        self, words: Sequence[str], log: Path, more: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a process whose output goes to a file of this machine's host."""
        with open(log, "ab") as file:
            started = subprocess.Popen(
                self.command(words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.environment(more),
                process_group=0,
            )
        self._network.own(started)
        return started

    def run(
        self, words: Sequence[str], more: Mapping[str, str], seconds: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            self.command(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment(more),
            timeout=seconds,
            check=False,
        )

    def seen(self, path: Path) -> Path:
        """Return where this process finds a file of the machine."""
        return Path(f"/proc/{self._holder}/root{path}") if self._holder else path


class MachineNetwork:
    """Makes machines. Use it as a context: no machine outlives the block."""

    def __init__(self, directory: Path, *, isolated: bool) -> None:
        self._directory = directory
        self._isolated = isolated
        self.mark = f"{MARK}={os.getpid()}-machines-{time.monotonic_ns()}"
        self._exits = ExitStack()
        self._count = 0
        self._bridge = 0

    def __enter__(self) -> Self:
        with ExitStack() as failed:
            failed.enter_context(self._exits)
            self._exits.callback(kill_all, self.mark)
            if self._isolated:
                self._bridge = self._held("switch")
                _within(self._bridge, "-n", "ip link add br0 type bridge; ip link set br0 up")
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def own(self, process: "subprocess.Popen[bytes]") -> None:
        """End a process with this network."""
        self._exits.callback(process.wait)
        self._exits.callback(process.kill)

    def add(
        self, name: str, *, hidden: Sequence[Path] = (), bound: Mapping[Path, str] | None = None
    ) -> Machine:
        """Make a machine that does not see the hidden directories.

        `bound` are directories that it sees, by their name on its disk, even below hidden ones.
        """
        if not self._isolated:
            disk = self._directory / name / "disk"
            _directories(disk)
            for source, inner in (bound or {}).items():
                (disk / inner).symlink_to(source)
            return Machine(name, "127.0.0.1", disk, 0, self)
        self._count += 1
        disk, address = self._directory / "disk", f"{_NET}.{9 + self._count}"
        disk.mkdir(exist_ok=True)
        holder = self._held(name)
        port = f"port{self._count}"
        _within(
            self._bridge,
            "-n",
            f"ip link add {port} type veth peer name eth0 netns {holder}; "
            f"ip link set {port} master br0 up",
        )
        _within(
            holder,
            "-n",
            f"ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up",
        )
        mounts = [f"mount -t tmpfs tmpfs '{disk}'", f"mkdir '{disk}/tmp' '{disk}/work'"]
        for source, inner in (bound or {}).items():
            mounts += [
                f"mkdir -p '{disk}/{inner}'",
                f"mount --bind '{source}' '{disk}/{inner}'",
            ]
        mounts += [f"mount -t tmpfs tmpfs '{each}'" for each in hidden]
        _within(holder, "-m", "; ".join(mounts))
        _within(holder, "-u", f"hostname {name}")
        return Machine(name, address, disk, holder, self)

    def _held(self, name: str) -> int:
        """Start the process that keeps a machine's namespaces, and return its id."""
        mark, _, value = self.mark.partition("=")
        holder = subprocess.Popen(
            [*_DYING, "unshare", "-m", "-n", "-u", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            env={**os.environ, mark: value},
            process_group=0,
        )
        self.own(holder)
        own, deadline = Path("/proc/self/ns/uts").readlink(), time.monotonic() + _READY_SECONDS
        while _namespace(holder.pid) in (own, None):
            if holder.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"machine {name} gets no namespaces")
            time.sleep(0.01)
        return holder.pid


def _namespace(pid: int) -> Path | None:
    """Return the last namespace that `unshare` makes, once the sleeping process has it."""
    try:
        if b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            return None
        return Path(f"/proc/{pid}/ns/uts").readlink()
    except OSError:
        return None


def _directories(disk: Path) -> None:
    for each in ("tmp", "work"):
        (disk / each).mkdir(parents=True)


def _within(pid: int, namespace: str, script: str) -> None:
    """Run a shell script in one namespace of a process."""
    command = ["nsenter", "-t", str(pid), namespace, "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{script}: {done.stderr.strip()}")
