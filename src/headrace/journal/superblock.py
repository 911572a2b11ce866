"""The few facts about a group that must survive: two copies of one record.

    file := checksum:16s  magic:8s  format:u16  reader_min:u16  size:u32  record

`checksum` is xxh3-128 of everything after it; `record` is a msgpack map of `size` bytes. Each
write raises the sequence and atomically replaces `superblock.a`, then `superblock.b`; only then
may anything act on it. So the valid copy with the higher sequence is right, and so is an older
copy beside a bad one: if the bad one was newer, nothing had acted on it yet.
"""

import struct
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from xxhash import xxh3_128_digest

from headrace.errors import (
    CorruptFile,
    DiskFull,
    ForeignFile,
    StorageFailed,
    refuse_newer,
)
from headrace.journal.entry import Flaw
from headrace.model.ids import CLUSTER_ID_SIZE, OP_MAX, GroupId, Identity, Op, ReplicaId, View
from headrace.storage.atomic import atomic_replace, refuse_if_poisoned
from headrace.storage.seam import Directory, is_full

MAGIC: Final = b"HRsuperb"
FORMAT: Final = 1
READER: Final = 3  # the newest `reader_min` that this release understands, see docs/formats
NAMES: Final = ("superblock.a", "superblock.b")
_SIZE_MAX = 64 * 1024  # far above any real record; a larger file is not read
SEQUENCE_MAX = 2**62  # more writes than any superblock gets

_FIELDS = struct.Struct("<16s8sHHI")
_CHECKSUM_SIZE = 16
_MISSING = "superblock is missing"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest snapshot that this group relies on."""

    op: Op = Op(0)
    tip: bytes = bytes(16)  # checksum of the entry at `op`
    snapshot: bytes = bytes(16)  # checksum of the snapshot file


@dataclass(frozen=True, slots=True)
class Superblock:
    """One state of the record. A range is (first, last), both included."""

    identity: Identity
    sequence: int = 0  # raised at each write
    view: View = View(0)
    log_view: View = View(0)
    commit: Op = Op(0)  # at least this was committed
    checkpoint: Checkpoint = Checkpoint()
    previous_op: Op = Op(0)  # the checkpoint before: the journal reaches back to it
    suspect: tuple[Op, Op] | None = None  # ops that may have been durable here and were cut
    cut_from: Op | None = None  # an unfinished cut
    syncing_to: Op | None = None  # an unfinished state transfer
    clean_head: Op | None = None  # the last stop was clean, with this head
    peers: tuple[tuple[ReplicaId, int], ...] = ()  # highest sequence seen of each peer
    recovering: bool = False  # its earlier promises are unknown: it must not vote yet
    starts: tuple[tuple[int, int], ...] = ()  # sequence and boot, oldest first; none if alone
    peer_boots: tuple[tuple[ReplicaId, int], ...] = ()  # of each peer, the newest
    gave_up: tuple[View, Op] | None = None  # in this view the operator gave up from this op on
    reader_min: int = FORMAT  # beside the record: what a release must understand of this log


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The map on disk: plain numbers and bytes, in this order.

    Fields with a default were added later: they are omitted at their default.
    """

    cluster: bytes
    group: int
    replica: int
    replica_count: int
    namespace_bits: tuple[int, int, int]
    sequence: int
    view: int
    log_view: int
    commit: int
    checkpoint_op: int
    checkpoint_tip: bytes
    checkpoint_snapshot: bytes
    previous_op: int
    suspect: tuple[int, int] | None
    cut_from: int | None
    syncing_to: int | None
    clean_head: int | None
    peers: tuple[tuple[int, int], ...]
    recovering: bool
    starts: tuple[tuple[int, int], ...] = ()
    peer_boots: tuple[tuple[int, int], ...] = ()
    gave_up: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Copies:
    """The valid record, if any, and the flaw of each copy (None: intact)."""

    best: Superblock | None
    flaws: tuple[Flaw | None, ...]

    @property
    def are_missing(self) -> bool:
        """Neither copy exists, not even a damaged one."""
        return all(flaw is not None and flaw.what == _MISSING for flaw in self.flaws)


