"""A topic at one point in time: its decoded metadata."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from headrace.client.values.answers import Retention
from headrace.client.values.parse import whole
from headrace.errors import BadFrame, BadRequest, BadSchema
from headrace.model.batch import Layout, layout
from headrace.model.schema import decode_schema
from headrace.wire.topic_messages import PartitionInfo, TopicInfo

KEY_OPTION: Final = "key"  # the option that stores a topic's key column
_MICROSECONDS_MAX: Final = 253_402_300_799_999_999  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class View:
    """A topic in one life, with the newest known schema and partitions."""

    info: TopicInfo
    schemas: dict[int, pa.Schema]  # by version
    layouts: dict[int, Layout]

    @classmethod
    def of(cls, info: TopicInfo) -> "View":
        """Decode a node's answer."""
        try:
            schemas = {each.version: decode_schema(each.schema) for each in info.schemas}
        except BadSchema as error:
            raise BadFrame(f"the schema of {info.topic!r}: {error}") from error
        if not schemas or not info.partitions:
            raise BadFrame(f"received topic {info.topic!r} without a schema or a partition")
        layouts = {version: layout(schema) for version, schema in schemas.items()}
        return cls(info, schemas, layouts)

    @property
    def name(self) -> str:
        return self.info.topic

    @property
    def version(self) -> int:
        """The newest version of the schema."""
        return max(self.schemas)

    @property
    def schema(self) -> pa.Schema:
        return self.schemas[self.version]

    @property
    def layout(self) -> Layout:
        return self.layouts[self.version]

    @property
    def key(self) -> str | None:
        return dict(self.info.options).get(KEY_OPTION)

    @property
    def retention(self) -> Retention:
        age = self.info.retention_age_ms
        # Capped to the range of timedelta, which exceeds any real retention.
        known = None if age is None else timedelta(milliseconds=min(age, 10**14))
        return Retention(known, self.info.retention_size)

    @property
    def created_at(self) -> datetime:
        since = timedelta(microseconds=min(max(0, self.info.created_at), _MICROSECONDS_MAX))
        return datetime(1970, 1, 1, tzinfo=UTC) + since

    def partition(self, number: int) -> PartitionInfo:
        """Return partition `number`; the error says how many there are."""
        count = len(self.info.partitions)
        number = whole(number, "partition")
        if not 0 <= number < count:
            last = count - 1
            raise BadRequest(
                f"topic {self.name!r} has no partition {number}",
                hint=f"It has {count}, from 0 to {last}" if last else "It has only partition 0",
            )
        return self.info.partitions[number]

    def numbers(self, chosen: int | Sequence[int] | None) -> list[int]:
        """Return the partitions that a user named; None means all."""
        if chosen is None:
            return list(range(len(self.info.partitions)))
        is_one = isinstance(chosen, int | str | bytes) or not isinstance(chosen, Iterable)
        named: Iterable[object] = [chosen] if is_one else chosen  # type: ignore[assignment]
        numbers = list(dict.fromkeys(whole(each, "partition") for each in named))
        for number in numbers:
            self.partition(number)
        return numbers
