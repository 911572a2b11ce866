"""Kill a writer with SIGKILL at random moments, recover, and hold it to what it acknowledged.

The moments are drawn from a seed; where in the writer they land is up to the machine.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

import msgspec

from headrace.model.ids import Op
from headrace_lab.counter.testimony import Testimony, Writer
from headrace_lab.counter.witness import Witness
from headrace_lab.counter.workload import Replay
from headrace_lab.counter.writer import Job


@dataclass(frozen=True, slots=True)
class Moments:
    """When a writer is killed: so many seconds after it began to recover."""

    seed: int
    earliest: float = 0.0
    latest: float = 0.25


@dataclass(frozen=True, slots=True)
class Started:
    """A writer runs, and will be killed after so many seconds."""

    number: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Killed:
    """It is dead, and everything it said is heard."""

    number: int
    landed: bool  # the signal ended it; else it had ended by itself
    phase: str  # what it was at
    group_count: int  # commit groups it had acknowledged
    entry_count: int  # entries in them
    said: Testimony


@dataclass(frozen=True, slots=True)
class Checked:
    """A recovery was compared with everything acknowledged so far."""

    number: int
    acknowledged: Op  # heard before this recovery, by all processes so far
    tried: Op  # likewise
    found: Testimony
    problems: list[str] = field(default_factory=list)

    @property
    def head(self) -> Op:
        return self.found.findings.head if self.found.findings else Op(0)

    @property
    def lost_count(self) -> int:
        return max(0, self.acknowledged - self.head)

    @property
    def invented_count(self) -> int:
        return max(0, self.head - self.tried)

    @property
    def unheard_count(self) -> int:
        """Entries that had reached the disk before anybody heard them acknowledged."""
        return max(0, self.head - self.acknowledged)


Event = Started | Killed | Checked


def kill_rounds(job: Job, count: int, moments: Moments) -> Generator[Event]:
    """Write, kill, recover and check, `count` times on one group; a problem ends it."""
    chance = Random(f"{moments.seed} moments")
    witness = Witness(Replay(job.workload))
    for number in range(1, count + 1):
        seconds = chance.uniform(moments.earliest, moments.latest)
        job = msgspec.structs.replace(job, life=chance.getrandbits(32))
        with Writer(job) as writer:
            yield Started(number, writer.pid, seconds)
            yield _killed(number, writer, seconds)
            witness.hear(writer.testimony)
        acknowledged, tried = witness.acknowledged, witness.tried
        found = witness.audit(job)
        yield Checked(number, acknowledged, tried, found, list(witness.problems))
        if not witness.holds:
            return


def _killed(number: int, writer: Writer, seconds: float) -> Killed:
    writer.await_that("recovery", lambda said: said.is_recovering or said.findings is not None)
    writer.listen(seconds)
    landed = writer.kill()
    said = writer.testimony
    head = said.findings.head if said.findings else said.last_acknowledged
    return Killed(
        number,
        landed,
        said.phase,
        group_count=len(said.acknowledged),
        entry_count=max(0, said.last_acknowledged - head),
        said=said,
    )
