"""The stages of an attack: what is sent, and how each answer is checked."""

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from xxhash import xxh3_128_digest

from headrace.errors import BadFrame, HeadraceError
from headrace.model.results import AppendResult, PublishResult, StageResult
from headrace.wire import topic_messages, write_messages
from headrace.wire.codec import decode
from headrace.wire.greeting import ErrorReply
from headrace.wire.messages import Message
from headrace_lab.hostile.bodies import (
    BOMBS,
    FLAT,
    FLAT_TOPIC,
    LARGEST_BOMB,
    NESTED,
    NESTED_TOPIC,
    Body,
    BombPlan,
    bomb,
    hostile_body,
)
from headrace_lab.hostile.frames import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    Hostile,
    hostile,
    noise,
)
from headrace_lab.hostile.peer import PATIENCE_SECONDS, Heard, Peer, Said
from headrace_lab.hostile.prey import ANSWERS, PREY_SCHEMA, PREY_TOPIC, Prey
from headrace_lab.hostile.rows import (
    Accepted,
    GoodClient,
    Wrong,
    append_to,
    check_accepted,
    make_topic,
)
from headrace_lab.hostile.server import Gone, ServerProcess

STRINGS_PER_CONNECTION: Final = 50
RENEWAL: Final = 0.01  # how often a worn topic is made anew
GOOD_EVERY: Final = 200  # cases between two looks of the good client
PROBLEMS_MAX: Final = 10  # then the rest would say the same
_SHOWN: Final = 160  # bytes of a frame in a failure


@dataclass(slots=True)
class AttackCounts:
    """What landed and what came back."""

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    figures: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def hear(self, stage: str, heard: Heard) -> None:
        """Count the answers of one connection."""
        for failed in heard.failures:
            self.answers[f"{stage}: {failed.code}"] += 1
        if not heard.answers:
            self.answers[f"{stage}: cut off without a word"] += 1


@dataclass(slots=True)
class Attack:
    """One server, the good client beside, and what is known so far."""

    server: ServerProcess
    good: GoodClient
    chance: Random
    tally: AttackCounts = field(default_factory=AttackCounts)
    accepted: list[Accepted] = field(default_factory=list)  # must be there at the end
    patience: float = PATIENCE_SECONDS
    problems_max: int = PROBLEMS_MAX
    _case_count: int = 0

    def peer(self) -> Peer:
        return Peer(self.server.port, self.patience)

    def problem(self, stage: str, kind: str, what: str, data: bytes = b"") -> None:
        shown = f" [{data[:_SHOWN].hex()}]" if data else ""
        self.tally.problems.append(f"{stage}: {kind}: {what}{shown}")

    def is_over(self) -> bool:
        """Say whether enough went wrong."""
        return len(self.tally.problems) >= self.problems_max

    def step(self, stage: str) -> None:
        """After each case: look whether the server and the good client are well."""
        self._case_count += 1
        if self._case_count % GOOD_EVERY == 0:
            self.look(stage)

    def look(self, stage: str) -> None:
        """Have the good client work, and read what the server wrote."""
        try:
            self.good.work()
        except (Wrong, Gone) as error:
            self.problem(stage, "good client", str(error))
            self.good.close()
        for line in self.server.complaints()[:1]:
            self.problem(stage, "log", line)
        if not self.server.is_alive:
            raise Gone("the server has died")


class Stage(Protocol):
    """One way to attack."""

    name: str

    def one(self) -> int:
        """Send one case, or several; return how many."""


def drive(attack: Attack, stage: Stage, count: int, seconds: float = 0.0) -> None:
    """Send `count` cases, or as many as the time allows."""
    began, done = time.monotonic(), 0
    while done < count and not attack.is_over():
        if seconds and time.monotonic() - began > seconds:
            break
        before = len(attack.tally.problems)
        try:
            done += stage.one()
            attack.step(stage.name)
        except (Gone, HeadraceError) as error:
            if len(attack.tally.problems) == before:
                attack.problem(stage.name, "server", f"{type(error).__name__}: {error}")
            if not attack.server.is_alive:
                raise Gone("the server has died") from error
    attack.look(stage.name)


