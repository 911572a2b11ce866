"""The position of a query, as Spark stores it in the checkpointLocation.

    {"v": 1, "topic": "shop/orders", "created": 7, "cluster": "5f…", "partitions": {"0": 123}}

Spark compares offsets as text, so the order of keys is fixed. `created` is the revision that
created the topic, and `cluster` is its log: offsets of a deleted topic mean nothing in a new
topic of the same name.

Spark stores only the end of a batch; its start is the previous end. The first batch has none:
if Spark replays it, it asks for the start again, and `latest` or `-10m` is another place by
then. So the end of the first batch carries its start: `"from": {"0": 100}`.
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
    starts: Mapping[int, int] | None = None  # of the query, in its start and first end only

    @property
    def is_start(self) -> bool:
        """Whether the query has not read anything yet."""
        return self.partitions == self.starts

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark stores."""
        found = {
            "v": VERSION,
            "topic": self.topic,
            "created": self.created,
            "cluster": self.cluster,
            "partitions": _ordered(self.partitions),
        }
        return found if self.starts is None else {**found, "from": _ordered(self.starts)}


def from_json(found: Any) -> Offsets:  # noqa: ANN401  # whatever a checkpoint holds
    """Parse the JSON that Spark stored. Raises BadRequest for anything else."""
    try:
        version, topic, created = found["v"], found["topic"], found["created"]
        cluster = found["cluster"]
        partitions = _places(found["partitions"])
        starts = _places(found["from"]) if "from" in found else None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _not_ours(found) from None
    texts = isinstance(topic, str) and isinstance(cluster, str)
    if version != VERSION or not texts or not isinstance(created, int):
        raise _not_ours(found)
    return Offsets(topic, created, cluster, partitions, starts)


def _ordered(places: Mapping[int, int]) -> dict[str, int]:
    return {str(number): places[number] for number in sorted(places)}


def _places(found: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(place) for number, place in found.items()}


def _not_ours(found: object) -> BadRequest:
    return BadRequest(
        f"{str(found)[:200]} is not an offset of this source",
        hint="The checkpointLocation belongs to another source or a newer release: use another",
    )
