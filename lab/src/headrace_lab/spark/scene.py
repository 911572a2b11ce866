"""One run of chaos: a node, producers, two proxies, and the current driver."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import headrace
from headrace.cli.demo.child_process import Silent
from headrace.cli.demo.demo_rows import SCHEMA, TOPIC
from headrace.cli.demo.pipeline_process import NAME, SQL, TABLE
from headrace.cli.demo.steps import DemoStage as NodeStage
from headrace.cli.demo.transcript import Transcript
from headrace.model.results import PublishResult
from headrace.spark.pipeline.driver_reports import group_of
from headrace.spark.stores.location import Location, location_of
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_record import LogSource, Record, at, look
from headrace.spark.worker.files import PREFIX
from headrace.wire.file_messages import FetchFile
from headrace.wire.messages import Message
from headrace.wire.read_messages import Fetch
from headrace.wire.write_messages import PublishRequest, StageRequest
from headrace_lab.spark.check import COPY
from headrace_lab.spark.driver import Job
from headrace_lab.spark.process import (
    ChaosDriver,
    ChaosTestimony,
    Garage,
    executor_of,
    holder_of,
)
from headrace_lab.spark.proxy import Asked, Hold, Proxy
from headrace_lab.spark.s3_proxy import S3Proxy
from headrace_lab.spark.s3_server import S3Server, settings_of

PAUSE_S: Final = 0.5  # between a producer's batches: Spark needs the machine
COPY_PARTITIONS: Final = 3  # with a key: a task makes a stage for each
KEPT: Final = (Fetch, FetchFile, StageRequest, PublishRequest)  # what evidence is made of
STORE_TIMEOUT: Final = 120.0  # for which calls of a store are repeated
PATIENCE_SECONDS: Final = 300.0  # for one thing to happen, on a machine with much to do
FINISH_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an S3, empty at first, and the proxy through which pipelines reach it."""

    table: Location
    proxy: S3Proxy

    @classmethod
    def made(cls, server: S3Server, proxy: S3Proxy) -> Self:
        """Make one in a running S3."""
        url = f"s3://{server.make_bucket()}/tables/{TABLE}"
        proxy.clear()
        return cls(location_of(url, settings_of(server.endpoint)), proxy)


