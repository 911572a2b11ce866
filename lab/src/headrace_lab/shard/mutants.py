# ruff: noqa: ANN401 -- a planted bug has the shape of what it replaces
"""Planted bugs of partitions: each must be caught by the sweep or the matrix of a shard."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import SealFailed, StorageFailed
from headrace.journal.entry import HEADER_SIZE, SEAL, Entry, Flaw, decode_header
from headrace.journal.journal import Journal
from headrace.journal.recovery.recover import _Recovery
from headrace.journal.spare import Spares
from headrace.model.ids import Offset, Op
from headrace.model.results import StageResult, TrimResult
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.files import carry, carry_table, file_set, linked_journals
from headrace.partition.files.carry_table import kept_name
from headrace.partition.files.file_set import ShardFiles
from headrace.partition.files.placement import Local
from headrace.partition.machine import image, partitions_machine, transactions
from headrace.partition.machine.operations import Publish, Purge
from headrace.partition.machine.state import Partition, PartitionsState, Placed, Unplaced
from headrace.partition.segments import seal_job, segment_reader
from headrace.partition.segments.entry_rows import Schemas
from headrace.partition.segments.seal_job import DAMAGED, UNSEALABLE, Done, SealRefused
from headrace.partition.segments.segment_writer import write_segment
from headrace.storage.seam import Directory, Storage
from headrace.storage.stream import ReadStream, sums_of
from headrace_lab.harness.mutants import Mutant

_seal = CheckpointFiles.seal
_local = CheckpointFiles._local
_answer = CheckpointFiles._answer
_publish_op = transactions.publish
_stage_op = transactions.stage
_image_partition = image._partition
_decode_image = image.decode
_trim = Partition.trim
_retire = Spares.retire
_sources = ShardFiles._sources
_add_carry = ShardFiles.add_carry
_unlinked: list[Callable[[], None]] = []


def _file_skipped(self: _Recovery, group: Any, slots: Sequence[Any]) -> int:
    wanted = [slot for slot in slots if self.plan.base < slot.op <= self.plan.replay_to]
    for slot in wanted:
        if slot.file is wanted[-1].file:
            group.apply(self._entry(group.journal, slot))
        else:
            group.applied = slot.op
    return len(wanted)


def _seals_twice(self: _Recovery, group: Any, slots: Sequence[Any]) -> int:
    wanted = [slot for slot in slots if self.plan.base < slot.op <= self.plan.replay_to]
    for slot in wanted:
        entry = self._entry(group.journal, slot)
        if entry.header.operation == SEAL:
            group.machine.apply(entry)
        group.apply(entry)
    return len(wanted)


def _stale_manifest(self: CheckpointFiles, capture: Any) -> Local:
    new = {
        (one.namespace, one.created, one.first)
        for segments in capture.segments
        for one in segments
        if one.seal_op == capture.op
    }
    known = _local(self, capture)
    old = [one for one in known.placed if (one.namespace, one.created, one.first) not in new]
    return msgspec.structs.replace(known, placed=tuple(old))


def _unsealed_forgotten(self: CheckpointFiles, capture: Any) -> Local:
    return msgspec.structs.replace(_local(self, capture), unplaced=())


def _skip_after_failure(
    self: CheckpointFiles, segment: Any, outcome: SealRefused, journal: Any
) -> None:
    if outcome.kind not in (DAMAGED, UNSEALABLE):
        segment.place = Unplaced((), outcome.flaw)
    _answer(self, segment, outcome, journal)


def _pieces_dropped(
    self: CheckpointFiles, segment: Any, outcome: SealRefused, journal: Any
) -> None:
    _answer(self, segment, outcome, journal)
    segment.place = Unplaced((), outcome.flaw)


def _offsets_reset(partition: Partition, _: Any) -> Any:
    partition.trim(partition.end)
    partition.first = partition.end = Offset(0)
    return TrimResult(partition.first, ())


def _collect_at_seal(self: CheckpointFiles, captured: Any, *rest: Any) -> Any:
    state = _seal(self, captured, *rest)
    named = self.files.named[captured.op]
    for name in sorted(self.files.there - named):
        self.files.segments.unlink(name)
        self.files.there.discard(name)
    self.files.segments.sync()
    return state


def _capture_popped(self: CheckpointFiles, captured: Any, *rest: Any) -> Any:
    try:
        return _seal(self, captured, *rest)
    finally:
        self.machine.captures.pop(captured.op, None)


def _checksums_ignored(
    storage: Storage, _: Any, metadata: Any = None, dictionaries: Any = ()
) -> Any:
    return pq.ParquetFile(
        pa.PythonFile(ReadStream(storage), mode="r"),
        metadata=metadata,
        read_dictionary=list(dictionaries),
        pre_buffer=False,
    )


def _all_published(state: Any, topic: Any, header: Any, command: Publish) -> Any:
    named = {receipt.stage_id for receipt in command.stages}
    others = [
        stage.receipt
        for key, stage in topic.stages.items()
        if key not in named and (stage.writer, stage.version) == (header.writer, header.version)
    ]
    return _publish_op(state, topic, header, Publish((*command.stages, *others)))


def _staged_readable(topic: Any, partition: Partition, entry: Entry) -> Any:
    result = _stage_op(topic, partition, entry)
    if isinstance(result, StageResult) and not result.repeated:
        header = entry.header
        partition.add(header.row_count, header.op, header.timestamp, header.body_size)
        partition.image = None
    return result


def _windows_lost(partition: Partition) -> Any:
    return msgspec.structs.replace(_image_partition(partition), writers=[])


def _last_rows_forgotten(data: bytes, partition_bits: int) -> PartitionsState:
    state = _decode_image(data, partition_bits)
    for partition in state.partitions.values():
        if partition.runs and len(partition.runs[-1].pieces) > 1:
            partition.end = partition.runs[-1].pieces.pop().first
            partition.image = None
    return state


def _previous_swept(
    self: CheckpointFiles, snapshots: Any, kept: Sequence[Op], journal: Journal
) -> None:
    self.files.collect(snapshots, kept[:1], self.machine.state, journal)


def _carries_swept(self: ShardFiles, _: set[str], newest: Op) -> None:
    for name in self.carries.names():
        op = carry.op_of(name)
        if op is not None and op <= newest and name not in self.named[newest]:
            self.carry.pop(op, None)
            self.carry_ops = sorted(self.carry)
            self.carries.unlink(name)
    self.carries.sync()


def _used_again(self: Spares, journal: Directory, file: Any, *, is_kept: bool = False) -> None:
    _retire(self, journal, file)


def _newest_alone(self: ShardFiles, _: set[str]) -> set[int] | None:
    return _sources(self, set(self.named[max(self.named)]))


def _link_later(file: Any, seal_op: Op, journal: Any, files: ShardFiles) -> bool:
    files.kept[file.header.file_id] = seal_op
    name = kept_name(file.header.file_id)
    _unlinked.append(lambda: journal.directory.link(file.name, name, files.carries))
    return True


def _add_linked(self: ShardFiles, file: Any) -> None:
    """Give kept files their names behind the sync of the carry file's directory."""
    while _unlinked:
        with suppress(FileExistsError):
            _unlinked.pop()()
    _add_carry(self, file)