@dataclass(slots=True)
class Strings:
    """Noise, before and after the handshake."""

    attack: Attack
    name: str = "strings"

    def one(self) -> int:
        """Send strings on one connection until it is cut off."""
        attack, chance, count = self.attack, self.attack.chance, 0
        kind = chance.choice(("before the handshake", "after the handshake"))
        with attack.peer() as peer:
            if kind == "after the handshake":
                peer.greet()
            for data in noise(chance):
                count += 1
                if not peer.send(data) or peer.look() or count >= STRINGS_PER_CONNECTION:
                    break
            peer.finish()
            heard = peer.hear()
            peer.close(reset=chance.random() < 0.5)
        attack.tally.sent[f"strings: {kind}"] += count
        attack.tally.sent["strings: connections"] += 1
        attack.tally.hear(self.name, heard)
        if heard.problem:
            attack.problem(self.name, kind, heard.problem)
        if heard.successes:
            attack.problem(self.name, kind, f"answered by {heard.successes[0].message}")
        return count


@dataclass(slots=True)
class Frames:
    """Mutated frames, one on each connection."""

    attack: Attack
    prey: Prey
    name: str = "frames"
    slowest: float = 0.0  # seconds until a topic was there again

    @classmethod
    def begin(cls, attack: Attack) -> "Frames":
        with attack.peer().greet() as peer:
            return cls(attack, Prey.make(peer))

    def one(self) -> int:
        """Send one frame and judge what comes back."""
        attack, chance = self.attack, self.attack.chance
        if self.prey.is_worn and chance.random() < RENEWAL:
            began = time.monotonic()
            with attack.peer().greet() as peer:
                self.prey = Prey.make(peer)
            self.slowest = max(self.slowest, time.monotonic() - began)
            attack.tally.figures["slowest new topic"] = f"{self.slowest:.1f} s"
        case = hostile(self.prey.letter(chance), chance)
        with attack.peer().greet() as peer:
            peer.send(case.data)
            if not case.must_cut:
                peer.finish()
            heard = peer.hear()
            peer.close(reset=chance.random() < 0.5)
        attack.tally.sent[f"frames: {case.kind}"] += 1
        attack.tally.hear(self.name, heard)
        self._judge(case, heard)
        return 1

    def _judge(self, case: Hostile, heard: Heard) -> None:
        if heard.problem:
            self._wrong(case, heard.problem)
        if case.must_fail and heard.successes:
            self._wrong(case, f"answered by {heard.successes[0].message}")
        if case.kind == "not changed at all" and not heard.answers:
            self._wrong(case, "not answered")
        for said in heard.successes:
            self.attack.tally.accepted[f"frames: {type(said.message).__name__}"] += 1
            self._judge_success(case, said)

    def _judge_success(self, case: Hostile, said: Said) -> None:
        """What was accepted must be a request, answered as such, and done as it says."""
        try:
            request, body = opened(case.data)
        except (BadFrame, ValueError) as error:
            self._wrong(case, f"no request at all, answered by {said.message}: {error}")
            return
        self.prey.heed(request)
        if not isinstance(said.message, ANSWERS.get(type(request), ErrorReply)):
            self._wrong(case, f"{request} answered by {said.message}")
        if isinstance(request, write_messages.AppendRequest) and isinstance(
            said.message, AppendResult
        ):
            try:
                self._read_back(request, said.message.start, body)
            except Wrong as error:
                self._wrong(case, str(error))

    def _read_back(
        self, request: write_messages.AppendRequest, start: int, body: bytes
    ) -> None:
        """Read what was appended, in the newest schema: another frame may have added one."""
        where = topic_messages.PartitionInfo(request.namespace, request.created)
        with self.attack.peer().greet() as peer:
            info, _ = peer.ask(topic_messages.DescribeTopic(PREY_TOPIC))
            assert isinstance(info, topic_messages.TopicInfo)
            version = len(info.schemas)
            taken = Accepted(where, PREY_SCHEMA, start, request.row_count, body, version)
            check_accepted(peer, taken)

    def _wrong(self, case: Hostile, what: str) -> None:
        self.attack.problem(self.name, case.kind, what, case.data)