@dataclass(slots=True)
class SuperblockFile:
    """The single writer of both copies."""

    directory: Directory
    current: Superblock
    poisoned: StorageFailed | None = None

    def write(self, **changes: Any) -> Superblock:  # noqa: ANN401 - the fields of Superblock
        """Raise the sequence, make the changes, and return once both copies are durable.

        DiskFull: nothing may be acted on; repeat later. StorageFailed: poisoned, reopen.
        """
        refuse_if_poisoned(self.poisoned)
        record = replace(self.current, sequence=self.current.sequence + 1, **changes)
        # A failed write may have left its sequence in one copy: never use that number again.
        self.current = replace(self.current, sequence=record.sequence)
        data = encode(record)
        for name in NAMES:
            try:
                atomic_replace(self.directory, name, [data])
            except StorageFailed as failed:
                if failed.stage in ("write", "rename") and is_full(failed.cause):
                    raise DiskFull(failed.path, failed.stage) from failed
                self.poisoned = failed
                raise
        self.current = record
        return record


def encode(superblock: Superblock) -> bytes:
    """Return the bytes of one copy."""
    identity = superblock.identity
    record = msgspec.msgpack.encode(
        _Record(
            cluster=identity.cluster,
            group=identity.group,
            replica=identity.replica,
            replica_count=identity.replica_count,
            namespace_bits=identity.namespace_bits,
            sequence=superblock.sequence,
            view=superblock.view,
            log_view=superblock.log_view,
            commit=superblock.commit,
            checkpoint_op=superblock.checkpoint.op,
            checkpoint_tip=superblock.checkpoint.tip,
            checkpoint_snapshot=superblock.checkpoint.snapshot,
            previous_op=superblock.previous_op,
            suspect=superblock.suspect,
            cut_from=superblock.cut_from,
            syncing_to=superblock.syncing_to,
            clean_head=superblock.clean_head,
            peers=superblock.peers,
            recovering=superblock.recovering,
            starts=superblock.starts,
            peer_boots=superblock.peer_boots,
            gave_up=superblock.gave_up,
        )
    )
    rest = _FIELDS.pack(
        bytes(_CHECKSUM_SIZE), MAGIC, FORMAT, superblock.reader_min, len(record)
    )
    rest = rest[_CHECKSUM_SIZE:] + record
    return xxh3_128_digest(rest) + rest


def decode(data: bytes, path: str) -> Superblock | Flaw:
    """Read one copy. Only an intact one of a newer release raises."""
    if len(data) < _FIELDS.size:
        return Flaw("superblock is cut short", f"at least {_FIELDS.size} bytes", len(data))
    found, magic, _, reader_min, size = _FIELDS.unpack_from(data)
    checksum = xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE:])
    if found != checksum:
        return Flaw("superblock checksum", checksum.hex(), found.hex())
    if magic != MAGIC or _FIELDS.size + size != len(data):
        return Flaw(
            "superblock magic and size", (MAGIC, _FIELDS.size + size), (magic, len(data))
        )
    refuse_newer(path, READER, reader_min)
    try:
        record = msgspec.msgpack.decode(memoryview(data)[_FIELDS.size :], type=_Record)
    except msgspec.DecodeError as error:
        return Flaw("superblock record", "a record", str(error))
    found = _from_record(record)
    return found if isinstance(found, Flaw) else replace(found, reader_min=reader_min)


def read_copies(directory: Directory, identity: Identity) -> Copies:
    """Read both copies, refuse a foreign one, and choose. Changes nothing."""
    valid: list[tuple[str, Superblock]] = []
    flaws: list[Flaw | None] = []
    for name in NAMES:
        found = _read(directory, name)
        flaws.append(found if isinstance(found, Flaw) else None)
        if isinstance(found, Superblock):
            path = f"{directory.path}/{name}"
            _check_identity(found.identity, identity, path)
            valid.append((path, found))
    if len(valid) == len(NAMES):
        _check_fork(valid)
    best = max((one for _, one in valid), key=lambda one: one.sequence, default=None)
    return Copies(best, tuple(flaws))


def _read(directory: Directory, name: str) -> Superblock | Flaw:
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return Flaw(_MISSING, name, "nothing")
    except PermissionError:
        raise  # says nothing about its bytes: they may be intact
    except OSError as error:
        return Flaw("superblock cannot be opened", "a file", error.strerror or str(error))
    try:
        if file.size() > _SIZE_MAX:
            return Flaw("superblock size", f"at most {_SIZE_MAX}", file.size())
        return decode(file.read(0, file.size()), file.path)
    except OSError as error:
        return Flaw("superblock is unreadable", "bytes", error.strerror or str(error))
    finally:
        file.close()


