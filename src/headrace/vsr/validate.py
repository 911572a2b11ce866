"""Validates peer messages before anything relies on them: shape, range, order. No asserts.

A peer's connection proves that it is a replica of this cluster; its messages may still be
corrupt, stale or from another release. Invalid ones are named, counted and dropped.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from headrace.model.ids import OP_MAX, STARTS_MAX, Op, View
from headrace.vsr.peer_messages import (
    CHECKSUM_SIZE,
    HEADERS_MAX,
    Amnesia,
    DoViewChange,
    E,
    Envelope,
    Exact,
    Heartbeat,
    Message,
    Offer,
    PrepareHeader,
    Prepares,
    StartView,
)

_NUMBERS = ("view", "log_view", "op", "commit", "first", "last", "head", "position", "size")
_COUNT_MAX: Final = 2**62  # of numbers incremented from a peer's value: leaves headroom
VIEW_STEP_MAX: Final = 2**32  # more elections than happen while a replica is away
OP_STEP_MAX: Final = 2**40  # more ops than a group runs meanwhile
RING_MAX: Final = 2**17  # no log extends further above its known commit
SNAPSHOT_SIZE_MAX: Final = 2**32


def flaw_of(envelope: Envelope[E], me: int, count: int, view: View, head: Op) -> str | None:
    """Return the flaw of a message for replica `me`, in `view` with `head`, or None."""
    if not 0 <= envelope.sender < count or envelope.sender == me:
        return "sender out of range"
    if envelope.boot <= 0 or not 0 <= envelope.life <= envelope.sequence <= _COUNT_MAX:
        return "life out of range"
    if not abs(envelope.wall) <= _COUNT_MAX:
        return "wall out of range"
    starts = envelope.past
    if len(starts) > STARTS_MAX or not all(
        0 < one <= OP_MAX for each in starts for one in each
    ):
        return "past out of range"
    message = envelope.message
    return _flaw_of_numbers(message, view, head) or _flaw_of_body(message, count)


def _flaw_of_numbers(message: Message[E], view: View, head: Op) -> str | None:
    for name in _NUMBERS:
        if not 0 <= getattr(message, name, 0) <= OP_MAX:
            return f"{name} out of range"
    if getattr(message, "view", 0) > view + VIEW_STEP_MAX:
        return "view out of reach"
    if max(getattr(message, "op", 0), getattr(message, "commit", 0)) > head + OP_STEP_MAX:
        return "op out of reach"
    return None


def _flaw_of_body(message: Message[E], count: int) -> str | None:  # noqa: PLR0911
    match message:
        case Prepares(entries=entries):
            if message.commit > message.op:
                return "commit above the head"
            return _flaw_of_entries(entries, dense=True)
        case Exact(entries=entries):
            return _flaw_of_entries(entries, dense=False)
        case Heartbeat():
            return "commit above the head" if message.commit > message.op else None
        case Amnesia():
            return _flaw_of_amnesia(message)
        case Offer():
            if not 0 < message.size <= SNAPSHOT_SIZE_MAX:
                return "size of a snapshot out of range"
            return _flaw_of_entries((message.entry,), dense=False)
        case StartView():
            return _flaw_of_start_view(message)
        case DoViewChange():
            return _flaw_of_votes(message, count)
        case _:
            return None


def _flaw_of_entries(entries: Sequence[E], *, dense: bool) -> str | None:
    if dense:
        for before, after in pairwise(entries):
            if after.op != before.op + 1 or after.parent != before.checksum:
                return "entries do not chain"
    if not all(0 <= entry.timestamp <= _COUNT_MAX for entry in entries):
        return "timestamp out of range"
    return None if all(0 < entry.op <= OP_MAX for entry in entries) else "op out of range"


def _flaw_of_start_view(message: StartView) -> str | None:
    headers = message.headers
    if len(headers) > HEADERS_MAX or not message.commit <= message.op:
        return "start-view out of range"
    if headers and (headers[0].op != message.first or headers[-1].op > message.op):
        return "start-view headers out of place"
    return _flaw_of_chain(headers)


def _flaw_of_chain(headers: Sequence[PrepareHeader]) -> str | None:
    if not all(map(_is_sound, headers)):
        return "header out of range"
    for before, after in pairwise(headers):
        if after.op != before.op + 1 or after.parent != before.checksum:
            return "headers do not chain"
    return None


def _is_sound(header: PrepareHeader) -> bool:
    sizes = {len(header.checksum), len(header.parent)}
    return sizes == {CHECKSUM_SIZE} and 0 <= header.timestamp <= _COUNT_MAX


def _flaw_of_amnesia(message: Amnesia) -> str | None:
    if not all(0 < one <= _COUNT_MAX // 2 for one in (message.life, message.sequence)):
        return "sequence out of range"
    return None if 0 < message.known <= OP_MAX else "boot out of range"


def _flaw_of_votes(message: DoViewChange, count: int) -> str | None:
    votes = message.votes
    known = {len(message.lives), len(message.boots)}
    if message.log_view > message.view or known != {count}:
        return "do-view-change out of range"
    suspect = message.suspect
    if suspect is not None and OP_MAX > suspect[1] > message.op + HEADERS_MAX:
        return "do-view-change suspects too much"
    if len(votes) != message.op - message.first + 1 or len(votes) > HEADERS_MAX:
        return "do-view-change votes out of place"
    if message.op > message.commit + RING_MAX:
        return "do-view-change head out of reach"
    return _flaw_of_each(message)


def _flaw_of_each(message: DoViewChange) -> str | None:
    votes = message.votes
    if not all(vote.header is None or _is_sound(vote.header) for vote in votes):
        return "header out of range"
    for place, vote in enumerate(votes):
        if vote.header is not None and vote.header.op != message.first + place:
            return "do-view-change header out of place"
        if vote.present and (vote.nack or vote.header is None):
            return "do-view-change vote for and against"
    for before, after in pairwise(vote.header for vote in votes):
        if before and after and after.parent != before.checksum:
            return "do-view-change headers do not chain"
    return None
