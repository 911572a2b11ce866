"""Where a query is, as Spark keeps it in its checkpointLocation.

    {"v": 1, "topic": "shop/orders", "created": 7, "cluster": "5f…", "partitions": {"0": 123}}

Spark compares the texts of offsets, so keys have one order. `created` is the topic's birth, and
`cluster` its log: an offset of a topic that was deleted means nothing in another of that name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import BadRequest

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Offsets:
    """The next row of each partition of one topic."""

    topic: str
    created: int
    cluster: str
    partitions: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return what Spark stores."""
        ordered = {str(number): self.partitions[number] for number in sorted(self.partitions)}
        return {
            "v": VERSION,
            "topic": self.topic,
            "created": self.created,
            "cluster": self.cluster,
            "partitions": ordered,
        }


def from_json(found: Any) -> Offsets:  # noqa: ANN401  # whatever a checkpoint holds
    """Read what Spark stored. BadRequest for anything else."""
    try:
        version, topic, created = found["v"], found["topic"], found["created"]
        cluster = found["cluster"]
        partitions = {int(number): int(place) for number, place in found["partitions"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _not_ours(found) from None
    texts = isinstance(topic, str) and isinstance(cluster, str)
    if version != VERSION or not texts or not isinstance(created, int):
        raise _not_ours(found)
    return Offsets(topic, created, cluster, partitions)


def _not_ours(found: object) -> BadRequest:
    return BadRequest(
        f"{str(found)[:200]} is no offset of this source",
        hint="The checkpointLocation is of another source or a newer release: use another",
    )
