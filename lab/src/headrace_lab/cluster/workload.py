"""The clients of a simulated group: each opens a session and sends one request after another.

An unanswered request is sent again under the same number, to another replica. Now and then a
client opens a second session (as its twin would), which fences the first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from headrace.errors import HeadraceError
from headrace.journal.entry import REGISTER
from headrace.model.proposal import EntryProposal
from headrace_lab.cluster.machine import ADD, add
from headrace_lab.cluster.oracles import Oracles
from headrace_lab.cluster.swarm import SeedCounts

PATIENCE_MS = 150  # then it asks somebody else
PAUSE_MS = 12  # after an answer


@dataclass(slots=True)
class Client:
    """One client. `number` counts its requests; a retry keeps it."""

    name: bytes
    session: int = 0  # 0: none is open
    fenced: int = 0  # the session before it: its twin may still use it
    number: int = 0
    request: EntryProposal | None = None
    since: int = 0  # newest op that anybody had been answered when it was first sent
    attempt: int = 0
    target: int = 0


Ask = Callable[[int, EntryProposal, object], None]
At = Callable[..., None]


@dataclass(slots=True)
class Workload:
    """All clients. `left` counts the requests that are still to be answered."""

    rng: Random
    replicas: int
    oracles: Oracles
    tally: SeedCounts
    at: At
    ask: Ask
    left: int
    clients: list[Client] = field(default_factory=list)
    newest: int = 0  # highest op that a client was told of
    refused: int = 0

    def begin(self, count: int) -> None:
        for number in range(count):
            client = Client(bytes([number + 1]) * 16, target=number % self.replicas)
            self.clients.append(client)
            self.at(self.rng.randrange(1, 20), self.next, client)

    @property
    def is_done(self) -> bool:
        return self.left <= 0 and all(client.request is None for client in self.clients)

    def next(self, client: Client) -> None:
        """Send something new."""
        if self.left <= 0 or client.request is not None:
            return
        self.left -= 1
        self.tally.requests += 1
        client.since = self.newest
        client.request = self._request(client)
        self.send(client)

    def _request(self, client: Client) -> EntryProposal:
        if client.session == 0 or self.rng.random() < 0.01:
            return EntryProposal(REGISTER, writer=client.name)
        body = add(f"c{self.rng.randrange(4)}", self.rng.randrange(1, 100))
        session = client.session
        if client.fenced and self.rng.random() < 0.05:
            session = client.fenced
        else:
            client.number += 1
        return EntryProposal(
            ADD, body, writer=client.name, version=client.number, created=session
        )

    def send(self, client: Client) -> None:
        assert client.request is not None
        client.attempt += 1
        self.ask(client.target, client.request, (client.name, client.attempt))
        self.at(PATIENCE_MS, self.again, client, client.attempt)

    def again(self, client: Client, attempt: int) -> None:
        """Nobody answered: ask another one."""
        if client.request is not None and client.attempt == attempt:
            client.target = (client.target + 1) % self.replicas
            self.send(client)

    def answer(self, ticket: object, result: object) -> None:
        """Take an answer, if it is to what the client is waiting for."""
        assert isinstance(ticket, tuple)
        client = next(one for one in self.clients if one.name == ticket[0])
        if client.request is None or client.attempt != ticket[1]:
            return
        if isinstance(result, HeadraceError):
            client.target = (client.target + 1) % self.replicas
            client.attempt += 1
            self.at(self.rng.randrange(5, 25), self._retry, client, client.attempt)
            return
        assert isinstance(result, tuple)
        op, value = result
        self._settle(client, op, value)

    def _retry(self, client: Client, attempt: int) -> None:
        if client.request is not None and client.attempt == attempt:
            self.send(client)

    def _settle(self, client: Client, op: int, value: object) -> None:
        request = client.request
        assert request is not None
        is_twin = request.operation == ADD and request.created != client.session
        if isinstance(value, int) and request.operation == ADD and not is_twin:
            key = (client.name, client.session, client.number)
            self.oracles.replied(key, op, value, client.since)
        self.newest = max(self.newest, op)
        client.request = None
        if request.operation == REGISTER:
            assert isinstance(value, int)
            client.fenced = client.session
            client.session, client.number = value, 0
        elif not isinstance(value, int) and not is_twin:
            client.session = 0
            self.refused += 1
        self.at(self.rng.randrange(1, PAUSE_MS), self.next, client)
