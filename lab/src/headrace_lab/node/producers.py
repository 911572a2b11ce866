"""The process of a node's producers, which outlives every kill of the node.

    in     pause | go | create | stop
    out    running | paused COUNTS | created TOPIC | problem TEXT | stopped

Between `paused` and `go` nothing is in flight, so that an audit can tell what must be there.
COUNTS is a JSON object: how often workers got which error that a kill explains.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace_lab.node.desk import Desk, Unexpected, Worker
from headrace_lab.node.plants import planted
from headrace_lab.node.workers import Appender, Follower, Founder, Transactor
from headrace_lab.node.workload import KEYED, SHARED, NodeWorkload

IMPATIENT_EVERY: Final = 4  # one producer of so many gives up early


class ProducersJob(msgspec.Struct, frozen=True):
    """Everything the process has to know."""

    workload: NodeWorkload
    address: str
    ledgers: str
    plant: str = ""
    patience: float = 120.0  # seconds: nobody is given up while nodes come back
    impatience: float = 2.0  # about one start of a node: many appends end unknown


@dataclass(slots=True)
class Crew:
    """All workers on one loop, and whether they may work."""

    job: ProducersJob
    desk: Desk
    workers: list[Worker] = field(default_factory=list)
    founder: Founder = field(init=False)
    is_stopping: bool = False
    _may_go: asyncio.Event = field(default_factory=asyncio.Event)
    _resting: set[str] = field(default_factory=set)
    _rested: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        job, desk = self.job, self.desk
        self.founder = Founder(desk, job.patience, say)
        for source in job.workload.producers:
            is_patient = (source + 1) % IMPATIENT_EVERY
            patience = job.patience if is_patient else job.impatience
            self.workers.append(Appender(desk, source, patience))
        self.workers += [
            Transactor(desk, one, job.patience) for one in job.workload.transactors
        ]
        self.workers += [Follower(desk, plan, job.patience) for plan in (KEYED, SHARED)]
        self.workers.append(self.founder)
        self._may_go.set()

    async def run(self) -> None:
        """Work until told to stop."""
        orders = asyncio.create_task(self._take_orders())
        say("running")
        async with asyncio.TaskGroup() as tasks:
            for worker in self.workers:
                tasks.create_task(self._work(worker))
        await orders
        say("stopped")

    async def _work(self, worker: Worker) -> None:
        try:
            await worker.begin()
            while not self.is_stopping:
                if self._may_go.is_set():
                    await worker.turn()
                else:
                    await worker.rest()
                    await self._rest(worker)
        except Unexpected as problem:
            say(f"problem {worker.name}: {problem}")
            self._note_rest(worker)

    async def _rest(self, worker: Worker) -> None:
        self._note_rest(worker)
        await self._may_go.wait()
        self._resting.discard(worker.name)

    def _note_rest(self, worker: Worker) -> None:
        self._resting.add(worker.name)
        if len(self._resting) == len(self.workers):
            self._rested.set()

    async def _take_orders(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while (order := (await reader.readline()).strip()) not in (b"", b"stop"):
            match order:
                case b"pause":
                    self._may_go.clear()
                    self._rested.clear()
                    if len(self._resting) < len(self.workers):
                        await self._rested.wait()
                    say(f"paused {msgspec.json.encode(self.desk.counts).decode()}")
                case b"go":
                    self._may_go.set()
                case b"create":
                    self.founder.wanted += 1
                case _:
                    say(f"problem orders: {order!r} is none")
        self.is_stopping = True
        self._may_go.set()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _run(job: ProducersJob) -> None:
    await Crew(job, Desk(job.workload, job.address, job.ledgers)).run()


def main() -> None:
    """Do one job, given as JSON."""
    job = msgspec.json.decode(sys.argv[1], type=ProducersJob)
    with planted(job.plant):
        asyncio.run(_run(job))


if __name__ == "__main__":
    main()
