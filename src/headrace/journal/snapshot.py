"""A machine's state at an op, as a file of two parts.

    file := checksum:16s  magic:8s  format:u16  reader_min:u16  group:u32  cluster:16s
            op:u64  tip:16s  replicated_size:u64  local_size:u64
            replicated_checksum:16s  local_checksum:16s  replicated  local

`checksum` is xxh3-128 of the header after it and names the snapshot; each part has its own
xxh3-128, over the bytes as written. Equal states have equal replicated parts on all replicas;
the local part says where this node keeps things. `tip` is the checksum of the entry at `op`:
the journal must go on from there.
"""

import re
import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from xxhash import xxh3_128_digest

from headrace.errors import (
    DiskFull,
    ForeignFile,
    ReadFailed,
    SealFailed,
    StorageFailed,
    refuse_newer,
)
from headrace.journal.entry import Flaw
from headrace.journal.machine_seam import MachineState
from headrace.model.ids import Identity, Op
from headrace.storage.atomic import atomic_replace, is_barred, refuse_if_poisoned
from headrace.storage.seam import Directory, is_full, joined
from headrace.storage.stuck import StuckFiles

MAGIC: Final = b"HRsnapsh"
FORMAT: Final = 1

_FIELDS = struct.Struct("<16s8sHHI16sQ16sQQ16s16s")
_CHECKSUM_SIZE = 16
_NAME = re.compile(r"([0-9]{20})\.snap")


class SnapshotHeader(NamedTuple):
    """What a snapshot says of itself."""

    checksum: bytes
    format: int
    reader_min: int
    group: int
    cluster: bytes
    op: int
    tip: bytes
    replicated_size: int
    local_size: int
    replicated_checksum: bytes
    local_checksum: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, read back and checked."""

    op: Op
    tip: bytes
    state: MachineState
    checksum: bytes  # names this very file


@dataclass(slots=True)
class SnapshotFiles:
    """The snapshots of one group."""

    directory: Directory
    identity: Identity
    poisoned: StorageFailed | None = None  # a sync of the directory failed: never sync it again
    stuck: StuckFiles = field(default_factory=StuckFiles)

    def persist(self, op: Op, tip: bytes, state: MachineState) -> Snapshot:
        """Write a snapshot; return once it is durable under its name.

        DiskFull, SealFailed and StorageFailed at stage `write` or `rename`: as if never begun,
        repeat from the start. StorageFailed at `sync` or `sync-dir`: it may or may not be
        there; reopen.
        """
        refuse_if_poisoned(self.poisoned)
        header, snapshot = _encode(self.identity, op, tip, state)
        try:
            atomic_replace(
                self.directory, snapshot_name(op), [header, state.replicated, state.local]
            )
        except StorageFailed as failed:
            if failed.stage in ("write", "rename") and is_full(failed.cause):
                raise DiskFull(failed.path, failed.stage) from failed
            if is_barred(failed):
                raise SealFailed(failed.path, str(failed.cause)) from failed
            if failed.stage == "sync-dir":
                self.poisoned = failed
            raise
        return snapshot

    def ops(self) -> list[Op]:
        """Return the ops of which there is a file, newest first."""
        found = [_NAME.fullmatch(name) for name in self.directory.names()]
        return sorted((Op(int(one.group(1))) for one in found if one), reverse=True)

    def load(self, op: Op) -> Snapshot | Flaw:
        """Read a snapshot and check every byte of it. Only a foreign or newer one raises."""
        try:
            file = self.directory.open(snapshot_name(op))
        except FileNotFoundError:
            return Flaw("snapshot is missing", snapshot_name(op), "nothing")
        except PermissionError:
            raise  # its bytes are not judged: who may read it finds them whole
        except OSError as error:
            return Flaw("snapshot cannot be opened", "a file", error.strerror or str(error))
        try:
            found = _read(file, self.identity)
        except OSError as error:
            return Flaw("snapshot is unreadable", "bytes", error.strerror or str(error))
        finally:
            file.close()
        if isinstance(found, Snapshot) and found.op != op:
            return Flaw("snapshot op", op, found.op)
        return found

    def prune(self, keep: Op) -> None:
        """Unlink every snapshot below `keep`. Called when a newer pair is durable.

        One that cannot be removed costs space, and is tried again at the next checkpoint.
        """
        gone = [snapshot_name(op) for op in self._ops() if op < keep]
        if sum(self.stuck.unlink(self.directory, name) for name in gone):
            self._sync("prune")

    def withdraw(self, op: Op) -> None:
        """Unlink the snapshot at `op`, if there is one: a file that it names will be replaced.

        Until it is persisted again, and paired if the superblock names it, a start takes the
        previous one and replays from there. SealFailed: it is still there.
        """
        if op not in self._ops():
            return
        try:
            self.directory.unlink(snapshot_name(op))
        except OSError as error:
            raise SealFailed(
                joined(self.directory.path, snapshot_name(op)), str(error)
            ) from error
        self._sync("withdraw")

    def _ops(self) -> list[Op]:
        refuse_if_poisoned(self.poisoned)
        try:
            return self.ops()
        except OSError as error:  # nothing was touched: this process is short of something
            raise ReadFailed(self.directory.path, error) from error

    def _sync(self, stage: str) -> None:
        try:
            self.directory.sync()
        except OSError as error:
            self.poisoned = StorageFailed(self.directory.path, stage, error)
            raise self.poisoned from error


def snapshot_name(op: Op) -> str:
    """Return the name of the snapshot at `op`."""
    return f"{op:020}.snap"


def _encode(
    identity: Identity, op: Op, tip: bytes, state: MachineState
) -> tuple[bytes, Snapshot]:
    fields = _FIELDS.pack(
        bytes(_CHECKSUM_SIZE),
        MAGIC,
        FORMAT,
        FORMAT,
        identity.group,
        identity.cluster,
        op,
        tip,
        len(state.replicated),
        len(state.local),
        xxh3_128_digest(state.replicated),
        xxh3_128_digest(state.local),
    )
    checksum = xxh3_128_digest(fields[_CHECKSUM_SIZE:])
    return checksum + fields[_CHECKSUM_SIZE:], Snapshot(op, tip, state, checksum)


class Readable(Protocol):
    """What a snapshot is read from."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A snapshot that is no file yet."""

    path: str
    data: bytes

    def size(self) -> int:
        return len(self.data)

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def decode(data: bytes, identity: Identity, path: str) -> Snapshot | Flaw:
    """Read a snapshot that came as bytes, which would be the file at `path`."""
    return _read(_Sent(path, data), identity)