class ChaosScene:
    """Use it as a context: nobody but the driver, which may go on, outlives it."""

    def __init__(
        self,
        transcript: Transcript,
        directory: Path,
        garage: Garage,
        bucket: Bucket | None,
        *,
        is_watching: bool,
        is_copy: bool,
    ) -> None:
        """Make one. With `is_watching` the executors of a cluster that read are noted.

        With `is_copy` the pipeline copies segments once they are sealed.
        """
        self.is_watching = is_watching
        self.is_copy = is_copy
        self.stage = NodeStage(transcript, directory, PAUSE_S)
        self.bucket = bucket
        # As we look at it: no proxy is in between.
        self.location = at(str(directory / TABLE)) if bucket is None else bucket.table
        self.gate = garage.gate
        self.garage = garage
        self._directory = directory
        self._exits = ExitStack()
        # Connections that have asked for rows: their ports, and the executor's process, 0 if
        # it is of none that lives.
        self.askers: dict[tuple[int, int], int] = {}
        self.pair: tuple[str, ...] = ()  # executors of one driver, at once, that have read
        self.driver: ChaosDriver

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(self.stage)
            with headrace.connect(self.stage.address) as log:
                log.create_topic(COPY, SCHEMA, partitions=COPY_PARTITIONS, key="number")
                self.source = LogSource.reading(NAME, log.topic(TOPIC))
            self.to_table = exits.enter_context(Proxy(self.stage.address, KEPT, self._note))
            self.to_copy = exits.enter_context(Proxy(self.stage.address, KEPT))
            self.gate.free()
            self.gate.hide_disk(is_hidden=False)
            file = self._define()
            self._job = Job(
                file=str(file),
                topic=TOPIC,
                copy=COPY,
                address=self.to_copy.address,
                checkpoint=str(self._directory / "checkpoint"),
            )
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
        self.gate.free()

    def _define(self) -> Path:
        """Write the pipeline's file, as a user would."""
        lines = {"name": NAME, "topic": TOPIC, "address": self.to_table.address}
        lines |= {"tail": "sealed"} if self.is_copy else {"sql": SQL}
        lines["table"] = TABLE if self.bucket is None else self.bucket.table.url
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        if self.bucket is not None:
            settings = settings_of(self.bucket.proxy.endpoint, timeout=STORE_TIMEOUT)
            text += "[store]\n"
            text += "".join(f"{key} = {json.dumps(each)}\n" for key, each in settings.items())
        file = self._directory / f"{NAME}.toml"
        file.write_text(text, encoding="utf-8")
        return file

    def begin(self, driver: ChaosDriver | None) -> None:
        """Have a driver do the run's job: the one of the run before, or another."""
        self.driver = driver or self.garage.take()
        self.driver.begin(self._job)

    def _note(self, asked: Asked) -> None:
        """See which executor asks for rows."""
        ports = asked.line.ports
        if self.is_watching and isinstance(asked.request, Fetch) and ports not in self.askers:
            self.askers[ports] = executor_of(holder_of(ports))[0]

    def reading(self) -> list[str]:
        """Return the driver's executors that are alive and have asked for rows."""
        readers = set(self.askers.values())
        return sorted(name for name, pid in self.driver.executors().items() if pid in readers)

    def record(self) -> Record:
        """Look at the table: how far the pipeline is."""
        return look(self.location, self.source)

    def leftovers(self, *, newest_number: bool = False) -> set[str]:
        """Return the files that no version of the table names.

        With `newest_number` those that the next commit could add.
        """
        found = {each.name for each in orphans_of(self.location)}
        if not newest_number:
            return found
        prefix = f"{PREFIX}{NAME}-{self.record().number}-"
        return {each for each in found if each.startswith(prefix)}

    def tell_at(
        self, word: str, step: str, then: Callable[[], object] = lambda: None
    ) -> ChaosTestimony:
        """Ask the driver for something at a step, do what leads it there, and wait for it."""
        testimony = self.driver.testimony
        said = len(testimony.all("at"))
        self.driver.tell(word, step=step)
        then()
        self.await_that(step, lambda: len(testimony.all("at")) > said)
        return testimony

    def went_on(self) -> tuple[int, str]:
        """Have the next driver begin: from which row on it must, and a word if it did."""
        ends = self.record().ends
        self.begin(None)
        self.await_that("a round", lambda: self.driver.testimony.rounds)
        place, first = sum(ends.values()), self.driver.testimony.all("round")[0]
        is_so = first["starts"] == [ends[number] for number in sorted(ends)]
        return place, f"the next driver went on at row {place:,}" * is_so

    def cursor(self) -> dict[int, int]:
        """Return where the pipeline's group is, as the log knows it."""
        with headrace.connect(self.stage.address) as log:
            found = log.topic(TOPIC).cursors(group_of(NAME))
        return {each.partition: each.next for each in found}

    def await_that(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until something is so, and hear the driver meanwhile; or raise Silent."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if not self.driver.is_alive:
                raise Silent(f"no sign of {what}: the driver ended by itself")
            if time.monotonic() > deadline:
                said = ", ".join(self.driver.testimony.events[-3:])
                raise Silent(f"no sign of {what}; the driver said last: {said or 'nothing'}")
            self.driver.listen(_LOOK_SECONDS, lambda _: bool(holds()))

    def await_held(self, proxy: Proxy, hold: Hold) -> Asked:
        """Wait until the proxy holds what it was told to; or raise Silent."""
        try:
            self.await_that("what is to be held", lambda: hold.caught)
        except Silent:
            proxy.forget()
            raise
        assert hold.caught is not None
        return hold.caught

    def await_work(self) -> None:
        """Wait until rows come into the table and into the copy, from now on."""
        rounds, publishes = self.driver.testimony.rounds, self.published()
        self.await_that("rows in the table", lambda: self.driver.testimony.rounds > rounds)
        self.await_that("rows in the copy", lambda: self.published() > publishes)

    def published(self) -> int:
        """Return how many batches of the copy were published."""
        return sum(
            isinstance(each.answer, PublishResult) and not each.answer.repeated
            for each in list(self.to_copy.asked)
        )

    def kill_driver(self) -> int:
        """Kill the driver with all that it has started; return its number."""
        if not self.driver.kill_tree():
            raise Silent("the driver ended before it was killed")
        return self.driver.pid

    def kill_node(self) -> int:
        """Kill the node and start it again; return the number of the one that died."""
        node = self.stage.node
        self.stage.kill_node(0.0)
        if node.wait() != -signal.SIGKILL:
            raise Silent("the node ended before it was killed")
        return node.pid

    def finish(self) -> None:
        """Have all rows acknowledged, and brought to both ends."""
        self.gate.free()
        self.stage.sources.finish()
        if self.stage.sources.failure is not None:
            raise Silent(f"a producer gave up: {self.stage.sources.failure}")
        done = len(self.driver.testimony.all("done"))
        self.driver.tell("end")
        deadline = time.monotonic() + FINISH_SECONDS
        while len(self.driver.testimony.all("done")) == done:
            if not self.driver.is_alive or time.monotonic() > deadline:
                said = self.driver.testimony.said[-1:]
                raise Silent(f"the driver does not come to an end; it said last: {said}")
            self.driver.listen(_LOOK_SECONDS)


def is_publish(asked: Asked) -> bool:
    """Return whether it is a Publish of some rows that is not refused, as by a busy node."""
    is_refused = asked.answer is not None and not isinstance(asked.answer, PublishResult)
    request = asked.request
    return isinstance(request, PublishRequest) and bool(request.stages) and not is_refused


def again(asked: Sequence[Asked], first: Message) -> Asked | None:
    """Return the answered Publish of the same batch of the same query."""
    assert isinstance(first, PublishRequest)
    for each in asked:
        request = each.request
        if (
            isinstance(request, PublishRequest)
            and (request.writer, request.version) == (first.writer, first.version)
            and isinstance(each.answer, PublishResult)
        ):
            return each
    return None
