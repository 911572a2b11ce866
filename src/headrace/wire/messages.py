"""The messages of the protocol: requests of clients, and answers of a node.

Each message is a value of plain fields (int, str, bytes, bool, None, tuples and values of
these), encoded as one msgpack array of its fields in order. Rows are sent alongside a message,
as the frame's body. A kind never changes: a different field needs a new kind. All messages are
listed in docs/protocol.md.

Partitions are identified by `namespace` and `created`, as returned by `DescribeTopic`: a
request for an earlier life of a topic is refused, whatever its name. Requests about a whole
topic carry the namespace of its partition 0 and the topic's own `created`.
"""

from headrace.errors import VersionUnknown
from headrace.model.ids import KEEP_NEXT
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
from headrace.wire.file_messages import FetchFile, FileChunk, FileDigests, GetFileDigests
from headrace.wire.greeting import (
    CLAIMS_SINCE,
    ERASING_SINCE,
    FILES_SINCE,
    LEASES_SINCE,
    VERSION_MIN,
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
    | FetchFile
)
OrphanRequest = AdoptOrphans | ForgetOrphan | DescribeOrphans
LeaseRequest = LeaseFiles | RenewLease | ReleaseLease
Request = (
    MetadataRequest
    | PartitionRequest
    | OrphanRequest
    | LeaseRequest
    | GetFileDigests
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
    | FileDigests
    | FileChunk
    | Erasing
)
Message = Handshake | Request | Reply


def word_of(request: object) -> str:
    """Return the name of a request in errors: `Append` for an AppendRequest."""
    return type(request).__name__.removesuffix("Request")


def refuse_if_too_new(request: Message, version: int, address: str) -> None:
    """Raise if the agreed version lacks a request: the node would disconnect us."""
    what, since = "", VERSION_MIN
    if isinstance(request, LeaseRequest):
        what, since = "leases", LEASES_SINCE
    elif isinstance(request, EraseDeleted):
        what, since = "erasing", ERASING_SINCE
    elif isinstance(request, StoreCursorRequest) and request.next == KEEP_NEXT:
        what, since = "consumer takeover", CLAIMS_SINCE
    elif isinstance(request, GetFileDigests | FetchFile):
        what, since = "fetching files", FILES_SINCE
    if version < since:
        raise VersionUnknown(
            f"{address} speaks protocol version {version}, which does not support {what}; "
            f"version {since} does",
            hint="Upgrade the node to this release",
        )
