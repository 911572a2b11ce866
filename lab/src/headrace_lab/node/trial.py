"""A node over many lives, each ended at some moment, while its producers continue.

Where the moments land depends on the machine, and is counted by what the node was doing.
"""

import asyncio
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from headrace.cli.demo.child_process import Silent
from headrace_lab.harness.tally import Tally
from headrace_lab.node.audit import NodeAudit
from headrace_lab.node.ledger import NodeAccount
from headrace_lab.node.plants import of_client, of_node
from headrace_lab.node.process import NodeProcess, ProducersProcess
from headrace_lab.node.producers import ProducersJob
from headrace_lab.node.workload import NodeWorkload

HOST: Final = "127.0.0.1"
# Below those that a system gives to outgoing connections: a client that finds nobody there
# could otherwise connect to itself, and the node could not come back.
PORTS: Final = range(20_000, 32_000)
SERVING_SECONDS_MAX: Final = 1.5
COMMIT_SECONDS: Final = 0.01  # a commit group takes about so long, with its answers
CREATION_SECONDS_MAX: Final = 5.0  # it fails only if the node died
CHECKPOINT_SECONDS_MAX: Final = 3.0  # by then the age of a Seal has brought one
STOP_SECONDS_MAX: Final = 0.3  # about what a clean stop takes
REST_SECONDS: Final = 10.0  # a node that serves lets its producers rest long before that
IDLE_SECONDS: Final = 0.1  # then a node is at rest, too, with its last commit group marked
LOOK_SECONDS: Final = 0.002
JITTER_SECONDS: Final = 0.06  # a checkpoint takes about so long
AT_REST: Final = "rest"  # nothing is in flight, so the next life shows exactly what was told
# What lives are ended in, and how often.
AIMS: Final = {
    "start": 6,
    "recovery": 27,
    "creation": 9,
    "checkpoint": 22,
    "acknowledgement": 14,
    "publication": 6,
    AT_REST: 4,
    "stop": 4,
    "anywhere": 12,
}
CLEAN: Final = "after a clean stop"


