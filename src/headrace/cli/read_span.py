"""`--from` and `--to` as offsets of each partition.

Partitions are of different lengths. One that does not reach an offset gives what it has, as
long as another one reaches it; an offset that none reaches is a mistake, and told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import headrace
from headrace.cli.times import Place, iso, place_of
from headrace.client.spans import EARLIEST, LATEST
from headrace.client.values import Bounds
from headrace.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Said:
    """A place as it was typed, and what it is."""

    option: str
    text: str
    place: Place

    @classmethod
    def of(cls, option: str, text: str) -> "Said":
        return cls(option, text, place_of(text, option))

    def __str__(self) -> str:
        if isinstance(self.place, datetime) and not self.text[0].isdigit():
            return f"{self.option} {self.text} ({iso(self.place)})"
        return f"{self.option} {self.text}"


@dataclass(frozen=True, slots=True)
class Span:
    """Where a read begins in each partition, and before which offset it ends."""

    starts: dict[int, int]
    ends: dict[int, int]


def span_of(
    topic: headrace.Topic, partitions: Sequence[int], start: str | None, end: str | None
) -> Span:
    """Find the offsets that `--from` and `--to` mean. No partitions: all."""
    first = Said.of("--from", EARLIEST if start is None else start)
    last = Said.of("--to", LATEST if end is None else end)
    _check_order(first, last)
    bounds = [each for each in topic.bounds() if not partitions or each.partition in partitions]
    starts, ends = _offsets(topic, first, bounds), _offsets(topic, last, bounds)
    return Span(starts, {number: max(starts[number], ends[number]) for number in starts})


def _check_order(first: Said, last: Said) -> None:
    if _is_after(first.place, last.place):
        raise BadRequest(f"{first} is after {last}", hint="Give the earlier one to --from")


def _is_after(start: Place, end: Place) -> bool:
    if isinstance(start, int) and isinstance(end, int):
        return start > end
    if isinstance(start, datetime) and isinstance(end, datetime):
        return start > end
    return (start, end) == (LATEST, EARLIEST)


def _offsets(topic: headrace.Topic, said: Said, bounds: Sequence[Bounds]) -> dict[int, int]:
    if said.place == EARLIEST:
        return {each.partition: each.first for each in bounds}
    ends = {each.partition: each.end for each in bounds}
    if said.place == LATEST or not ends:
        return ends
    if isinstance(said.place, int):
        _check_reached(said, said.place, ends)
        return {number: min(said.place, end) for number, end in ends.items()}
    assert isinstance(said.place, datetime)
    found = topic.offsets_at(said.place)
    return {number: min(found[number], end) for number, end in ends.items()}


def _check_reached(said: Said, offset: int, ends: dict[int, int]) -> None:
    longest = max(ends, key=lambda number: ends[number])
    if offset > ends[longest]:
        hint = f"The longest is partition {longest}, which ends at {ends[longest]:,}"
        raise BadRequest(f"{said} is past the end of every partition", hint=hint)
