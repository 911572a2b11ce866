"""Decides whether metadata is what it once acknowledged, from the metadata and the shards.

    held        group 0 cannot be recovered completely: its readable part is read-only
    behind      a shard has followed a revision that metadata does not have
    orphan      a shard has a life that metadata neither has nor has deleted
    schemas     a shard has more schemas of a topic than metadata

Doubt is never resolved by guessing. Until an operator decides, topics on which metadata and
shard agree are served, no change is accepted, nothing is opened in place of an orphan, and
nothing is removed, trimmed or expired.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import MetadataInDoubt
from headrace.metadata.state import MetadataState, MetadataTarget
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import Order, is_stamped, is_within, newest, shown
from headrace.partition.machine.state import Partition, PartitionsState, TopicState
from headrace.partition.reader import Key
from headrace.wire import read_messages, write_messages
from headrace.wire.file_messages import FetchFile
from headrace.wire.messages import PartitionRequest

WAY_OUT: Final = (
    "Run `headrace metadata adopt` to preview the recovery, or restore groups/00000 from a "
    "backup"
)

_ACTIONS: Final[dict[type[PartitionRequest], str]] = {
    write_messages.AppendRequest: "append",
    write_messages.StageRequest: "append",
    write_messages.PublishRequest: "commit the transaction",
    write_messages.DiscardRequest: "abort the transaction",
    write_messages.TrimRequest: "trim",
    write_messages.PurgeRequest: "purge",
    read_messages.StoreCursorRequest: "store a cursor",
    read_messages.DeleteCursorRequest: "delete a cursor",
}


@dataclass(frozen=True, slots=True)
class Orphan:
    """A life that a shard has but metadata does not know. It is never removed."""

    shard: GroupId
    key: Key
    topic_created: Revision
    row_count: int
    size: int  # body bytes
    first_at: int | None  # microseconds; None if it has no rows
    last_at: int | None
    schema: bytes  # the newest of its topic

    def __str__(self) -> str:
        return (
            f"shard {self.shard} has partition {self.key.namespace:x} of revision "
            f"{shown(self.key.created)} with {self.row_count:,} rows, which the metadata does "
            "not know"
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why metadata is not trusted, in words, and what that affects."""

    reasons: tuple[str, ...]
    orphans: tuple[Orphan, ...]
    floor: Revision  # the newest that any shard has followed, or that created one of its lives
    is_held: bool
    _astray: frozenset[GroupId]  # shards in which nothing of this metadata is opened
    _lives: frozenset[tuple[GroupId, Key]] = field(repr=False)
    _taken: frozenset[int] = field(repr=False)  # the numbers of orphans' topics
    _partition_bits: int = field(repr=False)

    def is_orphan(self, shard: GroupId, key: Key) -> bool:
        return (shard, key) in self._lives

    def is_astray(self, shard: GroupId) -> bool:
        """Return whether a shard belongs, or may belong, to another history.

        The revision that it follows is the evidence, so nothing of this metadata is opened in
        it. A shard with an orphan of an unstamped revision would otherwise look as if it had
        followed this metadata.
        """
        return shard in self._astray

    def is_blocked(self, namespace: int) -> bool:
        """Return whether a namespace is blocked: nothing is opened or changed in any shard."""
        return self.is_held or self.topic_number(namespace) in self._taken

    def topic_number(self, namespace: int) -> int:
        return namespace >> self._partition_bits

    def hides(self, namespace: int, revision: Revision) -> bool:
        """Return whether a missing partition may be due to the doubt."""
        return self.is_blocked(namespace) or not is_within(self.floor, revision)

    def refuses(self, request: PartitionRequest) -> bool:
        """Return whether to refuse: removals always; all but reads while group 0 is held."""
        reads = isinstance(
            request,
            read_messages.Fetch
            | read_messages.GetOffset
            | read_messages.GetCursors
            | FetchFile,
        )
        removes = isinstance(request, write_messages.TrimRequest | write_messages.PurgeRequest)
        return removes or (self.is_held and not reads)

    def error(self, path: str, what: str) -> MetadataInDoubt:
        """Return the error for a refusal or a gap; `what` ends in "while" or "and"."""
        state = "is damaged" if self.is_held else "is incomplete"
        more = "" if len(self.reasons) == 1 else f"; and {len(self.reasons) - 1} more"
        return MetadataInDoubt(
            f"{what} the metadata {state} ({self.reasons[0]}{more})",
            path=path,
            hint=WAY_OUT,
        )

    def refusal(self, path: str, request: PartitionRequest) -> MetadataInDoubt:
        """Return the error for a refused request to a partition."""
        return self.error(path, f"cannot {_ACTIONS[type(request)]} while")