def _read(file: Readable, identity: Identity) -> Snapshot | Flaw:
    """Read the header, and the parts only if the file is as long as it says."""
    header = read_header(file)
    if isinstance(header, Flaw):
        return header
    if header.cluster != identity.cluster:
        raise ForeignFile(file.path, "cluster", identity.cluster.hex(), header.cluster.hex())
    if header.group != identity.group:
        raise ForeignFile(file.path, "group", identity.group, header.group)
    return read_parts(file, header)


def read_header(file: Readable) -> SnapshotHeader | Flaw:
    """Read what a snapshot says of itself, whosever it is. Only a newer release's raises."""
    data = file.read(0, _FIELDS.size)
    if len(data) < _FIELDS.size:
        return Flaw("snapshot is cut short", f"at least {_FIELDS.size} bytes", len(data))
    fields = _FIELDS.unpack_from(data)
    checksum = xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE : _FIELDS.size])
    if fields[0] != checksum or fields[1] != MAGIC:
        return Flaw("snapshot header checksum", checksum.hex(), fields[0].hex())
    refuse_newer(file.path, FORMAT, fields[3])
    return SnapshotHeader(fields[0], *fields[2:])


def read_parts(file: Readable, header: SnapshotHeader) -> Snapshot | Flaw:
    """Read both parts behind a header, and check them."""
    size = _FIELDS.size + header.replicated_size + header.local_size
    if size != file.size():
        return Flaw("snapshot size", size, file.size())
    data = file.read(_FIELDS.size, size - _FIELDS.size)
    replicated, local = data[: header.replicated_size], data[header.replicated_size :]
    if xxh3_128_digest(replicated) != header.replicated_checksum:
        expected = header.replicated_checksum.hex()
        return Flaw("checksum of the replicated part", expected, "another")
    if xxh3_128_digest(local) != header.local_checksum:
        return Flaw("checksum of the local part", header.local_checksum.hex(), "another")
    return Snapshot(Op(header.op), header.tip, MachineState(replicated, local), header.checksum)
