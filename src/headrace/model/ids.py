"""The numbers that must not be swapped, each with a type of its own."""

from dataclasses import dataclass
from typing import NewType

Op = NewType("Op", int)  # a place in one group's log, from 1; 0 means before the first
View = NewType("View", int)  # the reign of one primary, from 0
Offset = NewType("Offset", int)  # a record's place in its partition, from 0
Revision = NewType("Revision", int)  # of metadata: see `model.revisions`
GroupId = NewType("GroupId", int)  # 0 is the metadata group, 1.. are the shards
ReplicaId = NewType("ReplicaId", int)  # a replica's place among the voters, from 0

KEEP_NEXT = Offset(-1)  # in StoreCursor: leave the cursor where it is by then
OP_MAX = Op(2**63 - 1)  # stands for an end that nobody knows
STARTS_MAX = 32  # of its newest starts, that a replica with peers keeps and names
CLUSTER_ID_SIZE = 16
WRITER_SIZE = 16
# How a writer of one transaction begins; any other one may come back for another.
ONCE = b"once"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose directory this is. A file that says otherwise is in the wrong place."""

    cluster: bytes  # 16 random bytes, made once with the cluster
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
        """One replica: what is durable is committed, and no peer can repair anything."""
        return self.replica_count == 1


def is_once(writer: bytes) -> bool:
    """Tell whether a writer publishes one transaction, and is forgotten after a while."""
    return writer.startswith(ONCE)
