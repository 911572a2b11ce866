"""The steps of a demo: a node that is killed and restarted, producers, and the comparison."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rich.status import Status

import headrace
from headrace.cli.demo.checks import COMPARED, compare
from headrace.cli.demo.child_process import Broken, Silent
from headrace.cli.demo.demo_rows import PAUSE_S, PRODUCERS, SCHEMA, TOPIC, Sources
from headrace.cli.demo.node_process import COMMAND, DemoNode, free_address
from headrace.cli.demo.transcript import RoundShape, Transcript

LOOK_SECONDS = 0.2  # between two reads of the ledgers
SHARD = "1"  # the group with the rows


class DemoStage:
    """A node and its producers. A context manager: none of them outlives it."""

    def __init__(self, transcript: Transcript, directory: Path, pause: float = PAUSE_S) -> None:
        self.transcript = transcript
        self.data = str(directory / "data")
        self.address = free_address()
        self.sources = Sources(directory, self.address, pause)
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self.node = DemoNode(self.data, self.address, COMMAND)
        self._exits.callback(self._end_node)
        try:
            self.node.await_ready()
            self.transcript.started(self.node.pid, self.address, self.node.ready_seconds)
            with headrace.connect(self.address) as log:
                log.create_topic(TOPIC, SCHEMA, partitions=PRODUCERS)
            self._exits.enter_context(self.sources)
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._exits.close()

    def _end_node(self) -> None:
        self.node.__exit__(None, None, None)

    @property
    def acknowledged(self) -> int:
        """Number of rows in the ledgers."""
        return sum(claim.acknowledged for claim in self.sources.claims())

    def write(self, seconds: float) -> None:
        """Let the producers work for `seconds`, at least until rows are acknowledged."""
        began, before = time.monotonic(), self.acknowledged
        with Status("", console=self.transcript.console) as status:
            while self.sources.failure is None:
                now, spent = self.acknowledged, time.monotonic() - began
                if spent >= seconds and now > before:
                    break
                status.update(f"writing: {now:,} rows acknowledged")
                self.node.listen(max(LOOK_SECONDS / 10, min(seconds - spent, LOOK_SECONDS)))
                if not self.node.is_alive:
                    raise Silent(f"the node ended by itself: {self.node.testimony.problems}")
        self.transcript.wrote(self.acknowledged - before, time.monotonic() - began)

    def kill_node(self, seconds: float) -> None:
        """Kill the node, which ran for `seconds`, and restart it."""
        pid = self.node.pid
        self.node.kill()
        claims = self.sources.claims()
        acknowledged = sum(claim.acknowledged for claim in claims)
        in_doubt = sum(claim.sent for claim in claims) - acknowledged
        self.transcript.killed(pid, in_doubt)
        self._end_node()
        self.node = DemoNode(self.data, self.address, COMMAND)
        self.node.await_ready()
        with headrace.connect(self.address) as log:
            said = log.recovery_report().get(SHARD, ())
        self.transcript.recovered(
            self.node.pid,
            RoundShape(
                acknowledged=acknowledged,
                in_doubt=in_doubt,
                seconds=round(seconds, 3),
                ready_seconds=round(self.node.ready_seconds, 3),
                recovery=tuple(said),
            ),
        )
        if self.node.testimony.refused:  # rows are unavailable, which a kill does not excuse
            raise Broken("; ".join(self.node.testimony.refused))

    def finish(self) -> None:
        """Wait until all sent rows are acknowledged, and compare them with the ledgers."""
        self.sources.finish()
        if self.sources.failure is not None:
            self.transcript.gave_up(f"a producer gave up: {self.sources.failure}")
        began = time.monotonic()
        with headrace.connect(self.address) as log:
            rows = log.topic(TOPIC).read(columns=COMPARED).to_table()
        found = compare(rows, self.sources.claims())
        self.transcript.compare(self.acknowledged, found, time.monotonic() - began)


def perform(transcript: Transcript, directory: Path, lives: list[float]) -> None:
    """Run the node for each life, with a kill after all but the last; then compare."""
    with DemoStage(transcript, directory) as stage:
        for seconds in lives[:-1]:
            stage.write(seconds)
            stage.kill_node(seconds)
        stage.write(lives[-1])
        stage.finish()