def _written(*, sync: bool, sync_directory: bool) -> Callable[..., None]:
    def write(
        directory: Directory,
        name: str,
        fill: Callable[[Storage], None],
        before_rename: Callable[[], None],
    ) -> None:
        with suppress(FileNotFoundError):
            directory.unlink(name + ".tmp")
        file = directory.create(name + ".tmp")
        fill(file)
        if sync:
            file.sync()
        file.close()
        before_rename()
        directory.rename(name + ".tmp", name)
        if sync_directory:
            directory.sync()

    return write


def _runs_only(self: PartitionsState) -> Iterator[Op]:
    for partition in self.partitions.values():
        for run in partition.runs:
            yield from (piece.op for piece in run.pieces)


def _segment_unsynced(job: Any, directory: Directory, read: Any, _: Any) -> Any:
    schemas = Schemas.decode(job.schemas, job.temporary)
    user = schemas.user(job.info.schema_id)
    file = directory.create(job.temporary)
    try:
        batches = seal_job._batches(job, schemas, read)
        return write_segment(file, job.info, user, batches)
    finally:
        file.close()


def _publisher(*, early: bool, sync: bool) -> Callable[..., None]:
    def publish(self: CheckpointFiles, jobs: Any, segments: Any, outcomes: Any) -> None:
        for job, segment, outcome in zip(jobs, segments, outcomes, strict=True):
            if not isinstance(outcome, Done):
                continue
            digests = outcome.digests
            place = Placed(digests.rows, digests.file, digests.size)
            if early:
                segment.place = place
            try:
                self.files.segments.rename(job.temporary, job.info.name)
            except OSError as error:
                raise SealFailed(self.files.segments.path, str(error)) from error
            self.files.add(job.info.name)
            segment.place = place
        if sync:
            try:
                self.files.segments.sync()
            except OSError as error:
                self.poisoned = StorageFailed(self.files.segments.path, "sync-dir", error)
                raise self.poisoned from error

    return publish