def judge(
    metadata: MetadataState, shards: Mapping[GroupId, PartitionsState], held: str = ""
) -> Doubt | None:
    """Compare metadata with every recovered shard; None if nothing contradicts it.

    `held`: why group 0 cannot be recovered completely, if so.
    """
    orphans = [one for number, state in sorted(shards.items())
               for one in _orphans(metadata, number, state)]  # fmt: skip
    reasons = [held] if held else []
    for number, state in sorted(shards.items()):
        reasons += _reasons(metadata, number, state)
    reasons += map(str, orphans)
    if not reasons:
        return None
    floor = metadata.revision
    for state in shards.values():
        floor = newest(state.revision, floor)
    for one in orphans:
        floor = newest(newest(one.key.created, one.topic_created), floor)
    bits = metadata.layout.partition_bits
    return Doubt(
        tuple(reasons),
        tuple(orphans),
        floor,
        bool(held),
        frozenset(number for number, state in shards.items() if _is_astray(metadata, state))
        | {one.shard for one in orphans if not is_stamped(one.key.created)},
        frozenset((one.shard, one.key) for one in orphans),
        frozenset(one.key.namespace >> bits for one in orphans),
        bits,
    )


def _reasons(metadata: MetadataState, number: GroupId, state: PartitionsState) -> Iterator[str]:
    if _is_astray(metadata, state):
        order = metadata.order_of(state.revision)
        which = " of another history" if order is Order.BRANCHED else ""
        yield (
            f"the metadata is at revision {shown(metadata.revision)}, but shard {number} has "
            f"seen revision {shown(state.revision)}{which}"
        )
    for topic in state.topics.values():
        target = _target(metadata, number, state, topic)
        if target is not None and topic.newest > len(target.schemas):
            yield (
                f"shard {number} has {topic.newest} schemas of topic {topic.number:x}, but the "
                f"metadata has {len(target.schemas)}"
            )


def _is_astray(metadata: MetadataState, state: PartitionsState) -> bool:
    return metadata.order_of(state.revision) in (Order.AFTER, Order.BRANCHED)


def _target(
    metadata: MetadataState, number: GroupId, state: PartitionsState, topic: TopicState
) -> MetadataTarget | None:
    """Return the target of a topic, if metadata means the same topic as the shard."""
    target = metadata.partition_at(topic.number << state.partition_bits)
    if target is None or target.shard != number or target.topic_created != topic.created:
        return None
    return target


def _orphans(
    metadata: MetadataState, number: GroupId, state: PartitionsState
) -> Iterator[Orphan]:
    for namespace in sorted(state.partitions):
        partition = state.partitions[namespace]
        if is_own(metadata.partition_at(namespace), number, state, partition):
            continue
        place, created = Namespace(namespace), partition.created
        if not metadata.has_ended(place, created, state.revision):  # or is about to be removed
            yield orphan(number, state, partition)


def is_own(
    target: MetadataTarget | None, number: GroupId, state: PartitionsState, partition: Partition
) -> bool:
    """Return whether metadata means this very partition, by all that both sides know."""
    if target is None or target.shard != number:
        return False
    topic = state.topic_of(partition)
    return (target.created, target.topic_created) == (partition.created, topic.created) and all(
        ours.schema == theirs.data
        for ours, theirs in zip(topic.schemas, target.schemas, strict=False)
    )


def orphan(number: GroupId, state: PartitionsState, partition: Partition) -> Orphan:
    """Describe a life in figures."""
    topic = state.topic_of(partition)
    first, last = _times(partition)
    return Orphan(
        number,
        Key(Namespace(partition.namespace), partition.created),
        topic.created,
        partition.end - partition.first,
        partition.size,
        first,
        last,
        topic.schemas[-1].schema,
    )


def _times(partition: Partition) -> tuple[int | None, int | None]:
    times = [(one.first_timestamp, one.last_timestamp) for one in partition.segments]
    for run in partition.runs:
        times += [(piece.timestamp, piece.timestamp) for piece in run.pieces]
    if not times:
        return None, None
    return min(first for first, _ in times), max(last for _, last in times)
