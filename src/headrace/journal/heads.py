"""How far each log of a data directory has come, written down outside the logs.

    heads := slot slot
    slot  := checksum:16s  magic:8s  format:u16  reader_min:u16  count:u32  cluster:16s
             sequence:u64  written_at:u64  (group:u32 op:u64 tip:16s) * count  zeros

`checksum` is xxh3-128 of the rest of the slot. A *head* is the newest op of a group that is
durable and committed here, with the checksum of its entry. It is evidence that no damage to the
journal takes along: at a start, an entry at or below it is never cut as a torn tail.

The slots are written in turn, so one of them is whole whatever a crash does to the other:

    inside the write, or before its sync   the other slot: heads that are a second older
    after the sync                         both slots; the one of the higher sequence counts
    a write or a sync that failed          nobody knows what this slot holds; it is written
                                           again, as a whole, before the other one is touched

A missing, damaged or older file is weaker evidence, and never more.
"""

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_128_digest

from headrace.errors import ForeignFile, StorageFailed, refuse_newer
from headrace.journal.entry import Flaw
from headrace.model.ids import OP_MAX, GroupId, Op
from headrace.storage.atomic import atomic_replace
from headrace.storage.seam import Directory, Storage

NAME: Final = "heads"
MAGIC: Final = b"HRheads\0"
FORMAT: Final = 1
SLOT_SIZE: Final = 8 * 1024  # two blocks: what 256 shards and group 0 need is more than one
SLOT_COUNT: Final = 2

_FIELDS = struct.Struct("<16s8sHHI16sQQ")
_HEAD = struct.Struct("<IQ16s")
_CHECKSUM_SIZE = 16
_TIME_MAX = 253_402_300_799_999_999  # the last microsecond that a calendar has
HEADS_MAX: Final = (SLOT_SIZE - _FIELDS.size) // _HEAD.size


@dataclass(frozen=True, slots=True)
class Head:
    """The newest op of one group that is durable and committed here, and its checksum."""

    op: Op
    tip: bytes
    written_at: int = field(default=0, compare=False)  # microseconds; 0: not read from a file


@dataclass(frozen=True, slots=True)
class HeadSlot:
    """One state of the file."""

    cluster: bytes
    sequence: int
    written_at: int  # microseconds
    heads: Mapping[GroupId, Head]


@dataclass(frozen=True, slots=True)
class FoundHeads:
    """What a directory's file says. Nothing was changed to find it out."""

    newest: HeadSlot | None = None
    place: int = 0  # of the newest slot
    flaws: tuple[str, ...] = ()  # what is wrong with the file, in words
    is_missing: bool = False
    is_whole: bool = False  # slots can be written in place

    @property
    def heads(self) -> Mapping[GroupId, Head]:
        return {} if self.newest is None else self.newest.heads


def encode(slot: HeadSlot) -> bytes:
    """Return the bytes of a slot. Of more groups than any cluster has, the first are kept."""
    heads = sorted(slot.heads.items())[:HEADS_MAX]
    fields = _FIELDS.pack(
        bytes(_CHECKSUM_SIZE),
        MAGIC,
        FORMAT,
        FORMAT,
        len(heads),
        slot.cluster,
        slot.sequence,
        slot.written_at,
    )
    packed = b"".join(_HEAD.pack(group, head.op, head.tip) for group, head in heads)
    rest = (fields + packed).ljust(SLOT_SIZE, b"\0")[_CHECKSUM_SIZE:]
    return xxh3_128_digest(rest) + rest


def decode(data: bytes, path: str) -> HeadSlot | Flaw | None:
    """Read one slot; None if it was never written. Only one of a newer release raises."""
    if len(data) != SLOT_SIZE:
        return Flaw("slot size", SLOT_SIZE, len(data))
    if not any(data):
        return None
    found, magic, _, reader_min, count, cluster, sequence, at = _FIELDS.unpack_from(data)
    checksum = xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE:])
    if (found, magic) != (checksum, MAGIC):
        return Flaw("slot checksum", checksum.hex(), found.hex())
    refuse_newer(path, FORMAT, reader_min)
    if count > HEADS_MAX or at > _TIME_MAX:
        return Flaw("slot numbers", (HEADS_MAX, _TIME_MAX), (count, at))
    heads: dict[GroupId, Head] = {}
    for place in range(count):
        group, op, tip = _HEAD.unpack_from(data, _FIELDS.size + place * _HEAD.size)
        if not 0 < op <= OP_MAX:
            return Flaw("slot op", f"1 to {OP_MAX}", op)
        heads[GroupId(group)] = Head(Op(op), tip, at)
    return HeadSlot(cluster, sequence, at, heads)


