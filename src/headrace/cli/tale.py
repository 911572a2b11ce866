"""What `headrace demo` shows: each phase as it happens, the verdict, or one JSON object."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headrace.sim.kill import Checked, Killed, Started

_LABEL_WIDTH = 10
_PHASES = {
    "start": "before it had begun",
    "recovery": "while it was still opening the group",
    "append": "in the middle of an append",
    "checkpoint": "in the middle of a checkpoint",
    "between": "between two commit groups",
    "done": "after it was done",
}


class Verdict(StrEnum):
    """How a demo ended."""

    HELD = "held"
    BROKEN = "broken"
    NOT_SHOWN = "not shown"


@dataclass(slots=True)
class Tale:
    """The events of one demo, told and collected."""

    seed: int
    console: Console
    rounds: list[tuple[Started, Killed, Checked]] = field(default_factory=list)
    silence: str | None = None  # why it ended early
    seconds: float = 0.0
    _started: Started | None = None
    _killed: Killed | None = None

    @property
    def landed_count(self) -> int:
        return sum(killed.landed for _, killed, _ in self.rounds)

    @property
    def entry_count(self) -> int:
        return sum(killed.entry_count for _, killed, _ in self.rounds)

    @property
    def verdict(self) -> Verdict:
        if any(checked.problems for *_, checked in self.rounds):
            return Verdict.BROKEN
        shown = self.landed_count == len(self.rounds) and self.entry_count > 0
        return Verdict.HELD if shown and self.silence is None else Verdict.NOT_SHOWN

    def open(self, directory: Path, rounds: int, is_kept: bool) -> None:
        kept = "kept" if is_kept else "removed at the end"
        self.console.print(Text("Write, kill -9, recover, report", style="bold"))
        self.console.print(
            f"{_count(rounds, 'round')} on one group, seed {self.seed}, files in "
            f"{directory.name if not is_kept else directory} ({kept})",
            style="dim",
        )

    def started(self, event: Started) -> None:
        self._started = event
        self.console.print()
        self.console.print(Text(f"Round {event.number}", style="bold"))
        self._line(
            "write",
            f"process {event.pid} appends; each commit group is synced, then acknowledged",
        )

    def killed(self, event: Killed) -> None:
        assert self._started is not None
        self._killed = event
        said = event.said
        self._line(
            "",
            f"acknowledged {_count(event.entry_count, 'entry', 'entries')} in "
            f"{_count(event.group_count, 'commit group')}; "
            f"{_count(said.sealed_count, 'checkpoint')}",
        )
        where = _PHASES[event.phase]
        if event.phase == "append":
            first = said.last_acknowledged or (said.findings.head if said.findings else 0)
            where += f", with {_ops(first + 1, said.tried)} on the way"
        if event.landed:
            self._line("kill -9", f"after {self._started.seconds:.2f} s, {where}", "yellow")
        else:
            self._line("kill -9", "came too late: the writer had ended by itself", "red")

    def checked(self, event: Checked) -> None:
        assert self._started is not None
        assert self._killed is not None
        self.rounds.append((self._started, self._killed, event))
        findings = event.found.findings
        lines = findings.report.lines() if findings else ["the group could not be opened"]
        self._line("recover", lines[0])
        for line in lines[1:]:
            self._line("", line)
        if event.problems:
            for problem in event.problems:
                self._line("check", problem, "bold red")
            return
        self._line("check", _kept(event), "green")
        if event.unheard_count:
            more = _count(event.unheard_count, "entry", "entries")
            self._line("", f"{more} more had been written and not acknowledged yet: kept too")
        if findings:
            self._line(
                "", f"state {findings.digest[:16]}… equals a replay of the log from op 1"
            )

    def gave_up(self, reason: str) -> None:
        self.silence = reason
        self._line("", reason, "red")

    def close(self, seconds: float) -> None:
        self.seconds = seconds
        kills = _count(self.landed_count, "kill")
        entries = _count(self.entry_count, "acknowledged entry", "acknowledged entries")
        endings = {
            Verdict.HELD: (f"HELD: {kills}, {entries}, none lost, none invented", "green"),
            Verdict.BROKEN: (f"BROKEN after {kills} and {entries}: see above", "red"),
            Verdict.NOT_SHOWN: (f"NOT SHOWN: {kills} landed, {entries}", "yellow"),
        }
        text, colour = endings[self.verdict]
        self.console.print()
        self.console.print(Text(f"{text} ({seconds:.1f} s)", style=f"bold {colour}"))

    def as_json(self) -> dict[str, object]:
        """Return the whole demo as one object. Its keys are stable."""
        checks = [checked for *_, checked in self.rounds]
        return {
            "demo": "kill",
            "verdict": str(self.verdict),
            "seed": self.seed,
            "kills": self.landed_count,
            "acknowledged": self.entry_count,
            "lost": max((check.lost_count for check in checks), default=0),
            "invented": max((check.invented_count for check in checks), default=0),
            "problems": checks[-1].problems if checks else [],
            "rounds": [_round(*each) for each in self.rounds],
            "seconds": round(self.seconds, 3),
        }

    def _line(self, label: str, text: str, style: str = "") -> None:
        line = Text().append(f"  {label:<{_LABEL_WIDTH}}", style="bold cyan")
        self.console.print(line.append(text, style=style))


def _round(started: Started, killed: Killed, checked: Checked) -> dict[str, object]:
    findings = checked.found.findings
    report = findings.report if findings else None
    return {
        "round": killed.number,
        "killed": killed.landed,
        "during": killed.phase,
        "groups": killed.group_count,
        "entries": killed.entry_count,
        "checkpoints": killed.said.sealed_count,
        "acknowledged_op": checked.acknowledged,
        "head": checked.head,
        "snapshot_op": report.snapshot_op if report else None,
        "replayed": report.replayed if report else None,
        "rewritten": report.rewritten if report else None,
        "cut_ops": [report.cut.first, report.cut.last] if report and report.cut else None,
        "digest": findings.digest if findings else None,
        "report": report.lines() if report else [],
        "seconds": round(started.seconds, 3),
    }


def _kept(event: Checked) -> str:
    if not event.acknowledged:
        return "nothing was acknowledged yet, nothing is there that was not tried"
    return (
        f"{_ops(1, event.acknowledged)}: all acknowledged, all there, once, in order, unchanged"
    )


def _ops(first: int, last: int) -> str:
    return f"op {first:,}" if first == last else f"ops {first:,} to {last:,}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