def _check_fork(valid: list[tuple[str, Superblock]]) -> None:
    (_, first), (path, second) = valid
    if first.sequence == second.sequence and first != second:
        raise CorruptFile(
            f"both copies have sequence {first.sequence} and differ",
            path=path,
            hint="One of them was copied from elsewhere: restore the right one",
        )


def _check_identity(found: Identity, expected: Identity, path: str) -> None:
    for name in ("cluster", "group", "replica", "replica_count", "namespace_bits"):
        ours, theirs = getattr(expected, name), getattr(found, name)
        if ours != theirs:
            shown = [one.hex() if isinstance(one, bytes) else one for one in (ours, theirs)]
            raise ForeignFile(path, name, *shown)


def _from_record(record: _Record) -> Superblock | Flaw:
    """Turn plain numbers into a record, or return the flaw."""
    numbers = [record.group, record.replica, record.sequence, record.view, record.log_view]
    numbers += [record.commit, record.checkpoint_op, record.previous_op]
    numbers += record.gave_up or ()
    if min(numbers) < 0 or max(numbers) > OP_MAX or not record.replica < record.replica_count:
        return Flaw("superblock record", "numbers from 0", numbers)
    if len(record.cluster) != CLUSTER_ID_SIZE or sum(record.namespace_bits) > 64:
        return Flaw("superblock identity", f"{CLUSTER_ID_SIZE} bytes", len(record.cluster))
    flaw = _flaw_of_ops(record) or _flaw_of_lives(record)
    if flaw is not None:
        return flaw
    if record.log_view > record.view:
        return Flaw("superblock log view", f"at most {record.view}", record.log_view)
    identity = Identity(
        record.cluster,
        GroupId(record.group),
        ReplicaId(record.replica),
        record.replica_count,
        record.namespace_bits,
    )
    suspect, gave_up = record.suspect, record.gave_up
    return Superblock(
        identity=identity,
        sequence=record.sequence,
        view=View(record.view),
        log_view=View(record.log_view),
        commit=Op(record.commit),
        checkpoint=Checkpoint(
            Op(record.checkpoint_op), record.checkpoint_tip, record.checkpoint_snapshot
        ),
        previous_op=Op(record.previous_op),
        suspect=None if suspect is None else (Op(suspect[0]), Op(suspect[1])),
        cut_from=_op(record.cut_from),
        syncing_to=_op(record.syncing_to),
        clean_head=_op(record.clean_head),
        peers=tuple((ReplicaId(peer), seen) for peer, seen in record.peers),
        recovering=record.recovering,
        starts=record.starts,
        peer_boots=tuple((ReplicaId(peer), boot) for peer, boot in record.peer_boots),
        gave_up=None if gave_up is None else (View(gave_up[0]), Op(gave_up[1])),
    )


def _flaw_of_ops(record: _Record) -> Flaw | None:
    """Check the ops against each other: a record that is acted on must be consistent."""
    optional = [record.cut_from, record.syncing_to, record.clean_head, *(record.suspect or ())]
    known = [op for op in optional if op is not None]
    if any(not 0 <= op <= OP_MAX for op in [*known, record.commit, record.checkpoint_op]):
        return Flaw("superblock ops", f"0 to {OP_MAX}", known)
    if record.previous_op > record.checkpoint_op or record.cut_from == 0:
        return Flaw("superblock ops", "in order", (record.previous_op, record.checkpoint_op))
    checksums = (record.checkpoint_tip, record.checkpoint_snapshot)
    if any(len(checksum) != _CHECKSUM_SIZE for checksum in checksums):
        return Flaw("superblock checksums", _CHECKSUM_SIZE, [len(one) for one in checksums])
    return None


def _flaw_of_lives(record: _Record) -> Flaw | None:
    """Check the starts and peers: all of it is passed on, and counted from."""
    known = [*record.peers, *record.peer_boots]
    if any(not 0 <= one < record.replica_count for one, _ in known):
        return Flaw("superblock peers", f"replicas below {record.replica_count}", known)
    lives = [life for life, _ in record.starts] + [life for _, life in record.peers]
    boots = [boot for _, boot in (*record.starts, *record.peer_boots)]
    if any(not 0 < one <= SEQUENCE_MAX for one in lives) or any(one <= 0 for one in boots):
        return Flaw("superblock lives", f"1 to {SEQUENCE_MAX}", (lives, boots))
    return None


def _op(number: int | None) -> Op | None:
    return None if number is None else Op(number)