def read_heads(directory: Directory, cluster: bytes) -> FoundHeads:
    """Read the file. Raises only on one of another cluster, and on a newer format."""
    path = f"{directory.path}/{NAME}"
    try:
        file = directory.open(NAME)
    except FileNotFoundError:
        return FoundHeads(is_missing=True)
    except OSError as error:
        return FoundHeads(flaws=(f"cannot be opened: {error.strerror or error}",))
    try:
        with suppress(OSError):  # a hint to the kernel: what a failed sync left is not believed
            file.drop_cache()
        slots = [_read_slot(file, place) for place in range(SLOT_COUNT)]
        size = file.size()
    except OSError as error:
        return FoundHeads(flaws=(f"cannot be read: {error.strerror or error}",))
    finally:
        file.close()
    whole = [(one, place) for place, one in enumerate(slots) if isinstance(one, HeadSlot)]
    for one, _ in whole:
        if one.cluster != cluster:
            raise ForeignFile(path, "cluster", cluster.hex(), one.cluster.hex())
    flaws = [
        f"slot {place + 1} of {SLOT_COUNT}: {one.what}, expected {one.expected}, "
        f"found {one.found}"
        for place, one in enumerate(slots)
        if isinstance(one, Flaw)
    ]
    newest, place = max(whole, key=lambda each: each[0].sequence, default=(None, 1))
    return FoundHeads(newest, place, tuple(flaws), is_whole=size == SLOT_COUNT * SLOT_SIZE)


def _read_slot(file: Storage, place: int) -> HeadSlot | Flaw | None:
    try:
        data = file.read(place * SLOT_SIZE, SLOT_SIZE)
    except OSError as error:
        return Flaw("slot is unreadable", "bytes", error.strerror or str(error))
    return decode(data, file.path)


@dataclass(slots=True)
class HeadsFile:
    """The file, to be written by one thread at a time. A head never falls."""

    directory: Directory
    cluster: bytes
    heads: dict[GroupId, Head]  # of the newest slot on disk, also of groups that do not run
    sequence: int = 0
    place: int = 0  # the slot that is written next: never the one that is relied on
    is_whole: bool = False  # False: it is made as a whole first
    _storage: Storage | None = None

    @classmethod
    def of(cls, directory: Directory, cluster: bytes, found: FoundHeads) -> "HeadsFile":
        """Go on from what was read."""
        sequence = 0 if found.newest is None else found.newest.sequence
        place = (found.place + 1) % SLOT_COUNT
        return cls(directory, cluster, dict(found.heads), sequence, place, found.is_whole)

    def is_behind(self, heads: Mapping[GroupId, Head]) -> bool:
        """Say whether any of `heads` is above what is on disk."""
        known = self.heads
        return any(group not in known or head.op > known[group].op
                   for group, head in heads.items())  # fmt: skip

    def write(self, heads: Mapping[GroupId, Head], now: int) -> None:
        """Return once the heads are durable: those given, and of other groups those known.

        After OSError or StorageFailed the slot that was relied on before still stands, and a
        repeat writes the same slot as before.
        """
        raised = dict(self.heads)
        for group, head in heads.items():
            if group not in raised or head.op > raised[group].op:
                raised[group] = head
        data = encode(HeadSlot(self.cluster, self.sequence + 1, now, raised))
        if self.is_whole:
            self._write_slot(data)
        else:
            self._make(data)
        self.place = (self.place + 1) % SLOT_COUNT
        self.sequence += 1
        self.heads = raised

    def close(self) -> None:
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()

    def _write_slot(self, data: bytes) -> None:
        if self._storage is None:
            self._storage = self.directory.open(NAME, writable=True)
        self._storage.write(self.place * SLOT_SIZE, [data])
        self._storage.sync()

    def _make(self, data: bytes) -> None:
        """Make the file with both its slots, so that no later write needs space."""
        self.place = 0
        try:
            atomic_replace(self.directory, NAME, [data, bytes(SLOT_SIZE)])
        except StorageFailed as failed:
            # It shows, and a power cut may take its name: weaker, and never synced again.
            self.is_whole = failed.stage == "sync-dir"
            raise
        self.is_whole = True