@dataclass(slots=True)
class NodeTrial:
    """One log of a node: its data, its producers, and what they know. Used as a context."""

    root: Path
    chance: Random
    workload: NodeWorkload
    tally: Tally
    plant: str = ""
    patience: float = 120.0
    aims: Mapping[str, int] = field(default_factory=lambda: AIMS)
    address: str = field(init=False)
    account: NodeAccount = field(init=False)
    producers: ProducersProcess = field(init=False)
    start_seconds: float = 1.5  # until a node has its lock: a guess until one was timed
    recovery_seconds: float = 0.3  # from there until it serves: likewise
    _lines: dict[int, int] = field(default_factory=dict)  # acknowledged before this life
    _counted: Counter[str] = field(default_factory=Counter)  # by the audit before
    _was_stopped: bool = False
    _open: ExitStack = field(default_factory=ExitStack)
    _watch: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))
    _orphans: list[Future[float]] = field(default_factory=list)

    def __enter__(self) -> "NodeTrial":
        if self.root.exists():
            shutil.rmtree(self.root)
        ledgers = self.root / "ledgers"
        ledgers.mkdir(parents=True)
        self.address = f"{HOST}:{_free_port(self.chance)}"
        self.account = NodeAccount(str(ledgers))
        plant = of_client(self.plant)
        job = ProducersJob(self.workload, self.address, str(ledgers), plant, self.patience)
        self.producers = self._open.enter_context(ProducersProcess(job))
        self.tally.counts["logs"] += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._watch.shutdown()
        counts = self.tally.counts
        for orphans in self._orphans:
            try:
                counts["orphan ms"] = max(counts["orphan ms"], round(1000 * orphans.result()))
            except Silent as problem:
                self.tally.failures.append(str(problem))
        account = self.account.look()
        sources = account.sources.values()
        counts["rows acknowledged"] += account.acknowledged_rows
        counts["appends acknowledged"] += sum(len(one.lines) for one in sources)
        counts["batches tried"] += sum(one.tried for one in sources)
        counts["transactions"] += account.published_count
        counts["cursors committed"] += account.commit_count
        counts["topics made just before a kill"] += self.producers.testimony.created_count
        self.tally.more["told"] += self.producers.testimony.counts

    @contextmanager
    def node(self) -> Iterator[NodeProcess]:
        """Run the next life. Nobody waits for its children, and they are seen to end."""
        self.account.begin_life()
        data = str(self.root / "data")
        with NodeProcess(data, self.address, of_node(self.plant)) as node:
            yield node
        self._orphans.append(self._watch.submit(node.await_orphans))

    def await_moment(self, node: NodeProcess) -> str:
        """Choose when to end a life, and wait for it; return what was aimed at."""
        (aim,) = self.chance.choices(list(self.aims), list(self.aims.values()))
        if aim == "start":
            node.listen(self.chance.uniform(0, self.start_seconds))
            return aim
        node.await_that("the lock", lambda _: node.testimony.is_locked)
        if aim == "recovery":
            node.listen(self.chance.uniform(0, self.recovery_seconds))
            return aim
        self.await_serving(node)
        match aim:
            case "creation":
                self._await_topic(node)
            case "checkpoint":
                self._await_checkpoint(node)
            case "acknowledgement":
                self._await_more(node, lambda: self.account.acknowledged_rows)
            case "publication":
                self._await_more(node, lambda: self.account.published_count)
            case "rest":
                self.producers.pause(REST_SECONDS)
            case "stop":
                node.ask_to_stop()
                node.listen(self.chance.uniform(0, STOP_SECONDS_MAX))
            case _:
                node.listen(self.chance.uniform(0, SERVING_SECONDS_MAX))
        return aim

    def await_serving(self, node: NodeProcess) -> None:
        """Wait until a node serves, and remember how long that took."""
        said = node.testimony
        node.await_that("the lock", lambda _: said.is_locked)
        locked = node.seconds
        node.await_that("a node that serves", lambda _: said.is_listening)
        if said.is_listening:
            self.start_seconds, self.recovery_seconds = locked, node.seconds - locked

    def kill(self, node: NodeProcess, aim: str) -> None:
        """End a life with SIGKILL."""
        tally = self.tally
        open_rows = self.account.look().open_rows
        phase = node.phase
        if not node.kill():
            if not node.testimony.is_stopped:
                tally.failures.append(f"a node ended by itself in {phase}")
            self._note_stop(node)  # it was asked to, and the kill came too late
            return
        is_busy = phase.startswith("serving") and open_rows
        tally.landed[f"{phase}, appends" if is_busy else phase] += 1
        tally.more["aimed at"][aim] += 1
        tally.counts["rows in flight at kills"] += (
            open_rows if phase.startswith("serving") else 0
        )
        self._judge_life(node)

    def stop(self, node: NodeProcess) -> None:
        """End a life with SIGTERM, which must be clean."""
        node.ask_to_stop()
        self._note_stop(node)

    def _note_stop(self, node: NodeProcess) -> None:
        code = node.wait()
        if code != 0 or not node.testimony.is_stopped:
            self.tally.failures.append(f"SIGTERM ended a node with {code}, not with 0")
        self.tally.counts["stops with SIGTERM"] += 1
        self._judge_life(node)
        self._was_stopped = True

    def resume(self) -> None:
        """Let the producers work, if they rest."""
        self.producers.order("go")

    def audit(self, rest_seconds: float) -> None:
        """Let the producers come to rest, and compare everything."""
        if not self.producers.pause(rest_seconds):
            self.tally.failures.append(f"producers did not rest within {rest_seconds:.0f} s")
        self.tally.failures += self.producers.testimony.problems
        time.sleep(IDLE_SECONDS)
        audit = NodeAudit(self.address, self.account.look(), self.workload)
        asyncio.run(audit.run())
        self.tally.cases += 1
        self.tally.counts["rows read back"] += audit.counts.pop("rows", 0)
        self.tally.counts["batches there that were never acknowledged"] += self._new(
            audit.counts, "unheard"
        )
        self.tally.counts["appends answered by a later life"] += self._new(
            audit.counts, "repeated"
        )
        self.tally.more["wrong"] += audit.counts
        self.tally.failures += audit.problems

    def _new(self, counts: Counter[str], what: str) -> int:
        """Return how much more there is of something than the audit before had counted."""
        count = counts.pop(what, 0)
        before, self._counted[what] = self._counted[what], count
        return count - before

    def _judge_life(self, node: NodeProcess) -> None:
        said = node.testimony
        self.tally.failures += said.problems
        for line in said.recovered:
            self.tally.found[_kind(line)] += 1
            is_lie = line.startswith("recovered") and CLEAN not in line
            if self._was_stopped and is_lie:
                self.tally.failures.append(f"after SIGTERM a group {line}")
        self._was_stopped = False
        for number, source in self.account.look().sources.items():
            before, now = self._lines.get(number, 0), len(source.lines)
            self.tally.counts["reconnects"] += 0 < before < now
            self._lines[number] = now

    def _await_topic(self, node: NodeProcess) -> None:
        """Have a topic made, and wait until its maker was told so."""
        said = self.producers.testimony
        wanted = said.created_count + 1
        self.producers.order("create")
        self.producers.listen(CREATION_SECONDS_MAX, lambda _: said.created_count >= wanted)
        node.listen(self.chance.choice((0.0, JITTER_SECONDS)) * self.chance.random())

    def _await_checkpoint(self, node: NodeProcess) -> None:
        """Wait until files of a checkpoint are being written, and a moment longer."""
        ends = node.seconds + CHECKPOINT_SECONDS_MAX
        while node.is_alive and node.seconds < ends and not node.is_at_checkpoint:
            node.listen(LOOK_SECONDS)
        node.listen(self.chance.choice((0.0, JITTER_SECONDS)) * self.chance.random())

    def _await_more(self, node: NodeProcess, count: Callable[[], int]) -> None:
        """Wait until more was acknowledged than before this life, and a moment longer."""
        self.account.look()
        before, ends = count(), node.seconds + SERVING_SECONDS_MAX
        while node.is_alive and node.seconds < ends and count() == before:
            node.listen(LOOK_SECONDS)
            self.account.look()
        node.listen(self.chance.uniform(0, COMMIT_SECONDS))


def _kind(line: str) -> str:
    """Return what a recovery said, without its numbers."""
    if line.startswith("recovered"):
        return CLEAN if CLEAN in line else "after an unclean stop"
    for words in ("created a new group", "cut the unfinished tail", "rewrote"):
        if line.startswith(words):
            return words
    return "mended"


def _free_port(chance: Random) -> int:
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
