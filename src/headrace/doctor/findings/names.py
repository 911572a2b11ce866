"""Names of partitions: from the metadata, or from their numbers where the metadata is lost."""

from dataclasses import dataclass

from headrace.doctor.findings.finding import LostRows
from headrace.metadata.state import MetadataState, TopicMetadata
from headrace.model.namespace import Namespace, NamespaceLayout, TopicName
from headrace.partition.machine.state import Partition, Piece

LOST_STREAM = "salvaged"  # the stream of topics whose names are lost


@dataclass(frozen=True, slots=True)
class Names:
    """Names of topics and partitions."""

    layout: NamespaceLayout
    metadata: MetadataState | None

    def topic(self, namespace: int) -> TopicMetadata | None:
        """Return the metadata of a partition's topic."""
        if self.metadata is None or not self.layout.holds(namespace):
            return None
        stream_id, topic_id, _ = self.layout.unpack(Namespace(namespace))
        return self.metadata.topics.get((stream_id, topic_id))

    def name(self, namespace: int, topic_created: int) -> str:
        """Return a topic's name, or a substitute if the metadata lacks this life of it."""
        stream_id, topic_id, _ = self.layout.unpack(Namespace(namespace))
        topic = self.topic(namespace)
        if topic is None or topic.created != topic_created:
            return f"{LOST_STREAM}/topic-{stream_id}-{topic_id}-{topic_created}"
        assert self.metadata is not None
        return str(TopicName(self.metadata.streams[stream_id].name, topic.name))

    def piece(self, partition: Partition, piece: Piece) -> LostRows:
        """Name the rows of a piece that are still retained."""
        start, end = max(piece.first, partition.first), min(piece.end, partition.end)
        return self.rows(partition, start, end)

    def rows(self, partition: Partition, start: int, end: int) -> LostRows:
        """Name rows of a partition."""
        number = self.layout.unpack(partition.namespace).partition_id
        return LostRows(
            self.name(partition.namespace, partition.topic_created), number, start, end
        )
