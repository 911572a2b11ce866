"""The target of mutated frames: a topic of its own, and a valid frame of every message.

Some mutated frames are rightly accepted: they trim, purge and delete. So the topic is recreated
from time to time, and everything that they created is removed.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.model import batch
from headrace.model.ids import Offset
from headrace.model.namespace import Namespace
from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    DiscardResult,
    FetchedPiece,
    Hold,
    PartitionRange,
    PublishResult,
    Receipt,
    StageResult,
    StoredCursor,
    TrimResult,
)
from headrace.model.schema import canonical, encode_schema
from headrace.wire import (
    erase_messages,
    file_messages,
    greeting,
    lease_messages,
    read_messages,
    topic_messages,
    write_messages,
)
from headrace.wire.messages import Message
from headrace_lab.hostile.bodies import FLAT_TOPIC, NESTED_TOPIC
from headrace_lab.hostile.frames import Letter, letter
from headrace_lab.hostile.peer import Peer
from headrace_lab.hostile.rows import GOOD_TOPIC, append_to, make_topic

PREY_TOPIC: Final = "prey/frames"
PREY_SCHEMA: Final = canonical(pa.schema([("id", pa.int64()), ("note", pa.string())]))
_NEWER: Final = canonical(pa.schema([*PREY_SCHEMA, ("more", pa.string())]))
# Nobody's prey.
KEPT_TOPICS: Final = (GOOD_TOPIC, FLAT_TOPIC, NESTED_TOPIC)
KEPT_STREAMS: Final = ("default", *(name.partition("/")[0] for name in KEPT_TOPICS))

# What a request may be answered by, besides Failed.
ANSWERS: Final[Mapping[type[Message], type[Message]]] = {
    greeting.Ping: greeting.Pong,
    greeting.GetStatus: greeting.StatusReply,
    topic_messages.CreateStreamRequest: topic_messages.Changed,
    topic_messages.DeleteStreamRequest: topic_messages.Changed,
    topic_messages.CreateTopicRequest: topic_messages.TopicInfo,
    topic_messages.AlterTopicRequest: topic_messages.TopicInfo,
    topic_messages.AddPartitionsRequest: topic_messages.TopicInfo,
    topic_messages.AddSchemaRequest: topic_messages.TopicInfo,
    topic_messages.DeleteTopicRequest: topic_messages.Changed,
    topic_messages.DescribeTopic: topic_messages.TopicInfo,
    topic_messages.ListTopics: topic_messages.Topics,
    topic_messages.AdoptOrphans: topic_messages.Adoption,
    topic_messages.ForgetOrphan: topic_messages.Changed,
    topic_messages.DescribeOrphans: topic_messages.Orphans,
    write_messages.AppendRequest: AppendResult,
    write_messages.StageRequest: StageResult,
    write_messages.PublishRequest: PublishResult,
    write_messages.DiscardRequest: DiscardResult,
    write_messages.TrimRequest: TrimResult,
    write_messages.PurgeRequest: TrimResult,
    read_messages.StoreCursorRequest: CursorStored,
    read_messages.DeleteCursorRequest: CursorDeleted,
    read_messages.GetCursors: read_messages.Cursors,
    read_messages.GetBounds: read_messages.BoundsReply,
    read_messages.GetOffset: read_messages.FoundOffset,
    read_messages.Fetch: read_messages.FetchReply,
    lease_messages.LeaseFiles: lease_messages.Leased,
    lease_messages.RenewLease: lease_messages.LeaseRenewed,
    lease_messages.ReleaseLease: lease_messages.LeaseReleased,
    file_messages.GetFileDigests: file_messages.FileDigests,
    file_messages.FetchFile: file_messages.FileChunk,
    erase_messages.EraseDeleted: erase_messages.Erasing,
}
# These change what the next frames meet.
_LASTING: Final = (
    topic_messages.CreateStreamRequest,
    topic_messages.DeleteStreamRequest,
    topic_messages.CreateTopicRequest,
    topic_messages.AlterTopicRequest,
    topic_messages.AddPartitionsRequest,
    topic_messages.AddSchemaRequest,
    topic_messages.DeleteTopicRequest,
)


@dataclass(slots=True)
class Prey:
    """The topic as it is now."""

    info: topic_messages.TopicInfo
    body: bytes
    receipt: Receipt
    stager: bytes
    is_worn: bool = False  # something was accepted that changed more than rows

    @classmethod
    def make(cls, peer: Peer) -> "Prey":
        """Take away what is left of the last one, and make it again, with some rows."""
        _clear(peer)
        info = make_topic(peer, PREY_TOPIC, PREY_SCHEMA, 2)
        body = bytes(memoryview(batch.encode(_some_rows(6))))
        where = info.partitions[0]
        for _ in range(3):
            peer.ask(append_to(where, 6), [body])
        stager = secrets.token_bytes(16)
        staged, _ = peer.ask(_stage(where, stager, body), [body])
        assert isinstance(staged, StageResult)
        return cls(info, body, staged.receipt, stager)

    def heed(self, request: Message) -> None:
        """Notice what was accepted."""
        self.is_worn = self.is_worn or isinstance(request, _LASTING)

    def letter(self, chance: Random) -> Letter:
        """Return a valid frame: of any message, those of a node too."""
        make = chance.choice(_MAKERS)
        message = make(self, chance)
        has_body = isinstance(
            message, write_messages.AppendRequest | write_messages.StageRequest
        )
        return letter(message, self.body if has_body else b"")

    @property
    def where(self) -> topic_messages.PartitionInfo:
        return self.info.partitions[0]

    @property
    def place(self) -> tuple[int, int]:
        return self.where.namespace, self.where.created

    @property
    def topic(self) -> tuple[int, int]:
        return self.where.namespace, self.info.created


def _clear(peer: Peer) -> None:
    """Delete everything that mutated frames may have made."""
    topics, _ = peer.ask(topic_messages.ListTopics())
    assert isinstance(topics, topic_messages.Topics)
    for topic in topics.topics:
        if topic not in KEPT_TOPICS:
            info, _ = peer.ask(topic_messages.DescribeTopic(topic))
            assert isinstance(info, topic_messages.TopicInfo)
            peer.ask(topic_messages.DeleteTopicRequest(topic, info.created))
    for stream in topics.streams:
        if stream not in KEPT_STREAMS:
            peer.ask(topic_messages.DeleteStreamRequest(stream, with_topics=False))


def _some_rows(count: int) -> pa.RecordBatch:
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array(
            [f"n{number}" if number % 3 else None for number in range(count)], pa.string()
        ),
    ]
    return pa.record_batch(columns, schema=PREY_SCHEMA)


def _stage(
    where: topic_messages.PartitionInfo, writer: bytes, body: bytes
) -> write_messages.StageRequest:
    return write_messages.StageRequest(
        where.namespace,
        where.created,
        writer,
        1,
        1,
        6,
        secrets.token_bytes(16),
        0,
        xxh3_128_digest(body),
    )


def _append(prey: Prey, chance: Random) -> Message:
    checksum = chance.choice((b"", xxh3_128_digest(prey.body)))
    return write_messages.AppendRequest(*prey.place, chance.randbytes(16), 1, 1, 6, checksum)


def _fetch_all(prey: Prey, chance: Random) -> Message:
    return read_messages.Fetch(*prey.place, chance.randrange(40), None, 1 << 20, 50, None, 1)


def _fetch_some(prey: Prey, chance: Random) -> Message:
    return read_messages.Fetch(*prey.place, 0, 12, 4_096, 0, ("note", "_offset"), 1)


def _get_offset(prey: Prey, chance: Random) -> Message:
    return read_messages.GetOffset(*prey.place, prey.info.created_at)


def _name(chance: Random) -> str:
    return f"prey/made{chance.randrange(4)}"


_Make = Callable[[Prey, Random], Message]
_GROUP: Final = "group"


def _lease(chance: Random) -> bytes:
    """Return the id of one of a few leases: some of them are known."""
    return bytes([chance.randrange(4)]) * lease_messages.LEASE_ID_SIZE


_REQUESTS: Final[tuple[_Make, ...]] = (
    lambda prey, chance: greeting.Ping(),
    lambda prey, chance: greeting.GetStatus(),
    lambda prey, chance: topic_messages.CreateStreamRequest(f"prey{chance.randrange(4)}"),
    lambda prey, chance: topic_messages.DeleteStreamRequest(
        f"prey{chance.randrange(4)}", chance.random() < 0.5
    ),
    lambda prey, chance: topic_messages.CreateTopicRequest(
        _name(chance), encode_schema(PREY_SCHEMA), 1, 60_000, 1 << 30, (("key", "id"),)
    ),
    lambda prey, chance: topic_messages.AlterTopicRequest(
        PREY_TOPIC, prey.info.created, (60_000, None), (("colour", "blue"), ("key", None))
    ),
    lambda prey, chance: topic_messages.AddPartitionsRequest(
        PREY_TOPIC, prey.info.created, len(prey.info.partitions), 1
    ),
    lambda prey, chance: topic_messages.AddSchemaRequest(
        PREY_TOPIC, prey.info.created, 2, encode_schema(_NEWER)
    ),
    lambda prey, chance: topic_messages.DeleteTopicRequest(_name(chance), prey.info.created),
    lambda prey, chance: topic_messages.DescribeTopic(PREY_TOPIC),
    lambda prey, chance: topic_messages.ListTopics(),
    lambda prey, chance: topic_messages.AdoptOrphans(chance.random() < 0.5, ()),
    lambda prey, chance: topic_messages.ForgetOrphan(*prey.place),
    lambda prey, chance: topic_messages.DescribeOrphans(prey.place[0]),
    *(_append, _append, _append),
    lambda prey, chance: _stage(prey.where, chance.randbytes(16), prey.body),
    lambda prey, chance: _stage(prey.where, prey.stager, prey.body),
    lambda prey, chance: write_messages.PublishRequest(
        *prey.topic, prey.stager, 1, (prey.receipt,)
    ),
    lambda prey, chance: write_messages.DiscardRequest(
        *prey.topic, prey.stager, (prey.receipt.stage_id, chance.randbytes(16))
    ),
    lambda prey, chance: write_messages.TrimRequest(
        *prey.place, chance.randrange(30), chance.random() < 0.5
    ),
    lambda prey, chance: write_messages.PurgeRequest(*prey.place),
    lambda prey, chance: read_messages.StoreCursorRequest(
        *prey.place, _GROUP, chance.randrange(9), chance.randrange(3), chance.random() < 0.5
    ),
    lambda prey, chance: read_messages.DeleteCursorRequest(
        *prey.place, _GROUP, chance.randrange(3)
    ),
    lambda prey, chance: read_messages.GetCursors(*prey.place),
    lambda prey, chance: read_messages.GetBounds(prey.info.partitions),
    _get_offset,
    *(_fetch_all, _fetch_some, _fetch_all, _fetch_some),
    lambda prey, chance: lease_messages.LeaseFiles(
        _lease(chance), chance.randrange(1_000, 3_000), prey.info.partitions
    ),
    lambda prey, chance: lease_messages.RenewLease(
        _lease(chance), chance.randrange(1_000, 3_000)
    ),
    lambda prey, chance: lease_messages.ReleaseLease(_lease(chance)),
    lambda prey, chance: file_messages.GetFileDigests(_lease(chance)),
    lambda prey, chance: file_messages.FetchFile(
        lease_id=_lease(chance),
        namespace=prey.where.namespace,
        created=prey.where.created,
        first=0,
        end=chance.randrange(30),
        digest=bytes(16),
        position=chance.randrange(-1, 99),
        size_max=chance.randrange(99),
    ),
    lambda prey, chance: erase_messages.EraseDeleted(chance.randrange(3)),
)
_OF_A_NODE: Final[tuple[_Make, ...]] = (
    lambda prey, chance: greeting.Hello(1, 1, "again", chance.randbytes(16)),
    lambda prey, chance: greeting.Welcome(
        1, "", chance.randbytes(16), chance.randbytes(16), False, 1 << 20, 64
    ),
    lambda prey, chance: greeting.TokenProof(chance.randbytes(32)),
    lambda prey, chance: greeting.TicketProof(chance.randbytes(28), chance.randbytes(32)),
    lambda prey, chance: greeting.Accepted(chance.randbytes(32)),
    lambda prey, chance: greeting.ErrorReply("Busy", "no", "", (("path", "x"), ("n", 1)), 5),
    lambda prey, chance: greeting.Pong(),
    lambda prey, chance: greeting.StatusReply("{}"),
    lambda prey, chance: topic_messages.Changed(7),
    lambda prey, chance: prey.info,
    lambda prey, chance: topic_messages.Topics(("a/b",), ("a",)),
    lambda prey, chance: topic_messages.Adoption(7, ("a/b",), ("one",)),
    lambda prey, chance: topic_messages.Orphans(
        (topic_messages.OrphanInfo(1, *prey.place, 3, 64, 5, None, b"schema"),)
    ),
    lambda prey, chance: AppendResult(Offset(0), Offset(6), False),
    lambda prey, chance: StageResult(prey.receipt, True),
    lambda prey, chance: PublishResult(
        (PartitionRange(Namespace(1), Offset(2), Offset(3)),), False, True
    ),
    lambda prey, chance: DiscardResult(1),
    lambda prey, chance: TrimResult(Offset(3), (Hold(_GROUP, Offset(3)),)),
    lambda prey, chance: CursorStored(Offset(4)),
    lambda prey, chance: CursorDeleted(),
    lambda prey, chance: read_messages.Cursors((StoredCursor(_GROUP, Offset(1), 2, True),)),
    lambda prey, chance: read_messages.BoundsReply(
        (read_messages.PartitionBounds(1, 2, 3, 4, ((1, 0),)),)
    ),
    lambda prey, chance: read_messages.FoundOffset(9),
    lambda prey, chance: lease_messages.Leased(
        1_000,
        (
            lease_messages.PartitionFiles(
                0,
                3,
                4,
                "x",
                (lease_messages.FileInfo("y", 0, 3, 1, 64, chance.randbytes(16)),),
            ),
        ),
    ),
    lambda prey, chance: lease_messages.LeaseRenewed(1_000),
    lambda prey, chance: lease_messages.LeaseReleased(),
    lambda prey, chance: file_messages.FileDigests((chance.randbytes(16),)),
    lambda prey, chance: file_messages.FileChunk(0, chance.randbytes(16)),
    lambda prey, chance: erase_messages.Erasing(
        3, 1, (erase_messages.UnerasedInfo("x.wal", "soon"),)
    ),
    lambda prey, chance: read_messages.FetchReply(
        3, 0, 3, (FetchedPiece(True, 0, 3, 1, 1, 64),)
    ),
)
# Requests three times as often: they go deeper.
_MAKERS: Final = 3 * _REQUESTS + _OF_A_NODE
