"""Erases the rows of deleted topics from every file of a shard, and reports what is left.

    closed     every unwanted life is closed in the log: no later Seal names its rows
    renewed    the next append clears the spares and begins a file that never held anything
    1st Seal   carries live rows out of every older carry file and kept journal file
    2nd Seal   no kept snapshot names an older file: segments, carry files and kept files are
               deleted, and the drain unlinks older journal files instead of reusing them

All steps are ordinary parts of checkpoints: a crash leaves what a checkpoint's crash leaves,
and live rows are in synced files before older files are deleted. The request is kept in memory
only: after a restart it is repeated from the first step.

Nothing here runs by itself: each request takes the step that is due. A step that was begun
completes with the regular checkpoints.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from headrace.errors import NotReady, NotYet, ReadFailed
from headrace.journal.journal import Journal
from headrace.journal.journal_file import first_op_of
from headrace.model.ids import GroupId, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import is_within, shown
from headrace.node.group.pump import Pump, not_ready
from headrace.node.leases import Leases
from headrace.node.shard.shard import Shard
from headrace.node.shard.views import TargetView
from headrace.partition.files.carry import kept_id, op_of
from headrace.partition.files.file_set import ShardFiles
from headrace.partition.segments.segment import parse_name
from headrace.partition.shard_store import Store
from headrace.storage.atomic import is_leftover
from headrace.storage.seam import joined
from headrace.wire.erase_messages import EraseDeleted, Erasing, UnerasedInfo

_SOON: Final = "removed by one of the next two checkpoints"
_STAYED: Final = "two checkpoints left it in place: check `headrace status` and `doctor --deep`"
LEFT_COUNT_MAX: Final = 100  # files named in one response
_NUMBERED = re.compile(r"\.[0-9]+$")  # suffix of a duplicate name in quarantine


class Left(NamedTuple):
    """A file that holds, or may hold, rows of deleted topics."""

    path: str
    why: str
    waits: bool = True  # for a checkpoint, which may retry its removal


class _Begun(NamedTuple):
    revision: Revision  # everything deleted up to it was closed
    op: Op  # at or below this op


class _ErasingNode(Protocol):
    """A shard in service."""

    @property
    def shard(self) -> Shard: ...


Look = Callable[[], tuple[Erasing, list[Shard]]]


@dataclass(slots=True)
class Erasure:
    """The erasures requested from a node, by shard."""

    shards: Mapping[GroupId, _ErasingNode]
    leases: Leases
    begun: dict[GroupId, _Begun] = field(default_factory=dict)

    def begin(self, request: EraseDeleted, count: int, target: TargetView, now: float) -> Look:
        """Begin where due, in all of `count` shards, on the loop's thread.

        The returned function checks the disk, in any thread; it returns the answer and the
        shards that need a checkpoint.
        """
        revision = Revision(request.revision) or target.revision
        if not is_within(revision, target.revision):
            known = shown(target.revision)
            text = f"the metadata here is at revision {known}, not yet at {shown(revision)}"
            raise NotYet("metadata_behind", text, hint="Retry in a moment")
        shards = [self._serving(GroupId(number)) for number in range(1, count + 1)]
        waiting = [one for shard in shards for one in self._begin(shard, revision, target)]
        leased = {name: end - now for name, end in self.leases.ends().items()}

        def look() -> tuple[Erasing, list[Shard]]:
            left = {shard.number: self._left(shard, leased) for shard in shards}
            due = [one for one in shards if _needs_seal(left[one.number], one.pump)]
            every = [*waiting, *(one for each in left.values() for one in each)]
            return _answer(revision, every, shards), due

        return look

    def _serving(self, number: GroupId) -> Shard:
        """Return a shard; NotReady if its files cannot be checked."""
        if number not in self.shards:
            raise NotReady(f"shard {number} is not serving", hint="Check the node's status")
        shard = self.shards[number].shard
        if shard.pump.halted is not None:
            raise not_ready(shard.pump.halted)
        return shard

    def _begin(self, shard: Shard, revision: Revision, target: TargetView) -> Iterator[Left]:
        """Begin in a shard, or yield what it waits for."""
        known = self.begun.get(shard.number)
        if known is not None and is_within(revision, known.revision):
            return
        lives = _unwanted(shard, target)
        if lives:
            more = f", and {len(lives) - 1} more" if len(lives) > 1 else ""
            text = f"not closed yet: partition {lives[0]}{more}"
            yield Left(shard.store.keeper.files.segments.path, text, waits=False)
            return
        op = shard.pump.group.applied
        shard.pump.group.journal.erase_through = op
        self.begun[shard.number] = _Begun(target.revision, op)

    def _left(self, shard: Shard, leased: Mapping[str, float]) -> list[Left]:
        """Find the files left in a shard. `leased` has remaining seconds, by segment."""
        begun = self.begun.get(shard.number)
        if begun is None:
            return []  # it waits
        try:
            return list(_left(shard.store, begun.op, leased))
        except OSError as error:
            raise ReadFailed(shard.store.keeper.files.segments.path, error) from error


def _unwanted(shard: Shard, target: TargetView) -> list[str]:
    """Name the lives that the machine has but metadata no longer wants."""
    found = []
    for namespace, partition in shard.state.partitions.items():
        wanted = target.partitions.get(namespace)
        if wanted is None or wanted.created != partition.created:
            found.append(f"{namespace:x}")
    return found


def _needs_seal(left: Sequence[Left], pump: Pump) -> bool:
    """Return whether a checkpoint would help, and none is in progress."""
    is_coming = pump.owes_seal or pump.seals_in_flight or pump.group.checkpoints.pending
    return not is_coming and any(one.waits for one in left)


def _answer(revision: Revision, left: Sequence[Left], shards: Sequence[Shard]) -> Erasing:
    failed = [str(one.pump.last_failure) for one in shards if one.pump.last_failure]
    why = f"; checkpoints fail: {'; '.join(failed)}" if failed else ""
    shown = left[:LEFT_COUNT_MAX]
    return Erasing(
        revision,
        len(left),
        tuple(UnerasedInfo(one.path, one.why + (why if one.waits else "")) for one in shown),
    )


def _left(store: Store, begun: Op, leased: Mapping[str, float]) -> Iterator[Left]:
    group, files = store.group, store.keeper.files
    journal, spares = group.journal, group.journal.spares
    why = dict(files.stuck.findings())
    for stuck in group.stuck:
        why.update(stuck.findings())
    is_renewed = journal.renewed_through >= begun
    fresh = journal.fresh_from if is_renewed else Op(begun + 1)
    is_waiting = group.superblock.current.previous_op < fresh
    if not is_renewed:
        text = "removed when the journal starts a new file (needs free disk space)"
        yield Left(spares.directory.path, text)
    elif is_waiting:
        yield Left(journal.directory.path, "removed after two more checkpoints")
    usual = _SOON if is_waiting or group.checkpoints.pending else _STAYED
    yield from _segments(store, why, leased, usual)
    paths = [joined(files.carries.path, name) for name in _carried(files, fresh)]
    barred = (
        joined(files.carries.path, name) for name in files.carries.names() if is_leftover(name)
    )
    paths += [path for path in barred if path in why]
    paths += [joined(journal.directory.path, name) for name in _journaled(journal, fresh)]
    paths += [joined(spares.directory.path, name) for name in list(spares.condemned)]
    yield from (Left(path, why.get(path, usual)) for path in paths)
    for name in files.quarantine.names():
        plain = _NUMBERED.sub("", name)  # snapshots and segments of topics that are there stay
        if plain.endswith((".wal", ".carry")) or _is_of_the_deleted(store, plain):
            text = "in quarantine: delete it if you need nothing else in it"
            yield Left(joined(files.quarantine.path, name), text, waits=False)


def _carried(files: ShardFiles, fresh: Op) -> Iterator[str]:
    """Yield the carry files and kept files that may hold entries below `fresh`."""
    for name in files.carries.names():
        seal_op, file_id = op_of(name), kept_id(name)
        if file_id is not None:
            seal_op = files.kept.get(file_id, Op(0))
        if seal_op is not None and seal_op < fresh:
            yield name


def _journaled(journal: Journal, fresh: Op) -> Iterator[str]:
    for name in journal.directory.names():
        first_op = first_op_of(name)
        if first_op is not None and first_op < fresh:
            yield name


def _segments(
    store: Store, why: Mapping[str, str], leased: Mapping[str, float], usual: str
) -> Iterator[Left]:
    files = store.keeper.files
    for name in files.segments.names():
        path = joined(files.segments.path, name)
        if is_leftover(name) and path in why:
            yield Left(path, why[path])
        elif not _is_of_the_deleted(store, name):
            continue
        elif name in leased:
            text = f"a reader holds a lease on it, for {leased[name]:.0f} s unless renewed"
            yield Left(path, text, waits=False)  # whose end asks for a checkpoint
        elif path in why:
            yield Left(path, why[path])
        else:
            yield Left(path, "a reader has it open" if files.holds[name] else usual)


def _is_of_the_deleted(store: Store, name: str) -> bool:
    parsed = parse_name(name)
    if parsed is None:
        return False
    return parsed[1] <= store.machine.state.closed.get(Namespace(parsed[0]), 0)
