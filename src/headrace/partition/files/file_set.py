"""The segments and carry files of one shard: which exist, are named, or may be removed."""

import errno
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import CorruptSegment, HeadraceError, ReadFailed, StorageFailed
from headrace.journal.entry import Flaw
from headrace.journal.journal import Journal
from headrace.journal.journal_file import BLOCK_SIZE, FileHeader, check_identity, decode_block
from headrace.journal.snapshot import Snapshot, SnapshotFiles
from headrace.model.ids import Identity, Op
from headrace.model.namespace import Namespace
from headrace.partition.files import placement as local_part
from headrace.partition.files.carry import CarryFile, carry_name, kept_id, op_of, open_carry
from headrace.partition.files.carry_table import CarrySource, kept_name
from headrace.partition.files.placement import Carried, Local
from headrace.partition.machine.state import PartitionsState, Placed
from headrace.partition.segments.row_group_cache import RowGroupCache
from headrace.partition.segments.segment import Digests, SegmentInfo, parse_name, segment_name
from headrace.partition.segments.segment_reader import SegmentFile, open_segment
from headrace.storage.atomic import is_leftover
from headrace.storage.seam import Directory, Storage, joined
from headrace.storage.stream import Pace, unpaced
from headrace.storage.stuck import StuckFiles

OPEN_COUNT_MAX: Final = 128  # verified segments that stay open: a descriptor and a footer each
_FOOTER_SIZE_MAX: Final = 16 * 1024 * 1024  # of a Parquet file: far above the widest schema's


# Errors of a missing, unreadable or wrong file: any other error is about this process.
_DAMAGE: Final = frozenset(
    {errno.ENOENT, errno.EIO, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ESPIPE}
)


