"""The witness: holds a group to what its processes acknowledged, whatever killed them.

An entry counts as acknowledged once the witness has read so, or once a recovery has shown it,
while there was power.
From then on every recovery must show it, in its place, once; and nothing that was never tried.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import Op
from headrace_lab.counter.testimony import Testimony, Writer
from headrace_lab.counter.workload import Replay
from headrace_lab.counter.writer import Findings, Job

PROBLEM_COUNT_MAX: Final = 5  # more of the same kind tells no more


@dataclass(slots=True)
class Witness:
    """What must hold, over the lives of many processes on one group."""

    replay: Replay
    acknowledged: Op = Op(0)  # this and all before must be there for ever
    tried: Op = Op(0)  # nothing above this can be there
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def hear(self, testimony: Testimony) -> None:
        """Judge one process: what its recovery showed, then what it acknowledged."""
        if testimony.findings is not None:
            self._judge(testimony.findings)
        for op, tip in testimony.acknowledged:
            if self.replay.tip(op).hex() != tip:
                self._blame(f"op {op} was acknowledged with another content")
        for op in testimony.lies:
            self._blame(f"op {op} was acknowledged after a sync of the journal had failed")
        self.tried = max(self.tried, testimony.tried, testimony.last_acknowledged)
        self.acknowledged = max(self.acknowledged, testimony.promised)

    def audit(self, job: Job) -> Testimony:
        """Recover in a process of its own, compare everything, and return what it said."""
        with Writer(msgspec.structs.replace(job, task="recover", plant="")) as writer:
            writer.wait()
            testimony = writer.testimony
        if testimony.findings is None:
            self._blame(f"recovery ended without a group: {testimony.failed or 'no reason'}")
        elif not testimony.is_done:
            self._blame(f"entries could not be read back: {testimony.failed or 'no reason'}")
        else:
            self._compare(testimony.findings, testimony.entries)
        self.hear(testimony)
        return testimony

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