def _bytes_unchecked(storage: Storage, *_: Any) -> Any:
    return sums_of(storage)


def _nothing(*_: object, **__: object) -> None:
    return None


def _trim_whole_segments(self: Partition, first: Offset) -> None:
    _trim(self, first)
    self.segments = tuple(one for one in self.segments if one.first >= first)


def _entry_unchecked(data: Any, row: Any) -> Any:
    header = decode_header(bytes(data[:HEADER_SIZE]))
    if isinstance(header, Flaw):
        return header
    return Entry(header, bytes(data[:HEADER_SIZE]), data[HEADER_SIZE:])


def _sweeps(name: str, *patches: tuple[Any, str, Any]) -> Mutant:
    return Mutant(name, "sweep", patches)


def _matrix(name: str, *patches: tuple[Any, str, Any]) -> Mutant:
    return Mutant(name, "matrix", patches)


MUTANTS: tuple[Mutant, ...] = (
    _sweeps("a rotated journal file is skipped", (_Recovery, "_replay", _file_skipped)),
    _sweeps("replay applies a Seal twice", (_Recovery, "_replay", _seals_twice)),
    _sweeps("stale manifest trusted", (CheckpointFiles, "_local", _stale_manifest)),
    _sweeps("seal fails, then skips rows", (CheckpointFiles, "_answer", _skip_after_failure)),
    _sweeps(
        "purge resets offsets",
        (
            partitions_machine,
            "_ON_PARTITION",
            {**partitions_machine._ON_PARTITION, Purge: _offsets_reset},
        ),
    ),
    _sweeps(
        "unlinked before the snapshot forgets", (CheckpointFiles, "seal", _collect_at_seal)
    ),
    _sweeps("captures of a failed checkpoint drop", (CheckpointFiles, "seal", _capture_popped)),
    _sweeps("publish takes all stages", (transactions, "publish", _all_published)),
    _sweeps("staged rows readable", (transactions, "stage", _staged_readable)),
    _sweeps("writer windows lost at a checkpoint", (image, "_partition", _windows_lost)),
    _sweeps("offsets given twice after recovery", (image, "decode", _last_rows_forgotten)),
    _sweeps("previous snapshot's files swept", (CheckpointFiles, "collect", _previous_swept)),
    _sweeps(
        "previous snapshot's carry files swept",
        (ShardFiles, "_collect_carries", _carries_swept),
    ),
    _sweeps(
        "carry file not synced",
        (carry, "atomic_write", _written(sync=False, sync_directory=True)),
    ),
    _sweeps(
        "carry file's name not synced",
        (carry, "atomic_write", _written(sync=True, sync_directory=False)),
    ),
    _sweeps("kept file used again", (Spares, "retire", _used_again)),
    _sweeps("previous snapshot's kept files swept", (ShardFiles, "_sources", _newest_alone)),
    _sweeps(
        "kept file's name not synced",
        (linked_journals, "_link", _link_later),
        (ShardFiles, "add_carry", _add_linked),
    ),
    _sweeps("carry misses staged rows", (PartitionsState, "live_ops", _runs_only)),
    _sweeps("segment renamed without sync", (seal_job, "_write", _segment_unsynced)),
    _sweeps(
        "segments' directory not synced",
        (CheckpointFiles, "_publish", _publisher(early=False, sync=False)),
    ),
    _sweeps(
        "place set before the rename",
        (CheckpointFiles, "_publish", _publisher(early=True, sync=True)),
    ),
    _sweeps("trim drops a partly needed segment", (Partition, "trim", _trim_whole_segments)),
    _sweeps("leftovers stay", (file_set, "is_leftover", lambda _: False)),
    _matrix("checksums not verified", (segment_reader, "open_parquet", _checksums_ignored)),
    _matrix("file digest not checked", (segment_reader, "_check_bytes", _bytes_unchecked)),
    _matrix(
        "identity of a segment not checked",
        (segment_reader, "_check_bytes", _bytes_unchecked),
        (segment_reader, "_check_identity", _nothing),
    ),
    _matrix("pieces of an unsealed run dropped", (CheckpointFiles, "_answer", _pieces_dropped)),
    _matrix("unsealed run forgotten", (CheckpointFiles, "_local", _unsealed_forgotten)),
    _matrix(
        "carry index not verified",
        (carry_table, "flaw_of", _nothing),
    ),
    _matrix("carried entry not verified", (carry, "_judged", _entry_unchecked)),
    _matrix("lost carry file forgotten", (ShardFiles, "lost_carries_for", lambda *_: {})),
    _matrix("unknown segments unlinked", (ShardFiles, "_is_covered", lambda *_: True)),
)
