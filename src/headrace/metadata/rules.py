"""Validation and limits of commands: each check returns None or a refusal.

The checks are pure and equal on every replica: the limits come from the cluster's identity and
from constants. Configured limits are checked by the primary beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.metadata.results import MetadataCode, MetadataRefusal, refuse
from headrace.metadata.state import RetentionLimits
from headrace.model.namespace import NAME_SIZE_MAX, NamespaceLayout, is_name

# Each node keeps a row for every stream, topic and partition in memory and in each image. These
# limits are far above measured use, and low enough that a runaway loop cannot fill the memory.
STREAMS_MAX: Final = 4_096
TOPICS_PER_STREAM_MAX: Final = 65_536
PARTITIONS_PER_TOPIC_MAX: Final = 16_384
PARTITIONS_MAX: Final = 131_072
# A schema version is in each image, and in its shard's log once for each partition.
SCHEMA_SIZE_MAX: Final = 256 * 1024
SCHEMAS_PER_TOPIC_MAX: Final = 1_024
OPTIONS_PER_TOPIC_MAX: Final = 64
OPTION_SIZE_MAX: Final = 1_024

SHARD_MAX: Final = 2**32 - 1  # the group in an entry's header is a u32
RETENTION_MAX: Final = 2**63 - 1  # whatever is added to it stays within a u64


@dataclass(frozen=True, slots=True)
class MetadataLimits:
    """Limits on everything numbered in the namespace, and on the total of partitions."""

    streams_max: int
    topics_per_stream_max: int
    partitions_per_topic_max: int
    partitions_max: int = PARTITIONS_MAX

    @classmethod
    def of(cls, layout: NamespaceLayout) -> "MetadataLimits":
        """Return the lower of the available IDs and the constants."""
        return cls(
            min(STREAMS_MAX, layout.stream_id_max + 1),
            min(TOPICS_PER_STREAM_MAX, layout.topic_id_max + 1),
            min(PARTITIONS_PER_TOPIC_MAX, layout.partition_id_max + 1),
        )

    def stream(self, stream_count: int) -> MetadataRefusal | None:
        """Check one more stream."""
        return _at_most(self.streams_max, stream_count + 1, "streams")

    def topic(self, topic_count: int) -> MetadataRefusal | None:
        """Check one more topic in a stream."""
        return _at_most(self.topics_per_stream_max, topic_count + 1, "topics in a stream")

    def partitions(
        self, added: int, *, present: int, everywhere: int
    ) -> MetadataRefusal | None:
        """Check `added` more in a topic with `present`, and `everywhere` in total."""
        if added < 1:
            return refuse(MetadataCode.BAD_PARTITION_COUNT, count=added)
        limit = self.partitions_per_topic_max
        return _at_most(limit, present + added, "partitions in a topic") or _at_most(
            self.partitions_max, everywhere + added, "partitions"
        )


def schema_count(count: int) -> MetadataRefusal | None:
    """Check a topic with `count` schema versions."""
    return _at_most(SCHEMAS_PER_TOPIC_MAX, count, "schema versions of a topic")


def name(what: str, text: str) -> MetadataRefusal | None:
    return None if is_name(text) else refuse(MetadataCode.BAD_NAME, what=what, name=shown(text))


def schema(data: bytes) -> MetadataRefusal | None:
    if 1 <= len(data) <= SCHEMA_SIZE_MAX:
        return None
    return refuse(MetadataCode.BAD_SCHEMA, max=SCHEMA_SIZE_MAX, size=len(data))


def shard(number: int) -> MetadataRefusal | None:
    """Check a group number: 0 is the metadata group. The primary checks that it exists."""
    return None if 1 <= number <= SHARD_MAX else refuse(MetadataCode.BAD_SHARD, shard=number)


def retention(wanted: RetentionLimits) -> MetadataRefusal | None:
    for what, value in (("age", wanted.age_ms), ("size", wanted.size)):
        if value is not None and not 1 <= value <= RETENTION_MAX:
            return refuse(MetadataCode.BAD_RETENTION, what=what, value=value)
    return None


def options(wanted: Sequence[tuple[str, str | None]]) -> MetadataRefusal | None:
    """Check the options of a command. The node knows their meaning."""
    seen: set[str] = set()
    for key, value in wanted:
        flaw = _option_flaw(key, value, seen)
        if flaw is not None:
            return refuse(MetadataCode.BAD_OPTION, name=shown(key), flaw=flaw)
        seen.add(key)
    return None


def option_count(count: int) -> MetadataRefusal | None:
    """Check a topic with `count` options."""
    return _at_most(OPTIONS_PER_TOPIC_MAX, count, "options of a topic")


def shown(text: str) -> str:
    """Truncate an untrusted name to the size allowed in a result."""
    return text[:NAME_SIZE_MAX]


def _option_flaw(key: str, value: str | None, seen: set[str]) -> str | None:
    if not is_name(key):
        return "has no proper name"
    if key in seen:
        return "appears twice"
    if value is not None and len(value.encode()) > OPTION_SIZE_MAX:
        return f"has over {OPTION_SIZE_MAX} bytes"
    return None


def _at_most(limit: int, count: int, what: str) -> MetadataRefusal | None:
    return None if count <= limit else refuse(MetadataCode.LIMIT_REACHED, max=limit, what=what)
