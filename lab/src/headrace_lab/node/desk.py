"""The common part of a node's clients: how they connect and retry, which errors they expect.

While a node is being killed, any error is expected that says that a request did not happen or
may have happened; everything else is a problem.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from headrace.client.log import AsyncLog
from headrace.client.public import connect_async
from headrace.client.topic import AsyncTopic
from headrace.errors import HeadraceError, Unavailable, Unknown, WriterUnknown
from headrace_lab.node.ledger import Notes
from headrace_lab.node.workload import SCHEMA, NodeWorkload, TopicPlan

PAUSE_SECONDS: Final = 0.02  # between two tries of what failed

_T = TypeVar("_T")


class Unexpected(Exception):
    """Something that kills do not explain. The text says what."""


@dataclass(slots=True)
class Desk:
    """What all workers share, and how each of them tries."""

    workload: NodeWorkload
    address: str
    ledgers: str
    counts: Counter[str] = field(default_factory=Counter)

    async def connect(self, patience: float) -> AsyncLog:
        return await self.persist(lambda: connect_async(self.address, timeout=patience))

    async def topic(self, log: AsyncLog, plan: TopicPlan, notes: Notes) -> AsyncTopic:
        """Find a topic, or make it: whichever happens first."""
        notes.say("creating", plan.name)
        topic = await self.persist(
            lambda: log.create_topic(
                plan.name,
                SCHEMA,
                partitions=plan.partition_count,
                key=plan.key,
                if_not_exists=True,
            )
        )
        notes.acknowledge("created", topic.name, topic.created)
        return topic

    async def persist(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Try until it happens."""
        while True:
            try:
                return await work()
            except HeadraceError as error:
                self.expect(error)
                await asyncio.sleep(PAUSE_SECONDS)

    def expect(self, error: HeadraceError) -> None:
        """Count an error that a kill explains, and raise any other."""
        if isinstance(error, WriterUnknown) or not isinstance(error, Unavailable | Unknown):
            raise Unexpected(f"{type(error).__name__}: {error}") from error
        self.counts[type(error).__name__] += 1


class Worker(Protocol):
    """One task. It rests when everything it did is settled."""

    name: str

    async def begin(self) -> None: ...

    async def turn(self) -> None: ...

    async def rest(self) -> None: ...
