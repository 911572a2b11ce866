"""Judge what peers say before anything relies on it: shapes, ranges, order. Never an assert.

A peer proves by its connection that it is a replica of this cluster; what it says may still be
garbled, stale or from another release. What is wrong is named, counted and dropped.
"""

from collections.abc import Sequence
from itertools import pairwise

from headrace.model.ids import OP_MAX
from headrace.vsr.messages import (
    HEADERS_MAX,
    DoViewChange,
    E,
    Envelope,
    Exact,
    Header,
    Message,
    Prepares,
    StartView,
)

_NUMBERS = ("view", "log_view", "op", "commit", "first", "last", "head", "position", "size")


def flaw_of(envelope: Envelope[E], me: int, count: int) -> str | None:
    """Return what is wrong with a message, or None."""
    if not 0 <= envelope.sender < count or envelope.sender == me:
        return "sender out of range"
    if envelope.boot <= 0 or not 0 <= envelope.life <= envelope.sequence <= OP_MAX:
        return "life out of range"
    message = envelope.message
    for name in _NUMBERS:
        if not 0 <= getattr(message, name, 0) <= OP_MAX:
            return f"{name} out of range"
    return _flaw_of_body(message, count)


def _flaw_of_body(message: Message[E], count: int) -> str | None:
    match message:
        case Prepares(entries=entries):
            return _flaw_of_entries(entries, dense=True)
        case Exact(entries=entries):
            return _flaw_of_entries(entries, dense=False)
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
    return None if all(0 < entry.op <= OP_MAX for entry in entries) else "op out of range"


def _flaw_of_start_view(message: StartView) -> str | None:
    headers = message.headers
    if len(headers) > HEADERS_MAX or not message.commit <= message.op:
        return "start-view out of range"
    if headers and (headers[0].op != message.first or headers[-1].op > message.op):
        return "start-view headers out of place"
    return _flaw_of_chain(headers)


def _flaw_of_chain(headers: Sequence[Header]) -> str | None:
    for before, after in pairwise(headers):
        if after.op != before.op + 1 or after.parent != before.checksum:
            return "headers do not chain"
    return None


def _flaw_of_votes(message: DoViewChange, count: int) -> str | None:  # noqa: PLR0911
    votes = message.votes
    known = {len(message.lives), len(message.births) or count, len(message.boots) or count}
    if message.log_view > message.view or known != {count}:
        return "do-view-change out of range"
    suspect = message.suspect
    if suspect is not None and OP_MAX > suspect[1] > message.op + HEADERS_MAX:
        return "do-view-change suspects too much"
    if len(votes) != max(message.op - message.first + 1, 0) or len(votes) > HEADERS_MAX:
        return "do-view-change votes out of place"
    for place, vote in enumerate(votes):
        if vote.header is not None and vote.header.op != message.first + place:
            return "do-view-change header out of place"
        if vote.present and (vote.nack or vote.header is None):
            return "do-view-change vote for and against"
    for before, after in pairwise(vote.header for vote in votes):
        if before and after and after.parent != before.checksum:
            return "do-view-change headers do not chain"
    return None
