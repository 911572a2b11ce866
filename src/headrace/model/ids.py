"""Numbers that must not be mixed up, each with its own type."""

from dataclasses import dataclass
from typing import NewType

Op = NewType("Op", int)  # a place in one group's log, from 1; 0 means before the first
View = NewType("View", int)  # the reign of one primary, from 0
Offset = NewType("Offset", int)  # a record's place in its partition, from 0
Revision = NewType("Revision", int)  # of metadata: see `model.revisions`
GroupId = NewType("GroupId", int)  # 0 is the metadata group, 1.. are the shards
ReplicaId = NewType("ReplicaId", int)  # a replica's place among the voters, from 0

KEEP_NEXT = Offset(
    -1
)  # in StoreCursor: keep the offset that the cursor has when this is applied
OP_MAX = Op(2**63 - 1)  # stands for an unknown end
STARTS_MAX = 32  # the newest starts that a replica with peers keeps and reports
CLUSTER_ID_SIZE = 16
WRITER_SIZE = 16
# Prefix of a writer of a single transaction; other writers may publish more.
ONCE = b"once"


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a directory. A file with another identity is misplaced."""

    cluster: bytes  # 16 random bytes, created with the cluster
    group: GroupId
    replica: ReplicaId
    replica_count: int
    namespace_bits: tuple[int, int, int]  # widths of stream, topic and partition ids

    def __post_init__(self) -> None:
        assert len(self.cluster) == CLUSTER_ID_SIZE
        assert 0 <= self.replica < self.replica_count
        assert sum(self.namespace_bits) <= 64

    @property
    def is_solo(self) -> bool:
        """A single replica: what is durable is committed, and no peer can repair it."""
        return self.replica_count == 1


def is_once(writer: bytes) -> bool:
    """Say whether a writer publishes a single transaction, and is forgotten after a while."""
    return writer.startswith(ONCE)
