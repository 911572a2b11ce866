"""The messages of the protocol: requests of clients, and answers of a node.

Each message is a value of plain fields (int, str, bytes, bool, None, tuples and values of
these), encoded as one msgpack array of its fields in order. Rows are sent alongside a message,
as the frame's body. A kind never changes: a different field needs a new kind. All messages are
listed in docs/protocol.md.

Partitions are identified by `namespace` and `created`, as returned by `DescribeTopic`: a
request for an earlier life of a topic is refused, whatever its name. Requests about a whole
topic carry the namespace of its partition 0 and the topic's own `created`.
"""

from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    DiscardResult,
    PublishResult,
    StageResult,
    TrimResult,
)
from headrace.wire.erase_messages import EraseDeleted, Erasing
from headrace.wire.greeting import (
    Accepted,
    ErrorReply,
    GetStatus,
    Hello,
    Ping,
    Pong,
    StatusReply,
    TicketProof,
    TokenProof,
    Welcome,
)
from headrace.wire.lease_messages import (
    Leased,
    LeaseFiles,
    LeaseReleased,
    LeaseRenewed,
    ReleaseLease,
    RenewLease,
)
from headrace.wire.read_messages import (
    BoundsReply,
    Cursors,
    DeleteCursorRequest,
    Fetch,
    FetchReply,
    FoundOffset,
    GetBounds,
    GetCursors,
    GetOffset,
    StoreCursorRequest,
)
from headrace.wire.topic_messages import (
    AddPartitionsRequest,
    AddSchemaRequest,
    Adoption,
    AdoptOrphans,
    AlterTopicRequest,
    Changed,
    CreateStreamRequest,
    CreateTopicRequest,
    DeleteStreamRequest,
    DeleteTopicRequest,
    DescribeOrphans,
    DescribeTopic,
    ForgetOrphan,
    ListTopics,
    Orphans,
    TopicInfo,
    Topics,
)
from headrace.wire.write_messages import (
    AppendRequest,
    DiscardRequest,
    PublishRequest,
    PurgeRequest,
    StageRequest,
    TrimRequest,
)

Handshake = Hello | Welcome | TokenProof | TicketProof | Accepted
MetadataRequest = (
    CreateStreamRequest
    | DeleteStreamRequest
    | CreateTopicRequest
    | AlterTopicRequest
    | AddPartitionsRequest
    | AddSchemaRequest
    | DeleteTopicRequest
    | DescribeTopic
    | ListTopics
)
PartitionRequest = (
    AppendRequest
    | StageRequest
    | PublishRequest
    | DiscardRequest
    | TrimRequest
    | PurgeRequest
    | StoreCursorRequest
    | DeleteCursorRequest
    | GetCursors
    | GetOffset
    | Fetch
)
OrphanRequest = AdoptOrphans | ForgetOrphan | DescribeOrphans
LeaseRequest = LeaseFiles | RenewLease | ReleaseLease
Request = (
    MetadataRequest
    | PartitionRequest
    | OrphanRequest
    | LeaseRequest
    | EraseDeleted
    | GetBounds
    | GetStatus
    | Ping
)
Reply = (
    ErrorReply
    | Pong
    | StatusReply
    | Changed
    | TopicInfo
    | Topics
    | Adoption
    | Orphans
    | AppendResult
    | StageResult
    | PublishResult
    | DiscardResult
    | TrimResult
    | CursorStored
    | CursorDeleted
    | Cursors
    | BoundsReply
    | FoundOffset
    | FetchReply
    | Leased
    | LeaseRenewed
    | LeaseReleased
    | Erasing
)
Message = Handshake | Request | Reply


def word_of(request: object) -> str:
    """Return the name of a request in errors: `Append` for an AppendRequest."""
    return type(request).__name__.removesuffix("Request")
