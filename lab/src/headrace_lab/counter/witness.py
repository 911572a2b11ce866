"""The witness: holds a group to what its processes acknowledged, however they were killed.

An entry counts as acknowledged once the witness has read its acknowledgement, or once a
recovery has shown it while there was power. From then on every recovery must show it, in its
place, once; and nothing that was never tried.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import Op
from headrace_lab.counter.workload import Replay
from headrace_lab.counter.writer import Findings
from headrace_lab.harness.process import Testimony

PROBLEM_COUNT_MAX: Final = 5  # more of the same kind tells no more


@dataclass(slots=True)
class GroupTestimony(Testimony):
    """Everything one process said; `writer.py` has the grammar."""

    tried: Op = Op(0)
    acknowledged: list[tuple[Op, str]] = field(default_factory=list)  # op and tip, in order
    entries: dict[Op, str] = field(default_factory=dict)  # checksums read back, by op
    is_dark: bool = False  # the power was cut: from here on nothing said is a promise
    promised: Op = Op(0)  # acknowledged, or shown by a recovery, while there was power
    lies: list[Op] = field(default_factory=list)  # acknowledged after a failed sync

    recovered_as: ClassVar = Findings

    @property
    def last_acknowledged(self) -> Op:
        return self.acknowledged[-1][0] if self.acknowledged else Op(0)

    def at_work(self) -> str:
        if self.sealing is not None:
            return "checkpoint"
        return "append" if self.tried > self.last_acknowledged else "between"

    def on_recovered(self) -> None:
        self._promise(self.recovered.head)

    def hear_more(self, word: str, rest: str) -> None:
        match word:
            case "trying":
                self.tried = Op(int(rest))
            case "acknowledged":
                op, _, tip = rest.partition(" ")
                self.acknowledged.append((Op(int(op)), tip))
                self._promise(Op(int(op)))
            case "entry":
                op, _, checksum = rest.partition(" ")
                self.entries[Op(int(op))] = checksum
            case _:
                Testimony.hear_more(self, word, rest)

    def _promise(self, op: Op) -> None:
        if self.has_failed_sync:
            self.lies.append(op)
        if not self.is_dark:
            self.promised = max(self.promised, op)


@dataclass(slots=True)
class Witness:
    """What must hold, over the lives of many processes on one group."""

    replay: Replay
    acknowledged: Op = Op(0)  # this and all before must be there forever
    tried: Op = Op(0)  # nothing above this can be there
    problems: list[str] = field(default_factory=list)

    def hear(self, testimony: GroupTestimony) -> None:
        """Judge one process: what its recovery showed, then what it acknowledged."""
        if testimony.recovered is not None:
            self._judge(testimony.recovered)
        for op, tip in testimony.acknowledged:
            if self.replay.tip(op).hex() != tip:
                self._blame(f"op {op} was acknowledged with another content")
        for op in testimony.lies:
            self._blame(f"op {op} was acknowledged after a sync of the journal had failed")
        self.tried = max(self.tried, testimony.tried, testimony.last_acknowledged)
        self.acknowledged = max(self.acknowledged, testimony.promised)

    def audit(self, said: GroupTestimony) -> None:
        """Judge a process that recovered in peace, and read all its entries back."""
        if said.recovered is None:
            self._blame(f"recovery ended without a group: {said.failed or 'no reason'}")
        elif not said.is_done:
            self._blame(f"entries could not be read back: {said.failed or 'no reason'}")
        else:
            self._compare(said.recovered, said.entries)
        self.hear(said)

    def _judge(self, found: Findings) -> None:
        if found.head < self.acknowledged:
            lost = self.acknowledged - found.head
            self._blame(
                f"{lost} acknowledged entries are lost: "
                f"up to op {self.acknowledged} acknowledged, up to op {found.head} recovered"
            )
        if found.head > self.tried:
            self._blame(
                f"{found.head - self.tried} entries are invented: nothing above op "
                f"{self.tried} was ever tried, up to op {found.head} recovered"
            )
        if self.replay.digest(found.head).hex() != found.digest:
            self._blame(f"the state at op {found.head} is not what its log says")
        if damage := _damage(found.report):
            self._blame(f"damage reported after a crash alone: {damage}")

    def _compare(self, found: Findings, entries: dict[Op, str]) -> None:
        """The journal holds exactly the entries it should, and those chain by construction."""
        wanted = [Op(number) for number in range(found.first, found.head + 1)]
        if list(entries) != wanted:
            missing = len(set(wanted) - set(entries))
            self._blame(
                f"the journal must hold ops {found.first} to {found.head}, in order, and "
                f"nothing else: {missing} of them are missing"
            )
        wrong = [
            op for op, checksum in entries.items() if self.replay.tip(op).hex() != checksum
        ]
        for op in wrong[:PROBLEM_COUNT_MAX]:
            self._blame(f"op {op} is not the entry that was written")

    def _blame(self, problem: str) -> None:
        self.problems.append(problem)


def _damage(report: RecoveryReport) -> str:
    """A crash leaves torn tails and leftovers, never damage."""
    found = [
        (report.faulty, "faulty entries"),
        (report.fell_back, "a snapshot passed over"),
        (report.quarantined, "files in quarantine"),
    ]
    return ", ".join(words for there, words in found if there)
