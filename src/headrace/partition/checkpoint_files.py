"""Keeps the files that a shard's snapshots name: segments and carry files.

A checkpoint at a Seal, step by step, and what a crash after each leaves:

    written    each due segment, under a temporary name    leftovers, unlinked at the next start
    renamed    the directory synced once for all           unnamed segments, set aside, written
                                                           again by the replay of the same Seal
    linked     journal files that are mostly live          second names: see `linked_journals`
    carried    entries in no segment, in one new file      an unnamed carry file, likewise
    withdrawn  in a second attempt with more to carry, the snapshot of the first, before the
               carry file is replaced                      the previous snapshot is used
    named      by the snapshot                             a newer snapshot, accepted
    collected  files that no kept snapshot names           collected later

A segment counts as placed only once its name is durable. A failed step is retried for the same
Seal, and no later step is skipped.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.errors import CorruptEntry, DiskFull, ReadFailed, SealFailed, StorageFailed
from headrace.journal.checkpoint import Captured
from headrace.journal.entry import CHECKSUM_SIZE, Entry, size_of
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.journal import Journal
from headrace.journal.machine_seam import MachineState
from headrace.journal.ring import Slot
from headrace.journal.snapshot import SnapshotFiles
from headrace.model.ids import Identity, Op
from headrace.partition.files import linked_journals
from headrace.partition.files import placement as local_part
from headrace.partition.files.batched_reads import glance
from headrace.partition.files.carry import CarryFile, write_carry
from headrace.partition.files.carry_table import Item
from headrace.partition.files.file_set import FileFinding, ShardFiles
from headrace.partition.files.placement import Carried, Local, PlacedHere, UnplacedHere
from headrace.partition.machine.partitions_machine import Capture, PartitionsMachine
from headrace.partition.machine.state import PartitionsState, Piece, Placed, Segment, Unplaced
from headrace.partition.segments.seal_job import (
    DAMAGED,
    FULL,
    UNSEALABLE,
    Done,
    Outcome,
    SealJob,
    SealPart,
    SealRefused,
)
from headrace.partition.segments.sealer import Sealer
from headrace.partition.segments.segment import SegmentInfo
from headrace.storage.atomic import LEFTOVER_SUFFIX, refuse_if_poisoned
from headrace.storage.seam import joined
from headrace.storage.stream import whole_digest

# Above this, the live entries of the oldest are copied on: one entry must not hold a file, its
# space and a descriptor for as long as a transaction may take.
CARRY_COUNT_MAX: Final = 64
# The same for entries in kept files. No run waits longer than 16 Seals: entries that are live
# then are staged.
KEPT_COUNT_MAX: Final = 24

Carrying = Mapping[Op, CarryFile]  # the newest carry file with each op


@dataclass(slots=True)
class CheckpointFiles:
    """See `journal.checkpoint.Keeper`. One thread at a time calls it."""

    machine: PartitionsMachine
    identity: Identity
    files: ShardFiles
    sealer: Sealer
    new_id: Callable[[], int]
    poisoned: StorageFailed | None = None  # a sync of a directory failed: never sync it again

    @property
    def kept(self) -> Container[int]:
        return self.files.kept

    def restore(self, state: MachineState | None) -> None:
        """Find the files that a state names, and set the places of its segments."""
        known = local_part.NOTHING if state is None else local_part.decode(state.local)
        self.files.restore(known, self.machine.state.sealed_op)
        give_places(self.machine.state, known)

    def seal(
        self, captured: Captured, journal: Journal, snapshots: SnapshotFiles
    ) -> MachineState:
        """Write the segments of the Seal, and carry the rest."""
        refuse_if_poisoned(self.poisoned)
        journal.refuse_if_poisoned()
        capture = self.machine.captures[captured.op]
        is_carried = self._write_segments(capture, journal, snapshots)
        if not is_carried or _unplaced_ops(capture):
            self._carry(_needed(capture), capture.op, journal, snapshots)
        known = self._local(capture)
        self.files.name(capture.op, known.names)
        # This one stays: its snapshot may fail, and then everything is repeated.
        for op in list(self.machine.captures):  # a copy: another thread may add to them
            if op < capture.op:
                del self.machine.captures[op]
        return MachineState(captured.state.replicated, local_part.encode(known))

    def collect(self, snapshots: SnapshotFiles, kept: Sequence[Op], journal: Journal) -> None:
        """Remove files that no kept snapshot names, and found files that snapshots cover."""
        refuse_if_poisoned(self.poisoned)
        try:
            self.files.collect(snapshots, kept, self.machine.state, journal)
        except OSError as error:  # this process lacks some resource: later
            raise ReadFailed(self.files.segments.path, error) from error
        except StorageFailed as failed:
            self.poisoned = failed
            raise

    def read(self, op: Op, journal: Journal) -> Entry:
        """Return one live entry, every byte checked: from the journal, or from its carry file.

        A drain between two attempts moves an entry from one to the other, never away.
        """
        for _ in range(2):
            try:
                entry = journal.read(op)
            except CorruptEntry:
                if self.files.carry_of(op) is None:
                    raise
                entry = None  # corrupt, but there is a copy
            if entry is not None:
                return entry
            carry = self.files.carry_of(op)
            if carry is not None:
                found = carry.read(op)
                if isinstance(found, Entry):
                    return found
                if self.files.carry_of(op) is not carry:
                    continue  # copied on meanwhile, and its kept file collected
                raise CorruptEntry(
                    f"op {op}: {found.what}",
                    path=carry.path_of(carry.row(op)),
                    expected=found.expected,
                    found=found.found,
                )
        flaws = self.files.carry_flaws()
        raise CorruptEntry(
            f"op {op} is neither in the journal nor in a carry file{flaws}",
            path=self.files.carries.path,
        )

    def unsealed(self) -> list[FileFinding]:
        """Report segments that could not be written yet, and why. Their rows are carried."""
        room = self.files.segments.path
        return [
            FileFinding(
                joined(room, self.info(segment).name),
                f"unsealed: {segment.place.flaw}",
                rows_missing=False,
            )
            for partition in list(self.machine.state.partitions.values())
            for segment in partition.segments
            if isinstance(segment.place, Unplaced) and segment.place.flaw
        ]

    def _write_segments(
        self, capture: Capture, journal: Journal, snapshots: SnapshotFiles
    ) -> bool:
        """Write the due segments; return whether the rest was carried meanwhile."""
        due = [
            segment
            for segments in capture.segments
            for segment in segments
            if isinstance(segment.place, Unplaced) and segment.place.pieces
        ]
        jobs: list[SealJob] = []
        chosen: list[Segment] = []
        ops = {piece.op for segment in due for piece in _pieces(segment)}
        held = [(file, some) for file, some in self.files.holding(ops) if file is not None]
        carried = {op: file for file, some in held for op in some}
        for segment in due:
            job = self._job(segment, capture, carried, journal)
            if isinstance(job, SealJob):
                jobs.append(job)
                chosen.append(segment)
            else:
                segment.place = Unplaced(_pieces(segment), job)
        try:
            outcomes, is_carried = self._outcomes(jobs, capture, journal, snapshots)
            self._publish(jobs, chosen, outcomes)
        except OSError as error:  # no child could be started, or spoken to
            raise SealFailed(self.files.segments.path, str(error)) from error
        finally:
            self._clear(jobs)
        for segment, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, SealRefused):
                self._answer(segment, outcome, journal)
        return is_carried

    def _outcomes(
        self,
        jobs: list[SealJob],
        capture: Capture,
        journal: Journal,
        snapshots: SnapshotFiles,
    ) -> tuple[list[Outcome], bool]:
        """Run the jobs; while children do them, carry the entries that are in no segment.

        The second value tells whether they were carried.
        """

        def work() -> list[Outcome]:
            return self.sealer.seal(
                jobs, self.files.segments, lambda part: self.read(part.op, journal)
            )

        # The jobs may read what an earlier attempt carried, and not all of it is live.
        if not (jobs and self.sealer.is_apart) or capture.op in self.files.carry:
            return work(), False
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(work)
            self._carry(capture.live, capture.op, journal, snapshots)
            return doing.result(), True

    def _clear(self, jobs: list[SealJob]) -> None:
        """Unlink unnamed files: a dead child cannot, and the next attempt has a new name."""
        for job in jobs:
            self.files.stuck.unlink(self.files.segments, job.temporary)

    def _publish(
        self, jobs: list[SealJob], segments: list[Segment], outcomes: list[Outcome]
    ) -> None:
        """Rename the written files into place and sync them before relying on them."""
        room = self.files.segments
        placed: list[tuple[Segment, Placed]] = []
        for job, segment, outcome in zip(jobs, segments, outcomes, strict=True):
            if not isinstance(outcome, Done):
                continue
            digests = outcome.digests
            self._verify(job, digests.file, digests.size)
            try:
                room.rename(job.temporary, job.info.name)
            except PermissionError as error:  # the file with that name may not be replaced
                segment.place = Unplaced(
                    _pieces(segment), f"it cannot be renamed into place: {error}"
                )
                continue
            except OSError as error:
                raise SealFailed(room.path, str(error)) from error
            self.files.add(job.info.name)
            placed.append((segment, Placed(digests.rows, digests.file, digests.size)))
        if not placed:
            return
        try:
            room.sync()
        except OSError as error:
            self.poisoned = StorageFailed(room.path, "sync-dir", error)
            raise self.poisoned from error
        for segment, place in placed:
            segment.place = place

    def _verify(self, job: SealJob, digest: bytes, size: int) -> None:
        """Check the file in this process: the child's report is not enough."""
        room = self.files.segments
        try:
            file = room.open(job.temporary)
            try:
                found = (whole_digest(file), file.size())
            finally:
                file.close()
        except OSError as error:
            raise SealFailed(room.path, str(error)) from error
        if found != (digest, size):
            raise SealFailed(room.path, "the file differs from what the child reported")

    def _answer(self, segment: Segment, outcome: SealRefused, journal: Journal) -> None:
        """Decide what a failure means: retry later, impossible in this release, or damage."""
        path = self.files.segments.path
        if outcome.kind == FULL:
            raise DiskFull(path, "seal")
        if outcome.kind == DAMAGED:
            for piece in _pieces(segment):
                slot = journal.slot(piece.op)
                # A drain does not lose kept entries, and waiting would not repair them.
                if slot is not None and not linked_journals.is_same(
                    slot, self.files.carry_of(piece.op)
                ):
                    self.read(
                        piece.op, journal
                    )  # raises: an entry without a copy is not drained
        if outcome.kind not in (DAMAGED, UNSEALABLE):
            raise SealFailed(path, outcome.flaw)
        segment.place = Unplaced(_pieces(segment), outcome.flaw)

    def _job(
        self,
        segment: Segment,
        capture: Capture,
        carried: Carrying,
        journal: Journal,
    ) -> SealJob | str:
        """Return the job of writing a segment, or why it cannot be written."""
        parts: list[SealPart] = []
        for piece in _pieces(segment):
            part = self._part(piece, carried, journal)
            if part is None:
                return f"op {piece.op} is neither in the journal nor in a carry file"
            parts.append(part)
        number = self.machine.state.topic_number(segment.namespace)
        return SealJob(
            info=self.info(segment),
            format=capture.format,
            partition_id=self.machine.state.partition_id(segment.namespace),
            schemas={one.version: one.schema for one in capture.schemas[number]},
            parts=tuple(parts),
            directory=self.files.segments.path,
            temporary=f"{self.new_id():016x}{LEFTOVER_SUFFIX}",
        )

    def info(self, segment: Segment) -> SegmentInfo:
        """Return the description in the file of a segment."""
        return info_of(segment, self.identity)

    def _part(self, piece: Piece, carried: Carrying, journal: Journal) -> SealPart | None:
        slot = journal.slot(piece.op)
        if slot is not None:
            item, path, position = _item(slot), slot.file.path, slot.position + PREFIX_SIZE
        elif piece.op in carried:
            carry = carried[piece.op]
            row = carry.row(piece.op)
            item, path, position = row.item, carry.path_of(row), row.position
        else:
            return None
        size, checksum = item.size, item.checksum
        return SealPart(piece.op, path, position, size, checksum, piece.first, piece.timestamp)

    def _carry(
        self, ops: Iterable[Op], seal_op: Op, journal: Journal, snapshots: SnapshotFiles
    ) -> None:
        """Write the live entries that are in no carry file yet into one for this Seal."""
        items: list[Item] = []
        for carry, held in self.files.holding(ops):
            items += self._items(carry, held, seal_op, journal)
        items.sort(key=lambda item: item.op)
        own = self.files.carry.get(seal_op)  # of an earlier attempt
        if own is not None and all(item.op in own for item in items):
            return
        if not items:
            return
        placed, sources = linked_journals.keep(items, seal_op, journal, self.files)

        def withdraw() -> None:
            """Withdraw the snapshot that names the replaced file: it would lose all of it."""
            if own is not None and seal_op in self.files.named:
                snapshots.withdraw(seal_op)

        try:
            written = write_carry(
                self.files.carries,
                self.identity,
                seal_op,
                placed,
                lambda op: self.read(op, journal),
                lambda some: glance(journal, some),
                sources,
                withdraw,
            )
        except StorageFailed as failed:
            if failed.stage == "sync-dir":
                self.poisoned = failed
            raise
        self.files.add_carry(written)

    def _items(
        self, carry: CarryFile | None, ops: Iterable[Op], seal_op: Op, journal: Journal
    ) -> Iterator[Item]:
        """Yield those of `ops`, all held by `carry`, that belong in the file of this Seal.

        That file is replaced as a whole: entries from an earlier attempt belong there again.
        Entries carried before stay where they are; if that file is lost, reads report it.
        """
        if carry is not None and carry.op == seal_op:
            yield from map(carry.item, ops)
            return
        if carry is None or carry.op in self.files.rotten:
            slots = {op: journal.slot(op) for op in ops}
            found = {
                op: slot
                for op, slot in slots.items()
                if slot is not None and not linked_journals.is_same(slot, carry)
            }
            yield from map(_item, found.values())
            ops = [op for op in slots if op not in found]
        if carry is None:
            return
        ops = list(ops)
        count_max = KEPT_COUNT_MAX if carry.sources else CARRY_COUNT_MAX
        # An index that is corrupt on disk is still known here: the next start would lose it.
        is_dying = carry.op in self.files.rotten and carry.check() is not None
        is_dying = is_dying or carry.op < journal.fresh_from <= seal_op
        older = [op for op in self.files.carry_ops if op < seal_op]  # the same in every attempt
        if (
            is_dying
            or linked_journals.is_sparse(carry, len(ops))
            or carry.op in older[:-count_max]
        ):
            yield from (carry.item(op) for op in ops if isinstance(carry.read(op), Entry))

    def _local(self, capture: Capture) -> Local:
        """Return the places of everything that the captured state names."""
        carried = {}
        for carry, ops in self.files.holding(_needed(capture)):
            if carry is not None:
                carried[carry.op] = Carried(carry.op, carry.checksum, carry.size)
            else:
                # A missing file stays named: restoring it must bring its rows back.
                carried.update(self.files.lost_carries_for(min(ops)))
        placed: list[PlacedHere] = []
        unplaced: list[UnplacedHere] = []
        for one in (segment for segments in capture.segments for segment in segments):
            key = (one.namespace, one.created, one.first, one.end)
            if isinstance(one.place, Placed):
                place = one.place
                placed.append(PlacedHere(*key, place.rows, place.file, place.size))
            else:
                unplaced.append(UnplacedHere(*key, one.place.pieces, one.place.flaw))
        return Local(
            local_part.FORMAT,
            tuple(carried[op] for op in sorted(carried)),
            tuple(placed),
            tuple(unplaced),
        )