@dataclass(slots=True)
class Bodies:
    """Hostile Arrow bodies in Append and Stage, many on a connection."""

    attack: Attack
    topics: dict[int, topic_messages.TopicInfo]  # by the id of the schema
    name: str = "bodies"
    _peer: Peer | None = None

    @classmethod
    def begin(cls, attack: Attack) -> "Bodies":
        with attack.peer().greet() as peer:
            flat = make_topic(peer, FLAT_TOPIC, FLAT)
            nested = make_topic(peer, NESTED_TOPIC, NESTED)
        return cls(attack, {id(FLAT): flat, id(NESTED): nested})

    def one(self) -> int:
        """Send one body and judge what comes back."""
        self.send(hostile_body(self.attack.chance))
        return 1

    def bombs(self, plans: Sequence[BombPlan] = BOMBS) -> None:
        """Send every bomb, and the good client between them."""
        for plan in plans:
            if self.attack.is_over():
                return
            self.send(bomb(plan))
            self.attack.look(self.name)

    def burst(self, count: int) -> None:
        """Send many bombs at once. The good client waits for none of them."""
        attack, body = self.attack, bomb(LARGEST_BOMB)
        attack.tally.sent["bodies: bombs at once"] += count
        with attack.peer().greet() as peer:
            for _ in range(count):
                # Of a writer that nobody knows: judged in full, and then refused.
                where = self.topics[id(FLAT)].partitions[0]
                peer.send_request(append_to(where, body.row_count, version=2), [body.data])
            attack.look(self.name)
            for _ in range(count):
                said = peer.next_answer()
                attack.tally.hear(self.name, Heard([said]))
                if not isinstance(said.message, ErrorReply):
                    self._wrong(body, f"answered by {said.message}")

    def send(self, body: Body) -> None:
        """Send a body as rows of its topic, appended or staged."""
        attack = self.attack
        attack.tally.sent[f"bodies: {body.kind}"] += 1
        if self._peer is None:
            self._peer = attack.peer().greet()
        info = self.topics[id(body.schema)]
        request = self._request(info, body)
        try:
            said = self._peer.try_ask(request, [body.data])
        except Gone:
            self._peer.close()
            self._peer = None
            raise
        attack.tally.hear(self.name, Heard([said]))
        if isinstance(said.message, ErrorReply):
            return
        attack.tally.accepted[f"bodies: {body.kind}"] += 1
        if body.must_fail:
            self._wrong(body, f"answered by {said.message}")
        try:
            self._judge(self._peer, info, request, body, said.message)
        except Wrong as error:
            self._wrong(body, str(error))

    def close(self) -> None:
        """Let go of the connection; the next body makes another."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _request(
        self, info: topic_messages.TopicInfo, body: Body
    ) -> write_messages.AppendRequest | write_messages.StageRequest:
        where = info.partitions[0]
        checksum = xxh3_128_digest(body.data)
        if body.wrong_checksum:
            checksum = xxh3_128_digest(checksum)
        head = (where.namespace, where.created, secrets.token_bytes(16), 1, 1, body.row_count)
        if self.attack.chance.random() < 0.3:
            return write_messages.StageRequest(*head, secrets.token_bytes(16), 0, checksum)
        return write_messages.AppendRequest(*head, checksum)

    def _judge(
        self,
        peer: Peer,
        info: topic_messages.TopicInfo,
        request: write_messages.AppendRequest | write_messages.StageRequest,
        body: Body,
        answer: Message,
    ) -> None:
        """Have accepted rows published if they were staged, and read back."""
        where = info.partitions[0]
        if isinstance(answer, StageResult):
            answer = self._published(peer, info, request.writer, answer)
        if not isinstance(answer, AppendResult):
            raise Wrong(f"{type(request).__name__} was answered by {answer}")
        if answer.end - answer.start != body.row_count:
            raise Wrong(f"{body.row_count} rows were answered by {answer}")
        taken = Accepted(where, body.schema, answer.start, body.row_count, body.data)
        check_accepted(peer, taken)
        self.attack.accepted.append(taken)

    def _published(
        self,
        peer: Peer,
        info: topic_messages.TopicInfo,
        writer: bytes,
        staged: StageResult,
    ) -> Message:
        namespace = info.partitions[0].namespace
        request = write_messages.PublishRequest(
            namespace, info.created, writer, 1, (staged.receipt,)
        )
        try:
            published, _ = peer.ask(request)
        except HeadraceError as error:
            raise Wrong(f"what was staged cannot be published: {error!r}") from error
        if not isinstance(published, PublishResult) or len(published.ranges) != 1:
            raise Wrong(f"Publish was answered by {published}")
        (one,) = published.ranges
        return AppendResult(one.start, one.end, repeated=False)

    def _wrong(self, body: Body, what: str) -> None:
        self.attack.problem(self.name, body.kind, what, body.data)


def opened(data: bytes) -> tuple[Message, bytes]:
    """Read the first frame of what was sent, as its sender means it."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        raise ValueError("it does not open as a frame")
    _, kind, _, _, _, meta_size, body_size, _, _ = HEADER.unpack_from(data)
    end = HEADER_SIZE + meta_size
    if len(data) < end + body_size:
        raise ValueError("it is not whole")
    return decode(kind, data[HEADER_SIZE:end]), data[end : end + body_size]
