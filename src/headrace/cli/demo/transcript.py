"""Output of `headrace demo`: each phase as it happens, what it means, and the verdict."""

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
    """One life of the node, ended with SIGKILL, and its restart."""

    acknowledged: int  # rows in the ledgers when it died
    in_doubt: int  # rows sent but not acknowledged at that time
    seconds: float  # that it ran
    ready_seconds: float  # from the restart until it listened
    recovery: tuple[str, ...]  # what the restart reported about the group with the rows


class Demo(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace demo --json`."""

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
    checks: dict[str, bool]  # with --spark: further checks, and whether each held


@dataclass(slots=True)
class Transcript:
    """The events of one demo, printed and collected."""

    seed: int
    console: Console
    rounds: list[RoundShape] = field(default_factory=list)
    acknowledged: int = 0
    compared: Compared | None = None
    silence: str | None = None  # why it ended early
    fault: str | None = None  # something that must never happen, and ended it early
    checks: dict[str, bool] = field(default_factory=dict)  # besides the rows in the log
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
        """Number of kills of the node and of drivers."""
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
            f"{PRODUCERS} producers send rows to {TOPIC}, and record in ledgers which rows",
        )
        self.line("", "the node acknowledged as on disk")

    def wrote(self, rows: int, seconds: float) -> None:
        rate = rows / seconds if seconds > 0 else 0
        text = f"{rows:,} rows acknowledged in the last {seconds:.1f} s: {rate:,.0f} rows/s"
        self.line("", text, "green")

    def killed(self, pid: int, in_doubt: int) -> None:
        self.line("kill -9", f"node {pid} was killed with no chance to write", "yellow")
        self.line("", f"{in_doubt:,} rows were in flight: sent or waiting, not acknowledged")

    def killed_driver(self, pid: int, where: str) -> None:
        self.driver_kills += 1
        self.line("kill -9", f"driver {pid} was killed {where}", "yellow")

    def recovered(self, pid: int, told: RoundShape) -> None:
        self.rounds.append(told)
        ready = f"node {pid} listens after {told.ready_seconds:.1f} s"
        self.line("recover", ready)
        for line in told.recovery:
            self.line("", line)
        self.line("", "the producers reconnect and resend rows in doubt with the same versions")

    def compare(self, acknowledged: int, found: Compared, seconds: float) -> None:
        self.acknowledged, self.compared = acknowledged, found
        self.line(
            "compare",
            f"{found.found:,} rows read back in {seconds:.1f} s, "
            f"{acknowledged:,} acknowledged according to the ledgers",
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
        self.line("", f"acknowledged rows are unavailable: {fault}", "bold red")

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
                f"NOT SHOWN: {kills}, {rows} compared; this proves nothing",
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
        """Report one more check; the demo holds only if all checks do."""
        self.checks[what] = is_held
        self.line("", text, "green" if is_held else "bold red")

    def line(self, label: str, text: str, style: str = "") -> None:
        """Print one line."""
        line = Text().append(f"  {label:<{_LABEL_WIDTH}}", style="bold cyan")
        self.console.print(line.append(text, style=style))


def count(number: int, noun: str) -> str:
    """Format a number with its noun."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