def is_damage(error: OSError) -> bool:
    """Whether an error is about the file, not about a resource that the machine lacks."""
    return error.errno in _DAMAGE


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A file with a problem. `what` describes its cost."""

    path: str
    what: str
    rows_missing: bool = True  # rows in it may be unreadable until it is repaired


@dataclass(slots=True)
class ShardFiles:
    """The only place that unlinks segments and carry files."""

    # A file that cannot be moved or removed is in `stuck`, and retried at each collection.

    identity: Identity
    segments: Directory
    carries: Directory
    quarantine: Directory
    there: set[str] = field(default_factory=set)  # segments on disk
    found: set[str] = field(default_factory=set)  # those of them that existed at the start
    carry: dict[Op, CarryFile] = field(default_factory=dict)  # intact ones
    carry_ops: list[Op] = field(default_factory=list)  # their keys, ascending
    # Journal files with a second name among the carry files, by id, and the newest Seal that
    # gave it to them in this process.
    kept: dict[int, Op] = field(default_factory=dict)
    rotten: set[Op] = field(default_factory=set)  # carry files that the scrub found corrupt
    lost_carries: dict[Op, tuple[Carried, Flaw]] = field(default_factory=dict)
    named: dict[Op, frozenset[str]] = field(default_factory=dict)  # by the snapshot at an op
    restored: Op = Op(0)  # the snapshot that this process began with
    holds: Counter[str] = field(default_factory=Counter)  # readers and leases of a name
    leased: Counter[str] = field(default_factory=Counter)  # of them, the leases
    segments_stay: bool = False  # none is removed or set aside: the wanted set is unknown
    kept_back: set[str] = field(default_factory=set)  # held at the last collection
    open: OrderedDict[str, SegmentFile] = field(default_factory=OrderedDict)
    groups: RowGroupCache = field(default_factory=RowGroupCache)
    findings: list[FileFinding] = field(default_factory=list)
    stuck: StuckFiles = field(default_factory=StuckFiles)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of holds and `kept_back`

    def report(self, finding: FileFinding) -> None:
        """Record a problem of a file, once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def report_rot(self, path: str, what: str) -> None:
        """Record the first corruption that a read found in a file: there may be thousands."""
        if not any(one.path == path and one.rows_missing for one in self.findings):
            self.report(FileFinding(path, what))

    def restore(self, known: Local, op: Op) -> None:
        """List the files, unlink leftovers, and open what the snapshot at `op` names."""
        self.restored = op
        for room in (self.segments, self.carries):
            for name in filter(is_leftover, room.names()):
                self.stuck.unlink(room, name)
        self.there = {name for name in self.segments.names() if parse_name(name)}
        self.found = set(self.there)
        ids = map(kept_id, self.carries.names())
        self.kept = {file_id: Op(0) for file_id in ids if file_id is not None}
        self.findings.clear()
        for one in known.placed:
            name = segment_name(one.namespace, one.created, one.first, one.end)
            if name not in self.there:
                what = f"segment is missing: offsets {one.first} to {one.end} cannot be read"
                self.report(FileFinding(joined(self.segments.path, name), what))
        for carried in known.carried:
            self._open_carry(carried)

    def _open_carry(self, known: Carried) -> None:
        found = open_carry(self.carries, self.identity, known.op)
        if isinstance(found, CarryFile) and found.checksum != known.checksum:
            found.close()
            found = Flaw("a different carry file", known.checksum.hex(), found.checksum.hex())
        if isinstance(found, Flaw):
            self.lost_carries[known.op] = (known, found)
            path = joined(self.carries.path, carry_name(known.op))
            self.report(FileFinding(path, f"carry file: {found.what}"))
        else:
            self.add_carry(found)
            for source in found.sources:
                if source.file_id not in self.kept:
                    path = joined(self.carries.path, source.name)
                    what = f"kept file of {found.name} is missing: its entries cannot be read"
                    self.report(FileFinding(path, what))

    def add(self, name: str) -> None:
        """Record a segment that was just written under its name."""
        self.there.add(name)
        self.found.discard(name)
        self.stuck.forget(joined(self.segments.path, name))
        self._forget_open(name)

    def add_carry(self, file: CarryFile) -> None:
        # A replaced one closes when its last reader releases it.
        self.carry[file.op] = file
        self.carry_ops = sorted(self.carry)

    def carry_of(self, op: Op) -> CarryFile | None:
        """Return the newest carry file that holds `op`: it may repair an earlier one."""
        for seal_op in reversed(self.carry_ops):
            if seal_op < op:
                return None
            file = self.carry.get(seal_op)
            # Most files hold the ops between two Seals: the first check decides.
            if file is not None and file.ops and file.ops[0] <= op and op in file:
                return file
        return None

    def holding(self, ops: Iterable[Op]) -> Iterator[tuple[CarryFile | None, set[Op]]]:
        """Group `ops` by their `carry_of`: newest file first, None last."""
        left = set(ops)
        for seal_op in reversed(self.carry_ops):
            file = self.carry[seal_op]
            held = file.holds(left)
            if held:
                yield file, held
                left -= held
        if left:
            yield None, left

    def lost_carries_for(self, op: Op) -> dict[Op, Carried]:
        """Return the missing or bad carry files that might have held `op`."""
        return {key: known for key, (known, _) in self.lost_carries.items() if key >= op}

    def carry_flaws(self) -> str:
        """Describe the bad carry files."""
        flaws = [
            f"{carry_name(op)}: {flaw.what}" for op, (_, flaw) in self.lost_carries.items()
        ]
        return f" ({'; '.join(flaws)})" if flaws else ""

    def name(self, op: Op, names: frozenset[str]) -> None:
        """Record what the snapshot at `op` names."""
        self.named[op] = names

    def collect(
        self,
        snapshots: SnapshotFiles,
        kept: Sequence[Op],
        state: PartitionsState,
        journal: Journal,
    ) -> None:
        """Remove files that no kept snapshot names; if a snapshot is unreadable, remove none.

        They are unlinked, except journal files that the journal can reuse.
        """
        named: set[str] = set()
        for op in kept:
            names = self._names_at(snapshots, op)
            if names is None:
                return
            named |= names
        if not kept:
            return
        # No snapshot names an unfinished checkpoint yet.
        named.update(*(names for op, names in self.named.items() if op > kept[0]))
        self.named = {op: names for op, names in self.named.items() if op >= kept[-1]}
        kept_back = set() if kept[0] > self.restored else self.found
        self._collect_segments(named | kept_back, state)
        sources = self._sources(named)
        self._collect_carries(named, kept[0])
        self._collect_kept(sources, kept[0], journal)

    def _names_at(self, snapshots: SnapshotFiles, op: Op) -> frozenset[str] | None:
        if op not in self.named:
            found = snapshots.load(op)
            if not isinstance(found, Snapshot):
                return None
            try:
                self.named[op] = local_part.decode(found.state.local).names
            except HeadraceError:
                return None
        return self.named[op]

    def _collect_segments(self, named: set[str], state: PartitionsState) -> None:
        gone = 0
        for name in sorted(self.there - named):
            if self.segments_stay or self._is_held(name):
                continue
            if name in self.found and not self._is_covered(name, state):
                if not self.stuck.set_aside(self.segments, name, self.quarantine):
                    continue
                what = "segment without any row that this log knows: moved to quarantine"
                path = joined(self.segments.path, name)
                self.report(FileFinding(path, what, rows_missing=False))
            else:
                self._forget_open(name)  # first: the last holder of a file frees it
                if not self.stuck.unlink(self.segments, name):
                    continue
                gone += 1
            self.there.discard(name)
            self.found.discard(name)
        if gone:
            self._sync(self.segments)

    def _sync(self, room: Directory) -> None:
        """Sync after a collection; a failure is never retried, and poisons the keeper."""
        try:
            room.sync()
        except OSError as error:
            raise StorageFailed(room.path, "collect", error) from error

    def _is_held(self, name: str) -> bool:
        with self._lock:
            if self.holds[name]:
                self.kept_back.add(name)
                return True
            self.kept_back.discard(name)
            return False

    def lives(self) -> set[tuple[int, int]]:
        """Return (namespace, created) of every life that has a segment here.

        Leased files do not count: nothing waits for the end of a lease.
        """
        parsed = (parse_name(name) for name in list(self.there) if name not in self.leased)
        return {each[:2] for each in parsed if each is not None}

    def stuck_code(self, namespace: int, created: int) -> str | None:
        """Return the error that keeps a segment of this life here, such as EPERM."""
        for path, code in self.stuck.codes():
            parsed = parse_name(path.rpartition("/")[2])
            if parsed is not None and parsed[:2] == (namespace, created):
                return code
        return None

    def _is_covered(self, name: str, state: PartitionsState) -> bool:
        """Whether the log knows all rows of a segment that no snapshot names."""
        parsed = parse_name(name)
        assert parsed is not None
        namespace, created, _, end = Namespace(parsed[0]), *parsed[1:]
        partition = state.partitions.get(namespace)
        known = partition is not None and partition.created == created and end <= partition.end
        ended = state.closed.get(namespace)
        known = known or created == ended  # files of unknown lives stay
        return known and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        """Find this cluster's ID in the footer, without parsing bytes that may be corrupt."""
        try:
            file = self.segments.open(name)
        except OSError:
            return False
        try:
            size = file.size()
            footer_size = int.from_bytes(file.read(max(0, size - 8), 4), "little")
            footer_size = min(footer_size, _FOOTER_SIZE_MAX)
            footer = file.read(max(0, size - 8 - footer_size), footer_size)
        except OSError:
            return False
        finally:
            file.close()
        return self.identity.cluster.hex().encode() in footer

    def _collect_carries(self, named: set[str], newest: Op) -> None:
        gone = 0
        for name in self.carries.names():
            op = op_of(name)
            if op is None or op > newest or name in named:
                continue
            known = self.carry.pop(op, None)
            self.carry_ops = sorted(self.carry)
            self.rotten.discard(op)
            if known is None and self._is_foreign_carry(op):
                self.stuck.set_aside(self.carries, name, self.quarantine)
                continue
            del known  # first: the last holder of a file frees it
            gone += self.stuck.unlink(self.carries, name)
        for op in [op for op in self.lost_carries if carry_name(op) not in named]:
            del self.lost_carries[op]
        if gone:
            self._sync(self.carries)

    def _sources(self, named: set[str]) -> set[int]:
        """Return the kept files that named carry files need.

        An unreadable one existed at the start, and may need the files that were kept then.
        """
        found: set[int] = set()
        for op in map(op_of, named) if self.kept else ():
            if op is None:
                continue
            sources = self._sources_of(op)
            if sources is None:
                found.update(file_id for file_id, given in self.kept.items() if not given)
            else:
                found.update(source.file_id for source in sources)
        return found

    def _sources_of(self, op: Op) -> tuple[CarrySource, ...] | None:
        if op in self.lost_carries:
            return None  # another file may have its name now
        known = self.carry.get(op)
        if known is None:  # of the previous snapshot; this process did not need it
            try:
                looked = open_carry(self.carries, self.identity, op)
            except HeadraceError:
                return None
            if isinstance(looked, Flaw):
                return None
            looked.close()
            known = looked
        return known.sources

    def _collect_kept(self, needed: set[int], newest: Op, journal: Journal) -> None:
        gone = [
            file_id
            for file_id, op in sorted(self.kept.items())
            if file_id not in needed and op <= newest
        ]
        for file_id in gone:
            name = kept_name(file_id)
            if self._is_foreign_kept(name):
                is_gone = self.stuck.set_aside(self.carries, name, self.quarantine)
            else:
                is_gone = journal.reuse(self.carries, name, file_id) or self.stuck.unlink(
                    self.carries, name
                )
            if is_gone:
                del self.kept[file_id]
        if gone:
            self._sync(self.carries)

    def _is_foreign_carry(self, op: Op) -> bool:
        try:
            found = open_carry(self.carries, self.identity, op)
        except HeadraceError:
            return True
        if isinstance(found, CarryFile):
            found.close()
        return False

    def _is_foreign_kept(self, name: str) -> bool:
        try:
            file = self.carries.open(name)
        except OSError:
            return False
        try:
            header = decode_block(file.read(0, BLOCK_SIZE), file.path)
            if isinstance(header, FileHeader):
                check_identity(header, self.identity, file.path)
        except OSError:
            return False
        except HeadraceError:
            return True
        finally:
            file.close()
        return False

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Keep a segment's file from being unlinked."""
        with self._lock:
            self.holds[name] += 1
        try:
            yield
        finally:
            with self._lock:
                _count_down(self.holds, [name])

    def lease(self, names: Sequence[str]) -> None:
        """Keep files from being unlinked until `end_lease` of the same names."""
        with self._lock:
            self.holds.update(names)
            self.leased.update(names)

    def end_lease(self, names: Sequence[str]) -> bool:
        """Release files. Return whether a collection kept one of them only for this."""
        with self._lock:
            _count_down(self.holds, names)
            _count_down(self.leased, names)
            return any(name in self.kept_back and not self.holds[name] for name in names)

    def segment(self, info: SegmentInfo, place: Placed) -> SegmentFile:
        """Return a segment that was checked completely once, when it was opened."""
        name = info.name
        known = self.open.get(name)
        if known is not None:
            with suppress(KeyError):  # another thread may have just dropped it
                self.open.move_to_end(name)
            return known
        file = self.opened(info, place)
        file.groups = self.groups
        self.open[name] = file
        while len(self.open) > OPEN_COUNT_MAX:
            self.open.popitem(last=False)  # a reader in the middle of it still holds it open
        return file

    def opened(self, info: SegmentInfo, place: Placed, pace: Pace = unpaced) -> SegmentFile:
        """Open a segment separately from the readers' ones, and check it completely."""
        storage = self._storage(info.name)
        digests = Digests(place.rows, place.file, place.size)
        try:
            return open_segment(storage, info, digests, pace)
        except BaseException:
            storage.close()
            raise

    def part(self, name: str, whole_size: int, position: int, size: int) -> bytes:
        """Return `size` bytes of a segment of `whole_size` as they are on disk, unchecked."""
        with closing(self._storage(name)) as storage:
            try:
                found_size = storage.size()
                data = storage.read(position, size)
            except OSError as error:
                if not is_damage(error):
                    raise ReadFailed(storage.path, error) from error
                raise CorruptSegment(
                    f"bytes from {position} on cannot be read",
                    path=storage.path,
                    expected=f"{size} bytes",
                    found=error.strerror,
                ) from error
        if found_size != whole_size or len(data) != size:
            raise CorruptSegment(
                "another size than what was sealed",
                path=storage.path,
                expected=whole_size,
                found=found_size,
            )
        return data

    def _storage(self, name: str) -> Storage:
        path = joined(self.segments.path, name)
        try:
            return self.segments.open(name)
        except OSError as error:
            if not is_damage(error):
                raise ReadFailed(path, error) from error
            raise CorruptSegment(
                "segment cannot be opened", path=path, expected="a file", found=error.strerror
            ) from error

    def _forget_open(self, name: str) -> None:
        known = self.open.pop(name, None)
        if known is not None:
            self.groups.forget(known.digests.file)

    def quarantine_segment(self, name: str, what: str) -> None:
        """Quarantine a bad segment. Its place stays known: a backup can be restored."""
        self._forget_open(name)
        if self.stuck.set_aside(self.segments, name, self.quarantine):
            self.there.discard(name)
        self.report(FileFinding(joined(self.segments.path, name), what))

    def close(self) -> None:
        """Release every file."""
        for file in self.carry.values():
            file.close()
        self.carry.clear()
        self.carry_ops = []
        with suppress(KeyError):
            while True:
                self.open.popitem()[1].close()


def _count_down(counts: Counter[str], names: Iterable[str]) -> None:
    for name in names:
        counts[name] -= 1
        assert counts[name] >= 0
        if not counts[name]:
            del counts[name]
