"""What `headrace demo` shows: each phase as it happens, what it means, and the verdict."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headrace.cli.demo.checks import Compared
from headrace.cli.demo.demo_rows import PRODUCERS, TOPIC
from headrace.cli.terminal.output import JsonShape

_LABEL_WIDTH = 10


class Verdict(StrEnum):
    """How a demo ended."""

    HELD = "held"
    BROKEN = "broken"
    NOT_SHOWN = "not shown"


class RoundShape(JsonShape, frozen=True, kw_only=True):
    """One life of the node that was ended with SIGKILL, and its return."""

    acknowledged: int  # rows, by the ledgers, when it died
    in_doubt: int  # rows that were sent and not acknowledged then
    seconds: float  # it had run
    ready_seconds: float  # from the next start until it listened
    recovery: tuple[str, ...]  # what the next start said of the group with the rows


class Demo(JsonShape, frozen=True, kw_only=True):
    """What `headrace demo --json` prints."""

    verdict: str
    seed: int
    kills: int  # of the node and, with --spark, of drivers
    acknowledged: int
    found: int
    lost: int
    twice: int
    invented: int
    problems: tuple[str, ...]
    rounds: tuple[RoundShape, ...]
    seconds: float
    checks: dict[str, bool]  # with --spark: what else was looked at, and whether it held


@dataclass(slots=True)
class Transcript:
    """The events of one demo, told and collected."""

    seed: int
    console: Console
    rounds: list[RoundShape] = field(default_factory=list)
    acknowledged: int = 0
    compared: Compared | None = None
    silence: str | None = None  # why it ended early
    fault: str | None = None  # what must never be, and ended it early
    checks: dict[str, bool] = field(default_factory=dict)  # of more than the rows in the log
    driver_kills: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if self.fault is not None:
            return Verdict.BROKEN
        if self.compared is None:
            return Verdict.NOT_SHOWN
        if self.compared.problems or not all(self.checks.values()):
            return Verdict.BROKEN
        is_shown = self.kills and all(each.acknowledged for each in self.rounds)
        return Verdict.HELD if is_shown and self.silence is None else Verdict.NOT_SHOWN

    @property
    def kills(self) -> int:
        """How often somebody was killed: the node, or a driver."""
        return len(self.rounds) + self.driver_kills

    def open(self, directory: Path, kills: str, *, is_kept: bool, spark: bool) -> None:
        kept = f"{directory} (kept)" if is_kept else f"{directory.name} (removed at the end)"
        title = "Log and table: write, kill -9, race, prove, lie"
        plain = "Write, kill -9, recover, compare"
        self.console.print(Text(title if spark else plain, style="bold"))
        self.console.print(
            f"A real node on a real disk, {kills}, seed {self.seed}, files in {kept}",
            style="dim",
        )
        self.console.print()

    def started(self, pid: int, address: str, seconds: float) -> None:
        self.line("start", f"node {pid} listens on {address} after {seconds:.1f} s")
        self.line(
            "write",
            f"{PRODUCERS} producers send rows to {TOPIC}, and write down what the node says",
        )
        self.line("", "is on disk: the rows in these ledgers are acknowledged")

    def wrote(self, rows: int, seconds: float) -> None:
        rate = rows / seconds if seconds > 0 else 0
        text = f"{rows:,} rows acknowledged in the last {seconds:.1f} s: {rate:,.0f} rows/s"
        self.line("", text, "green")

    def killed(self, pid: int, in_doubt: int) -> None:
        self.line("kill -9", f"node {pid} is gone, with no chance to write anything", "yellow")
        self.line(
            "", f"{in_doubt:,} rows were on their way: sent or waiting, and not acknowledged"
        )

    def killed_driver(self, pid: int, where: str) -> None:
        self.driver_kills += 1
        self.line("kill -9", f"driver {pid} is gone, {where}", "yellow")

    def recovered(self, pid: int, told: RoundShape) -> None:
        self.rounds.append(told)
        ready = f"node {pid} listens after {told.ready_seconds:.1f} s"
        self.line("recover", ready)
        for line in told.recovery:
            self.line("", line)
        self.line(
            "", "the producers find it and repeat what is in doubt, under the same numbers"
        )

    def compare(self, acknowledged: int, found: Compared, seconds: float) -> None:
        self.acknowledged, self.compared = acknowledged, found
        self.line(
            "compare",
            f"{found.found:,} rows read back in {seconds:.1f} s, "
            f"{acknowledged:,} acknowledged by the ledgers",
        )
        for problem in found.problems:
            self.line("", problem, "bold red")
        if not found.problems:
            self.line(
                "", "each acknowledged row is there once, in order, at its offset", "green"
            )

    def gave_up(self, reason: str) -> None:
        self.silence = reason
        self.line("", reason, "red")

    def broke(self, fault: str) -> None:
        self.fault = fault
        self.line("", f"acknowledged rows are out of reach: {fault}", "bold red")

    def close(self, seconds: float) -> None:
        self.seconds = seconds
        kills, rows = count(self.kills, "kill"), f"{self.acknowledged:,} rows"
        found = self.compared
        endings = {
            Verdict.HELD: (f"HELD: {kills}, {rows} acknowledged, 0 lost, 0 twice", "green"),
            Verdict.BROKEN: (
                f"BROKEN: {kills}, "
                + (
                    "the node does not serve what it acknowledged"
                    if found is None
                    else f"{rows} acknowledged, {found.lost:,} lost, {found.twice:,} twice"
                ),
                "red",
            ),
            Verdict.NOT_SHOWN: (
                f"NOT SHOWN: {kills}, {rows} compared; nothing is proved by that",
                "yellow",
            ),
        }
        text, colour = endings[self.verdict]
        self.console.print()
        self.console.print(Text(f"{text} ({seconds:.1f} s)", style=f"bold {colour}"))

    def shape(self) -> Demo:
        """Return the whole demo as one object."""
        found = self.compared or Compared(0, 0, 0, 0, ())
        ended = tuple(each for each in (self.silence, self.fault) if each is not None)
        return Demo(
            verdict=self.verdict.value,
            seed=self.seed,
            kills=self.kills,
            acknowledged=self.acknowledged,
            found=found.found,
            lost=found.lost,
            twice=found.twice,
            invented=found.invented,
            problems=found.problems + ended,
            rounds=tuple(self.rounds),
            seconds=round(self.seconds, 3),
            checks=self.checks,
        )

    def check(self, what: str, text: str, is_held: bool) -> None:
        """Tell what one more check has found; the demo holds only if all do."""
        self.checks[what] = is_held
        self.line("", text, "green" if is_held else "bold red")

    def line(self, label: str, text: str, style: str = "") -> None:
        """Tell one thing."""
        line = Text().append(f"  {label:<{_LABEL_WIDTH}}", style="bold cyan")
        self.console.print(line.append(text, style=style))


def count(number: int, noun: str) -> str:
    """Say how many there are of something."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
