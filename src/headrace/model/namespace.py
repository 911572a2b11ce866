"""Names and ids of streams, topics and partitions: `shop/orders`, and a number.

    namespace := zeros  stream_id:stream_bits  topic_id:topic_bits  partition_id:partition_bits

The highest bits come first. The widths are part of the cluster's identity and never change.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

from headrace.errors import BadName

StreamId = NewType("StreamId", int)  # from 0; reused after a deletion
TopicId = NewType("TopicId", int)  # from 0 within its stream; reused after a deletion
PartitionId = NewType("PartitionId", int)  # dense from 0 within its topic
# Ids are reused, so only (namespace, created) is unique over time.
Namespace = NewType("Namespace", int)

NAMESPACE_BITS: Final = 64  # the field of an entry's header


class PartitionKey(NamedTuple):
    """The three ids of a namespace. Keys sort like their namespaces."""

    stream_id: StreamId
    topic_id: TopicId
    partition_id: PartitionId


@dataclass(frozen=True, slots=True)
class NamespaceLayout:
    """The width of each id in bits. Callers check ids against the maxima first."""

    stream_bits: int
    topic_bits: int
    partition_bits: int

    def __post_init__(self) -> None:
        assert self.stream_bits >= 1
        assert self.topic_bits >= 1
        assert self.partition_bits >= 1
        assert self.bits <= NAMESPACE_BITS

    @property
    def bits(self) -> int:
        return self.stream_bits + self.topic_bits + self.partition_bits

    @property
    def stream_id_max(self) -> StreamId:
        return StreamId((1 << self.stream_bits) - 1)

    @property
    def topic_id_max(self) -> TopicId:
        return TopicId((1 << self.topic_bits) - 1)

    @property
    def partition_id_max(self) -> PartitionId:
        return PartitionId((1 << self.partition_bits) - 1)

    def pack(
        self, stream_id: StreamId, topic_id: TopicId, partition_id: PartitionId
    ) -> Namespace:
        """Return the namespace of one partition."""
        assert 0 <= stream_id <= self.stream_id_max
        assert 0 <= topic_id <= self.topic_id_max
        assert 0 <= partition_id <= self.partition_id_max
        topic = stream_id << self.topic_bits | topic_id
        return Namespace(topic << self.partition_bits | partition_id)

    def holds(self, number: int) -> bool:
        """Say whether an untrusted `number` fits the bits of a namespace."""
        return 0 <= number < 1 << self.bits

    def unpack(self, namespace: Namespace) -> PartitionKey:
        """Return the ids of a namespace: the inverse of `pack`."""
        assert self.holds(namespace)
        topic = namespace >> self.partition_bits
        return PartitionKey(
            StreamId(topic >> self.topic_bits),
            TopicId(topic & self.topic_id_max),
            PartitionId(namespace & self.partition_id_max),
        )


NAME_SIZE_MAX: Final = 64  # fits a file name, with room for prefixes and suffixes
DEFAULT_STREAM: Final = "default"  # always exists: plain `orders` is `default/orders`

# ASCII only: no two names look alike, and none is a path, an option or a hidden file.
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_SIZE_MAX - 1}}}")
_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic with its stream, as users write it."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}{_SEPARATOR}{self.topic}"


def is_name(text: str) -> bool:
    """Say whether `text` is a valid name for a stream, a topic or an option."""
    return _NAME.fullmatch(text) is not None


def check_name(what: str, text: str) -> str:
    """Return `text`, or raise BadName; the message calls it a `what`."""
    if not is_name(text):
        raise BadName(what, text)
    return text


def parse_topic(text: str) -> TopicName:
    """Read `stream/topic`, or `topic` in the default stream."""
    stream, separator, topic = text.partition(_SEPARATOR)
    if not separator:
        return TopicName(DEFAULT_STREAM, check_name("topic", text))
    return TopicName(check_name("stream", stream), check_name("topic", topic))
