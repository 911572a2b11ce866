"""Target of `group reset`: from the user's input to offsets, before and after.

to := earliest | latest | offset | time | shift:NUMBER
"""

import re
from collections.abc import Sequence
from typing import Final

import headrace
from headrace.cli.terminal.output import JsonShape
from headrace.cli.terminal.times import PLACES, place_of
from headrace.client.values.answers import Bounds
from headrace.errors import BadRequest

_SHIFT: Final = re.compile(r"shift:([-+]?[0-9]{1,18})", re.ASCII)
_TO: Final = "--to"


class Move(JsonShape, frozen=True, kw_only=True):
    """One partition before and after a reset. `before` is null where there is no cursor."""

    partition: int
    before: int | None
    after: int
    first: int
    end: int

    @property
    def lag_before(self) -> int | None:
        return None if self.before is None else self.end - self.before

    @property
    def lag_after(self) -> int:
        return self.end - self.after


def moves_of(
    topic: headrace.Topic, group: str, to: str, partitions: Sequence[int] | None
) -> list[Move]:
    """Return what a reset would do. Refuses offsets outside a partition."""
    bounds = {each.partition: each for each in topic.bounds()}
    chosen = list(bounds) if partitions is None else list(dict.fromkeys(partitions))
    for number in chosen:
        if number not in bounds:
            flaw = f"topic {topic.name} has no partition {number}"
            raise BadRequest(flaw, hint=f"It has {len(bounds)}, numbered from 0")
    cursors = {each.partition: each.next for each in topic.cursors(group)}
    places = _places(topic, to, {number: bounds[number] for number in chosen}, cursors)
    return [
        Move(
            partition=number,
            before=cursors.get(number),
            after=places[number],
            first=bounds[number].first,
            end=bounds[number].end,
        )
        for number in chosen
    ]


def _places(
    topic: headrace.Topic, to: str, bounds: dict[int, Bounds], cursors: dict[int, int]
) -> dict[int, int]:
    if (shift := _SHIFT.fullmatch(to)) is not None:
        return _shifted(int(shift[1]), bounds, cursors)
    if to.startswith("shift"):
        hint = "Write shift:-100 or shift:100"
        raise BadRequest(f"--to: {to!r} is not a valid shift", hint=hint)
    place = place_of(to, _TO)
    if place == "earliest":
        return {number: each.first for number, each in bounds.items()}
    if place == "latest":
        return {number: each.end for number, each in bounds.items()}
    if isinstance(place, int):
        for each in bounds.values():
            _check(place, each)
        return dict.fromkeys(bounds, place)
    found = topic.offsets_at(place)
    return {number: found[number] for number in bounds}


def _shifted(count: int, bounds: dict[int, Bounds], cursors: dict[int, int]) -> dict[int, int]:
    """Move each cursor by `count` rows, at most to the first row or the end."""
    places = {}
    for number, each in bounds.items():
        if number not in cursors:
            flaw = f"there is no cursor in partition {number} to shift"
            raise BadRequest(flaw, hint=f"Choose with --partition, or give {PLACES}")
        places[number] = min(max(cursors[number] + count, each.first), each.end)
    return places


def _check(place: int, bounds: Bounds) -> None:
    if not bounds.first <= place <= bounds.end:
        raise BadRequest(
            f"--to: offset {place} is not in partition {bounds.partition}",
            hint=f"It has {bounds.first} to {bounds.end}; choose partitions with --partition",
        )
