"""What goes over the wire: requests of clients, and what a node answers.

Each message is a value of plain fields (int, str, bytes, bool, None, tuples and values of
these), written as one msgpack array of its fields in their order. Rows travel beside a message,
as the frame's body. A kind never changes: another field is another kind. The table of all
messages is docs/protocol.md.

Partitions are named by `namespace` and `created`, which `DescribeTopic` tells: a request meant
for an earlier life of a topic is refused, whatever its name. Requests about a whole topic carry
the namespace of its partition 0 and the topic's own `created`.
"""

from headrace.wire.erase_messages import EraseDeleted, Erasing
from headrace.wire.greeting import (
    Accepted,
    Failed,
    GetStatus,
    Hello,
    Ping,
    Pong,
    Proof,
    Status,
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
    Bounds,
    CursorDeleted,
    Cursors,
    CursorStored,
    DeleteCursor,
    Fetch,
    Fetched,
    FoundOffset,
    GetBounds,
    GetCursors,
    GetOffset,
    StoreCursor,
)
from headrace.wire.topic_messages import (
    AddPartitions,
    AddSchema,
    Adoption,
    AdoptOrphans,
    AlterTopic,
    Changed,
    CreateStream,
    CreateTopic,
    DeleteStream,
    DeleteTopic,
    DescribeTopic,
    ForgetOrphan,
    ListTopics,
    TopicInfo,
    Topics,
)
from headrace.wire.write_messages import (
    Append,
    Appended,
    Discard,
    Discarded,
    Publish,
    Published,
    Purge,
    Stage,
    Staged,
    Trim,
    Trimmed,
)

Handshake = Hello | Welcome | Proof | Accepted
MetadataRequest = (
    CreateStream
    | DeleteStream
    | CreateTopic
    | AlterTopic
    | AddPartitions
    | AddSchema
    | DeleteTopic
    | DescribeTopic
    | ListTopics
)
PartitionRequest = (
    Append
    | Stage
    | Publish
    | Discard
    | Trim
    | Purge
    | StoreCursor
    | DeleteCursor
    | GetCursors
    | GetOffset
    | Fetch
)
OrphanRequest = AdoptOrphans | ForgetOrphan
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
    Failed
    | Pong
    | Status
    | Changed
    | TopicInfo
    | Topics
    | Adoption
    | Appended
    | Staged
    | Published
    | Discarded
    | Trimmed
    | CursorStored
    | CursorDeleted
    | Cursors
    | Bounds
    | FoundOffset
    | Fetched
    | Leased
    | LeaseRenewed
    | LeaseReleased
    | Erasing
)
Message = Handshake | Request | Reply
