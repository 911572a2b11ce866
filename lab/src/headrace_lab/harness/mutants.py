"""Planted bugs: each must be caught, or the harness that misses it proves nothing.

A mutant replaces a piece of the code under test while it is planted; production code is unaware
of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import DiskFull, WriteFailed
from headrace.journal import heads, snapshot, spare, superblock
from headrace.journal.checkpoint import Captured, Checkpoints
from headrace.journal.entry import SEAL, Flaw, decode_header
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix
from headrace.journal.group import Group
from headrace.journal.heads import Head, HeadsFile
from headrace.journal.journal import Journal
from headrace.journal.journal_file import size_for
from headrace.journal.machine_seam import MachineState
from headrace.journal.recovery import judge, mend, recover, survey
from headrace.journal.recovery.recover import _Recovery
from headrace.journal.recovery.scan import _Bad, _Scanner
from headrace.journal.recovery.scan_findings import Evidence
from headrace.journal.recovery.walk import FileReader, JournalFrame
from headrace.journal.ring import Slot
from headrace.journal.spare import Spares
from headrace.journal.superblock import Checkpoint, SuperblockFile
from headrace.model.ids import Op
from headrace.node.group.pump import Pump
from headrace.storage.atomic import atomic_replace, is_leftover

# A patch says where, which name or key, and what stands there while the bug is planted. What
# is planted has the shape of what it replaces, which no type can say.
Patch = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug and the harness that must catch it."""

    name: str
    harness: str  # which must catch it, such as sweep or matrix
    patches: tuple[Patch, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Put the bug in, and take it out again whatever happens."""
        with ExitStack() as undo:
            for owner, name, value in self.patches:
                if isinstance(owner, dict):
                    undo.callback(owner.__setitem__, name, owner[name])
                    owner[name] = value
                else:
                    undo.callback(setattr, owner, name, getattr(owner, name))
                    setattr(owner, name, value)
            yield


@contextmanager
def planted(name: str, mutants: Sequence[Mutant] | None = None) -> Iterator[None]:
    """Plant the bug of this name, none if it is empty."""
    if not name:
        yield
        return
    mutant = next(one for one in mutants or MUTANTS if one.name == name)
    with mutant.planted():
        yield


_sync = Journal.sync
_write_synced = Journal._write_synced
_apply = Group.apply
_candidates = survey._candidates
_tail_usable = judge._is_usable
_evidence = survey._evidence
_survey = survey.survey


def _ack_before_sync(self: Journal, file: Any, stage: str) -> None:
    if stage != "append":
        _sync(self, file, stage)


def _sync_retried(self: Journal, file: Any, stage: str) -> None:
    with suppress(OSError):
        file.storage.sync()
        return
    file.storage.sync()


def _not_undone(self: Journal, file: Any, pieces: Sequence[bytes], stage: str) -> None:
    try:
        file.storage.write(file.end, pieces)
    except OSError as error:
        raise WriteFailed(file.path, file.end, error) from error
    self.sync(file, stage)
    file.end += sum(len(piece) for piece in pieces)


def _end_first(self: Journal, frame_size: int) -> None:
    self._write_synced(self.newest, [self._bare(self.newest, FrameKind.END)], "end")
    needed = size_for(frame_size, 0)
    try:
        new = self.spares.enlist(
            self.directory, self.identity, Op(self.durable + 1), self.tip, needed
        )
    except OSError as error:
        raise DiskFull(self.directory.path, "roll") from error
    self.files.append(new)


def _drain_too_far(self: Checkpoints) -> None:
    previous = self.superblock.current.previous_op
    self.snapshots.prune(previous)
    self.journal.drain(previous)


def _drain_to_newest(self: Checkpoints) -> None:
    current = self.superblock.current
    self.snapshots.prune(current.previous_op)
    self.journal.drain(Op(max(current.checkpoint.op - 1, 0)))


def _prune_to_newest(self: Checkpoints) -> None:
    self.snapshots.prune(self.superblock.current.checkpoint.op)


def _paired_first(self: Checkpoints) -> Op | None:
    if not self.pending:
        return None
    captured = self.pending[0]
    _, named = snapshot._encode(
        self.snapshots.identity, captured.op, captured.tip, captured.state
    )
    self._pair(Checkpoint(captured.op, captured.tip, named.checksum))
    self.snapshots.persist(captured.op, captured.tip, captured.state)
    self.finish()
    self.pending.popleft()
    return captured.op


def _captured_early(self: Group, entry: Any) -> object:
    if entry.header.operation != SEAL:
        return _apply(self, entry)
    state: MachineState = self.machine.snapshot()
    self.machine.apply(entry)
    self.applied = entry.op
    self.checkpoints.capture(Captured(entry.op, entry.checksum, state))
    return None


def _cut_without_intent(
    journal: Journal, block: SuperblockFile, first: Op, suspect: Any = None
) -> None:
    mend._erase(journal, first)
    block.write(suspect=suspect)


def _one_copy(self: SuperblockFile, **changes: Any) -> Any:
    record = replace(self.current, sequence=self.current.sequence + 1, **changes)
    atomic_replace(self.directory, "superblock.a", [superblock.encode(record)])
    self.current = record
    return record


def _same_sequence(self: SuperblockFile, **changes: Any) -> Any:
    record = replace(self.current, sequence=max(self.current.sequence, 1), **changes)
    for name in superblock.NAMES:
        atomic_replace(self.directory, name, [superblock.encode(record)])
    self.current = record
    return record


def _replace_without_dir_sync(directory: Any, name: str, pieces: Sequence[bytes]) -> None:
    with suppress(FileNotFoundError):
        directory.unlink(name + ".tmp")
    file = directory.create(name + ".tmp")
    file.write(0, pieces)
    file.sync()
    file.close()
    directory.rename(name + ".tmp", name)


def parts_unchecked(file: Any, header: Any) -> Any:
    """Take both parts of a snapshot as they are."""
    data = file.read(snapshot._FIELDS.size, header.replicated_size + header.local_size)
    state = MachineState(data[: header.replicated_size], data[header.replicated_size :])
    return snapshot.Snapshot(Op(header.op), header.tip, state, header.checksum)


def _header_rot_unlinks(journal: Any, identity: Any) -> Any:
    candidates, unreadable = _candidates(journal, identity)
    for one in unreadable:
        journal.unlink(one.name)
    return candidates, []


def _newest_snapshot_only(found: Any, one: Any, pairing: Checkpoint) -> bool:
    return one.op >= pairing.op and _tail_usable(found, one, pairing)


def _no_evidence(block: Any, snapshots: Any, head: Any) -> Evidence:
    return Evidence(cut_from=_evidence(block, snapshots, head).cut_from)


def _beside_its_frame(*places: Any, **_: Any) -> Any:
    return _survey(*places[:3])


def _asked_below(found: Any, head: Head, base: Op, base_tip: bytes) -> bool:
    return any(one.op == head.op and one.checksum == head.tip for one in found.scan.entries)


def _unchecked_slot(data: bytes, path: str) -> Any:
    if len(data) < heads.SLOT_SIZE:
        return None
    *_, count, cluster, sequence, at = heads._FIELDS.unpack_from(data)
    if not sequence or count > heads.HEADS_MAX:
        return None
    packed = data[heads._FIELDS.size :][: count * heads._HEAD.size]
    read = heads._HEAD.iter_unpack(packed)
    return heads.HeadSlot(
        cluster, sequence, at, {each[0]: Head(each[1], each[2]) for each in read}
    )


def _newest_prepared(self: Pump) -> Head | None:
    return Head(self.replica.op, self.replica.tip) if self.replica.op else None


def _read_apart(self: Pump) -> Head | None:
    op = self.group.journal.durable
    return Head(op, self.replica.applied_tip) if op else None


def _only_who_runs(directory: Any, cluster: bytes, found: Any) -> HeadsFile:
    place = (found.place + 1) % heads.SLOT_COUNT
    sequence = found.newest.sequence if found.newest else 0
    return HeadsFile(directory, cluster, {}, sequence, place, found.is_whole)


def _next_slot(self: HeadsFile, data: bytes) -> None:
    place, self.place = self.place, (self.place + 1) % heads.SLOT_COUNT
    with self.directory.open(heads.NAME, writable=True) as storage:  # type: ignore[attr-defined]
        storage.write(place * heads.SLOT_SIZE, [data])
        storage.sync()
    self.place = place


def _stop_at_bad(
    self: _Scanner, index: int, file: Any, reader: Any, position: int, flaw: Flaw
) -> None:
    self.bad.append(_Bad(self.expected, index, position, flaw, None))


def _unchained(entries: Any, base: Op, tip: bytes) -> Iterator[Any]:
    yield from (found for found in entries if found.op > base)


def _body_unchecked(self: FileReader, position: int, prefix: Prefix) -> JournalFrame:
    data = self._view(position, prefix.size)
    header = decode_header(data[PREFIX_SIZE:])
    return (
        JournalFrame(prefix, flaw=header)
        if isinstance(header, Flaw)
        else JournalFrame(prefix, header)
    )


def _spare_sync(skipped: str) -> Callable[[Any, str], None]:
    original = spare._sync

    def sync(thing: Any, stage: str) -> None:
        if stage != skipped:
            original(thing, stage)

    return sync


def _twins_kept(self: Spares, live_ids: set[int]) -> None:
    for name in filter(is_leftover, self.directory.names()):
        self.directory.unlink(name)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _skip_one(self: _Recovery, running: Group, slots: Sequence[Slot]) -> int:
    wanted = [slot for slot in slots if self.plan.base < slot.op <= self.plan.replay_to]
    running.applied = Op(min(self.plan.base + 1, self.plan.replay_to))
    for slot in wanted[1:]:
        running.apply(running.journal.read_slot(slot))
    return len(wanted)


MUTANTS = (
    Mutant("ack before the sync", "sweep", ((Journal, "sync", _ack_before_sync),)),
    Mutant("a failed sync is retried", "sweep", ((Journal, "sync", _sync_retried),)),
    Mutant("a failed write is not undone", "sweep", ((Journal, "_write_synced", _not_undone),)),
    Mutant("end frame before its successor", "sweep", ((Journal, "_roll", _end_first),)),
    Mutant("drain one op too far", "sweep", ((Checkpoints, "finish", _drain_too_far),)),
    Mutant(
        "journal not kept to the previous checkpoint",
        "sweep",
        ((Checkpoints, "finish", _drain_to_newest),),
    ),
    Mutant("previous snapshot not kept", "sweep", ((Checkpoints, "finish", _prune_to_newest),)),
    Mutant("paired before persisted", "sweep", ((Checkpoints, "run", _paired_first),)),
    Mutant("state captured before its Seal", "sweep", ((Group, "apply", _captured_early),)),
    Mutant("cut without intent", "sweep", ((mend, "cut", _cut_without_intent),)),
    Mutant("torn tail not cut", "sweep", ((_Recovery, "_cut", _nothing),)),
    Mutant("tail trusted before durable", "sweep", ((mend, "rewrite", lambda *_: 0),)),
    Mutant("names trusted before durable", "sweep", ((_Recovery, "_sync_names", _nothing),)),
    Mutant("replay skips an op", "sweep", ((_Recovery, "_replay", _skip_one),)),
    Mutant("spare twin of a live file kept", "sweep", ((Spares, "tidy", _twins_kept),)),
    Mutant(
        "live name before the header is durable",
        "sweep",
        ((spare, "_sync", _spare_sync("sync of a new file")),),
    ),
    Mutant(
        "used before its name is durable",
        "sweep",
        ((spare, "_sync", _spare_sync("sync of a new name")),),
    ),
    Mutant(
        "snapshot without directory sync",
        "sweep",
        ((snapshot, "atomic_replace", _replace_without_dir_sync),),
    ),
    Mutant(
        "superblock sequence not raised", "sweep", ((SuperblockFile, "write", _same_sequence),)
    ),
    Mutant(
        "superblock acted on after one copy", "matrix", ((SuperblockFile, "write", _one_copy),)
    ),
    Mutant("mark skipped", "matrix", ((Journal, "mark", _nothing),)),
    Mutant(
        "header rot deletes the file", "matrix", ((survey, "_candidates", _header_rot_unlinks),)
    ),
    Mutant(
        "previous snapshot not tried", "matrix", ((judge, "_is_usable", _newest_snapshot_only),)
    ),
    Mutant(
        "snapshot parts not verified", "matrix", ((snapshot, "read_parts", parts_unchecked),)
    ),
    Mutant(
        "evidence ignored",
        "matrix",
        ((survey, "_evidence", _no_evidence), (_Scanner, "_note", _nothing)),
    ),
    Mutant(
        "scan ends at the first bad frame", "matrix", ((_Scanner, "_resync", _stop_at_bad),)
    ),
    Mutant(
        "chain not checked",
        "matrix",
        ((_Scanner, "_follows", lambda *_: True), (judge, "contiguous_from", _unchained)),
    ),
    Mutant("body checksum not checked", "matrix", ((FileReader, "_entry", _body_unchecked),)),
    Mutant(
        "evidence beside its frame only", "ranges", ((recover, "survey", _beside_its_frame),)
    ),
    Mutant("head asked for below the base", "ranges", ((judge, "reaches", _asked_below),)),
    Mutant(
        "a slot believed without its checksum", "ranges", ((heads, "decode", _unchecked_slot),)
    ),
    Mutant(
        "a head that is not durable", "heads", ((Pump, "head", property(_newest_prepared)),)
    ),
    Mutant("op and checksum read apart", "heads", ((Pump, "head", property(_read_apart)),)),
    Mutant("head lowered by a start", "heads", ((HeadsFile, "of", _only_who_runs),)),
    Mutant(
        "the other slot after a failed one", "heads", ((HeadsFile, "_write_slot", _next_slot),)
    ),
)