def info_of(segment: Segment, identity: Identity) -> SegmentInfo:
    """Return the description in the file of a segment of this group."""
    return SegmentInfo(
        cluster=identity.cluster,
        group=identity.group,
        namespace=segment.namespace,
        created=segment.created,
        first=segment.first,
        end=segment.end,
        first_op=segment.first_op,
        seal_op=segment.seal_op,
        tip=segment.tip,
        schema_id=segment.version,
    )


def give_places(state: PartitionsState, known: Local) -> None:
    """Set the place of each segment of a restored state on this node."""
    places: dict[tuple[int, int, int, int], Placed | Unplaced] = {}
    for placed in known.placed:
        key = (placed.namespace, placed.created, placed.first, placed.end)
        places[key] = Placed(placed.rows, placed.file, placed.size)
    for one in known.unplaced:
        key = (one.namespace, one.created, one.first, one.end)
        places[key] = _unplaced(one)
    for partition in state.partitions.values():
        for segment in partition.segments:
            key = (segment.namespace, segment.created, segment.first, segment.end)
            segment.place = places.get(key, Unplaced((), "no snapshot records where it is"))


def _unplaced(one: UnplacedHere) -> Unplaced:
    """Return the pieces of a segment if they are complete, each at its place."""
    end = one.first
    for piece in one.pieces:
        if piece.first != end or piece.row_count <= 0:
            break
        end = piece.end
    if one.pieces and end != one.end:
        return Unplaced((), "the snapshot does not record where its rows are")
    return Unplaced(one.pieces, one.flaw)


def _item(slot: Slot) -> Item:
    return Item(slot.op, size_of(slot.sealed), slot.sealed[:CHECKSUM_SIZE])


def _needed(capture: Capture) -> Iterable[Op]:
    """Return the ops whose entries must be in some carry file, each once."""
    return {*capture.live, *_unplaced_ops(capture)}


def _unplaced_ops(capture: Capture) -> set[Op]:
    """Return the ops of segments without files here."""
    return {
        piece.op
        for segments in capture.segments
        for segment in segments
        if isinstance(segment.place, Unplaced)
        for piece in segment.place.pieces
    }


def _pieces(segment: Segment) -> tuple[Piece, ...]:
    assert isinstance(segment.place, Unplaced)
    return segment.place.pieces
