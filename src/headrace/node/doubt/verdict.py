"""The verdict on group 0 at a start: one pure function of values.

    Recovered    it is whole, and no evidence shows that there was more
    Healed       it has less than the copy of metadata, and the copy fits all other evidence
    Held         the metadata is uncertain: nothing is changed, and all of it is in doubt

The evidence: its head in the file of heads, the copy, the survey of group 0, and the metadata
revision that each shard follows. Recovered does not depend on the shards.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.journal.heads import Head
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Op, Revision
from headrace.model.revisions import Order, shown
from headrace.node.doubt.metadata_copy import Copy


@dataclass(frozen=True, slots=True)
class Remains:
    """The result of a survey of group 0."""

    found: tuple[Head, ...]  # of every whole entry and snapshot, and of the superblock's pair
    reach: Op  # the highest op found, or recorded there as durable
    left: Head | None  # where a replay would end; None: nothing can be replayed
    is_whole: bool  # a recovery accepts it: it reaches all it recorded, and its head


@dataclass(frozen=True, slots=True)
class CopyState:
    """A readable copy, and the metadata state that its entries produce."""

    copy: Copy
    metadata: MetadataState

    @property
    def history(self) -> dict[Op, bytes]:
        """The checksums of all entries that the copy, or its state, knows."""
        return {one.op: one.checksum for one in self.metadata.lineage} | self.copy.history


@dataclass(frozen=True, slots=True)
class Recovered:
    """Group 0 is recovered from its own files."""

    is_kin: bool = False  # the copy has the same history: its record of older entries is kept


@dataclass(frozen=True, slots=True)
class Healed:
    """Group 0 is rebuilt from the copy."""

    left: Op | None  # where its remains ended; None: nothing was left
    to: Op

    @property
    def words(self) -> str:
        start = "nothing" if self.left is None else f"op {self.left}"
        return f"healed from the copy of metadata, from {start} to op {self.to}"


@dataclass(frozen=True, slots=True)
class Held:
    """Nothing is changed, for these reasons."""

    reasons: tuple[str, ...]


Verdict = Recovered | Healed | Held
Shards = Mapping[GroupId, Revision | None]  # None: it did not start


def judge(
    head: Head | None, state: CopyState | None, remains: Remains, shards: Shards
) -> Verdict:
    """Decide how group 0 starts."""
    if remains.is_whole and (state is None or not _says_more(state, remains)):
        return Recovered(state is not None and _is_shown(state, remains))
    if state is None:
        return Held(("there is no readable copy of the metadata",))
    reasons = tuple(_doubts(head, state, remains, shards))
    if reasons:
        return Held(reasons)
    left = None if remains.left is None else remains.left.op
    return Healed(left, state.copy.newest.op)


def _says_more(state: CopyState, remains: Remains) -> bool:
    """Return whether a copy has entries that group 0 lacks: newer or different ones."""
    assert remains.left is not None
    return state.copy.newest.op > remains.left.op or _strays(state, remains) is not None


def _is_shown(state: CopyState, remains: Remains) -> bool:
    """Return whether any entry of the copy was found in group 0."""
    history = state.history
    return state.copy.newest.op == 0 or any(
        history.get(one.op) == one.tip for one in remains.found
    )


def _strays(state: CopyState, remains: Remains) -> Head | None:
    """Return a found entry whose op has another entry in the copy."""
    history = state.history
    strays = (one for one in remains.found if history.get(one.op, one.tip) != one.tip)
    return next(strays, None)


def _doubts(
    head: Head | None, state: CopyState, remains: Remains, shards: Shards
) -> Iterator[str]:
    """Yield the reasons why group 0 must not be rebuilt from the copy."""
    copy, newest, history = state.copy, state.copy.newest, state.history
    if head is not None and head.op > newest.op:
        yield f"the copy ends at op {newest.op}, but group 0 was at op {head.op}"
    elif head is not None and history.get(head.op, head.tip) != head.tip:
        yield f"op {head.op} of the copy is not the one that was acknowledged"
    if head is None and copy.flaw is not None:
        yield f"the copy is damaged after op {newest.op}, and no head shows where it ended"
    if remains.reach > newest.op:
        yield f"the copy ends at op {newest.op}, but group 0 has op {remains.reach}"
    stray = _strays(state, remains)
    if stray is not None:
        yield f"op {stray.op} of group 0 differs from that of the copy"
    last = max(remains.found, key=lambda one: one.op, default=None)
    if last is not None and last.op <= newest.op and last.op not in history:
        yield f"op {last.op} of group 0 is older than the history of the copy"
    for number, revision in sorted(shards.items()):
        if revision is None:
            yield f"group {number} did not start, so the revision that it follows is unknown"
        elif state.metadata.order_of(revision) in (Order.AFTER, Order.BRANCHED):
            yield (
                f"group {number} follows revision {shown(revision)} of the metadata, but the "
                f"copy has revision {shown(state.metadata.revision)}"
            )
