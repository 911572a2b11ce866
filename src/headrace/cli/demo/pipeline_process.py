"""The pipeline of a demo, seen from outside: its file, and the drivers that run it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.cli.demo.child_process import MARK, MarkedProcess, Silent
from headrace.cli.demo.demo_rows import TOPIC

NAME: Final = "orders"
TABLE: Final = "table"
RATE_ROUNDS: Final = 5  # that a rate is averaged over
RATE_SECONDS_MIN: Final = 0.1  # a shorter time is just that of reading its output
START_SECONDS: Final = 120.0  # for Spark to start on a busy machine
SQL: Final = "select source, number, customer, amount, _hr_partition, _hr_offset from source"


def write_definition(directory: Path, address: str) -> Path:
    """Write the pipeline's file, as a user would."""
    lines = {"name": NAME, "topic": TOPIC, "address": address, "table": TABLE, "sql": SQL}
    file = directory / f"{NAME}.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in lines.items()))
    return file


@dataclass(slots=True)
class DriverTestimony:
    """The events of one driver."""

    events: list[str] = field(default_factory=list)
    version: int = 0  # of the table
    rows: int = 0
    lag: int = 0
    heard: list[tuple[float, int]] = field(default_factory=list)  # time, and rows until then

    def hear(self, line: str) -> None:
        """Process one line of its output."""
        try:
            found = json.loads(line)
            self.events.append(str(found["event"]))
        except (ValueError, TypeError, KeyError):
            return  # a line of Spark's own
        if self.events[-1] == "round":
            self.version, self.lag = int(found["version"]), int(found["lag"])
            self.rows += int(found["rows"])
            self.heard.append((time.monotonic(), self.rows))

    @property
    def rate(self) -> float:
        """Recent rate of rows loaded per second; 0 while unknown."""
        if len(self.heard) < 2:
            return 0.0
        (began, before), *_, (ended, after) = self.heard[-RATE_ROUNDS:]
        spent = ended - began
        return (after - before) / spent if spent > RATE_SECONDS_MIN else 0.0

    @property
    def told(self) -> str:
        """Its progress as text."""
        rate = f"{self.rate:,.0f} rows/s, " if self.rate else ""
        rows = f"{self.rows:,} rows loaded, {rate}lag {self.lag:,}"
        return f"table version {self.version}: {rows}"

    @property
    def rounds(self) -> int:
        return self.events.count("round")

    @property
    def lost(self) -> int:
        """Commits lost to another driver."""
        return self.events.count("lost")


class DemoDriver(MarkedProcess):
    """A running driver. A context manager: neither it nor its Java outlives the block."""

    testimony: DriverTestimony

    def __init__(self, file: Path) -> None:
        self.testimony = DriverTestimony()
        self.mark = f"{MARK}={os.getpid()}-driver-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.demo.pipeline_driver", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, name: value},
            process_group=0,
        )
        self._attend(process, process.stdout)

    def __exit__(self, *error: object) -> None:
        super().__exit__(None, None, None)
        self.await_orphans()

    def say(self, *words: str) -> None:
        """Send it commands, one per line."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{word}\n" for word in words).encode())
        self._process.stdin.flush()

    def until(self, what: str, holds: Callable[[DriverTestimony], bool]) -> None:
        """Wait until `holds` holds, or raise Silent."""
        self.listen(START_SECONDS, holds)
        if not holds(self.testimony):
            said = ", ".join(self.testimony.events[-3:]) or "nothing"
            raise Silent(f"no sign of {what} from the driver; its last events: {said}")
