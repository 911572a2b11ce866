"""Lag of consumer groups, in rows and in seconds.

Lag in seconds is the age of the oldest row that a group has not consumed; 0 if there is none.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

import headrace
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.output import JsonShape
from headrace.errors import Expired, TopicUnknown

CAUGHT_UP = "caught up"
BEHIND = "behind"
EXPIRED = "rows lost"  # retention removed rows before the group read them
BEYOND = "beyond the end"  # acknowledged rows are missing


class CursorLag(JsonShape, frozen=True, kw_only=True):
    """Position of a consumer group in one partition."""

    partition: int
    next: int
    first: int
    end: int
    lag_rows: int
    lag_seconds: float
    hold: bool
    state: str


class GroupLag(JsonShape, frozen=True, kw_only=True):
    """Position of a consumer group in one topic."""

    group: str
    topic: str
    partitions: int
    lag_rows: int
    lag_seconds: float
    hold: bool
    state: str
    cursors: list[CursorLag]


@dataclass(frozen=True, slots=True)
class _Ages:
    topic: headrace.Topic
    now: datetime

    def seconds(self, partition: int, offset: int) -> float:
        """Return the age of a row; 0 if retention removes it meanwhile."""
        try:
            rows = self.topic.read(
                partition, start=offset, end=offset + 1, columns=["_timestamp"]
            ).to_table()
        except Expired:
            return 0.0
        moment = rows.column(0)[0].as_py()
        assert isinstance(moment, datetime)
        return max(0.0, (self.now - moment).total_seconds())


def lags_of(topic: headrace.Topic, group: str | None = None) -> list[GroupLag]:
    """Return the positions of a topic's groups, sorted by name."""
    cursors = topic.cursors(group)
    bounds = {each.partition: each for each in topic.bounds()}
    ages = _Ages(topic, datetime.now(UTC))
    found: dict[str, list[CursorLag]] = {}
    for cursor in sorted(cursors, key=lambda each: (each.group, each.partition)):
        lag = _cursor_lag(cursor, bounds[cursor.partition], ages)
        found.setdefault(cursor.group, []).append(lag)
    return [_group_lag(name, topic.name, lags) for name, lags in found.items()]


def all_lags(log: headrace.Log, topic: str | None, group: str | None = None) -> list[GroupLag]:
    """Return the positions of groups, in one topic or in all topics."""
    if topic is not None:
        return lags_of(log.topic(topic), group)
    found: list[GroupLag] = []
    for name in log.topics():
        with suppress(TopicUnknown):  # deleted meanwhile
            found += lags_of(log.topic(name), group)
    return found


def found_group(log: headrace.Log, topic: str | None, group: str) -> list[GroupLag]:
    """Return the positions of one group, or raise NotFound with a similar name."""
    found = all_lags(log, topic, group)
    if found:
        return found
    names = {each.group for each in all_lags(log, topic)}
    near = get_close_matches(group, names, 1)
    where = f" in topic {topic}" if topic is not None else ""
    hint = f"Did you mean {near[0]!r}?" if near else "`headrace group list` lists them"
    raise NotFound(f"there is no consumer group {group!r}{where}", hint=hint)


def shown_rows(count: int) -> str:
    """Format a number of rows for people."""
    return f"{count:,}"


def worst(states: Iterable[str]) -> str:
    """Return the most urgent state."""
    ranks = (CAUGHT_UP, BEHIND, EXPIRED, BEYOND)
    return max(states, key=ranks.index)


def _cursor_lag(cursor: headrace.Cursor, bounds: headrace.Bounds, ages: _Ages) -> CursorLag:
    place = max(cursor.next, bounds.first)
    state = CAUGHT_UP if cursor.next == bounds.end else BEHIND
    if cursor.next < bounds.first:
        state = EXPIRED
    elif cursor.next > bounds.end:
        state = BEYOND
    return CursorLag(
        partition=cursor.partition,
        next=cursor.next,
        first=bounds.first,
        end=bounds.end,
        lag_rows=bounds.end - cursor.next,
        lag_seconds=ages.seconds(cursor.partition, place) if place < bounds.end else 0.0,
        hold=cursor.hold,
        state=state,
    )


def _group_lag(group: str, topic: str, cursors: Sequence[CursorLag]) -> GroupLag:
    return GroupLag(
        group=group,
        topic=topic,
        partitions=len(cursors),
        lag_rows=sum(each.lag_rows for each in cursors),
        lag_seconds=max(each.lag_seconds for each in cursors),
        hold=any(each.hold for each in cursors),
        state=worst(each.state for each in cursors),
        cursors=list(cursors),
    )
