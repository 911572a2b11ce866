"""The contents of superblocks, snapshots and carry files."""

from pathlib import Path

from headrace.doctor.anatomy.file_anatomy import (
    ENTRY_HEADS,
    Anatomy,
    Table,
    bits_near,
    entry_cells,
    flawed,
    opened,
    time_text,
    whole_entries,
)
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import HeadraceError
from headrace.journal.entry import Entry, Flaw
from headrace.journal.snapshot import Snapshot, SnapshotHeader, read_header, read_parts
from headrace.journal.superblock import Superblock, decode
from headrace.metadata import image as metadata_image
from headrace.model.namespace import NamespaceLayout
from headrace.node.config.settings import Config
from headrace.partition.files import placement
from headrace.partition.files.carry import CarryFile, load_carry
from headrace.partition.machine import image
from headrace.partition.segments.segment import segment_name
from headrace.storage.seam import Storage

_SUPERBLOCK_SIZE_MAX = 64 * 1024  # far above any real record


def superblock_anatomy(path: str, limit: int) -> Anatomy:
    """Show one copy of a superblock."""
    file = opened(path)
    try:
        found = Anatomy("superblock", file.size())
        try:
            record = decode(file.read(0, _SUPERBLOCK_SIZE_MAX), path)
        except HeadraceError as error:
            found.flaw(0, str(error))
            return found
    finally:
        file.close()
    if isinstance(record, Flaw):
        found.flaw(0, record)
        return found
    _record(record, found, limit)
    return found


def _record(record: Superblock, found: Anatomy, limit: int) -> None:
    identity, pair = record.identity, record.checkpoint
    found.fields = {
        "cluster": identity.cluster.hex(),
        "group": identity.group,
        "replica": f"{identity.replica} of {identity.replica_count}",
        "namespace bits": ", ".join(map(str, identity.namespace_bits)),
        "sequence": record.sequence,
        "view": record.view,
        "log view": record.log_view,
        "commit": record.commit,
        "checkpoint op": pair.op,
        "checkpoint tip": pair.tip.hex(),
        "snapshot": pair.snapshot.hex(),
        "previous op": record.previous_op,
        "suspect": "" if record.suspect is None else "{} to {}".format(*record.suspect),
        "cut from": record.cut_from,
        "syncing to": record.syncing_to,
        "clean head": record.clean_head,
        "recovering": str(record.recovering).lower(),
    }
    peers = Table("peers", ("peer", "sequence"))
    for peer, sequence in record.peers:
        peers.add(limit, str(peer), sequence)
    if record.peers:
        found.tables.append(peers)


def snapshot_anatomy(path: str, limit: int) -> Anatomy:
    """Show a snapshot: its header, and the state in it."""
    file = opened(path)
    try:
        found = Anatomy("snapshot", file.size())
        try:
            header = read_header(file)
        except HeadraceError as error:
            found.flaw(0, str(error))
            return found
        if isinstance(header, Flaw):
            found.flaw(0, header)
            return found
        _snapshot_fields(header, found)
        parts = read_parts(file, header)
    finally:
        file.close()
    if isinstance(parts, Flaw):
        found.flaw(None, parts)
    else:
        _state(parts, header, path, found, limit)
    return found


def _snapshot_fields(header: SnapshotHeader, found: Anatomy) -> None:
    found.fields = {
        "checksum": header.checksum.hex(),
        "format": header.format,
        "cluster": header.cluster.hex(),
        "group": header.group,
        "op": header.op,
        "tip": header.tip.hex(),
        "replicated part": header.replicated_size,
        "local part": header.local_size,
    }


def _state(
    parts: Snapshot, header: SnapshotHeader, path: str, found: Anatomy, limit: int
) -> None:
    wanted = Config().cluster
    bits = bits_near(path) or (wanted.stream_bits, wanted.topic_bits, wanted.partition_bits)
    try:
        if header.group == 0:
            _metadata(parts.state.replicated, NamespaceLayout(*bits), found, limit)
        else:
            _partitions(parts.state.replicated, bits[2], found, limit)
            _local(parts.state.local, found, limit)
    except HeadraceError as error:
        found.flaw(None, f"intact, but not a valid state of its machine: {error}")


def _metadata(data: bytes, layout: NamespaceLayout, found: Anatomy, limit: int) -> None:
    state = metadata_image.decode(data, layout)
    found.fields |= {"level": state.level, "revision": state.revision}
    heads = ("topic", "id", "created", "shard", "partitions", "schemas", "made")
    topics = Table("topics", heads)
    for topic in state.topics_in_order():
        name = f"{state.streams[topic.stream_id].name}/{topic.name}"
        topics.add(
            limit,
            name,
            f"{topic.stream_id}/{topic.id}",
            topic.created,
            topic.shard,
            len(topic.partitions),
            len(topic.schemas),
            time_text(topic.created_at),
        )
    found.tables.append(topics)
    deleted = Table("deleted lives", ("partition", "created"))
    lives = [(one, life) for one in sorted(state.deleted) for life in state.deleted[one]]
    for namespace, created in lives:
        shown = created if created > 0 else f"{-created}, given up"
        deleted.add(limit, f"{namespace:016x}", shown)
    if deleted.rows:
        found.tables.append(deleted)


def _partitions(data: bytes, bits: int, found: Anatomy, limit: int) -> None:
    state = image.decode(data, bits)
    found.fields |= {"revision": state.revision, "sealed op": state.sealed_op}
    heads = ("partition", "created", "first", "end", "segments", "pieces", "cursors", "writers")
    table = Table("partitions", heads)
    for namespace in sorted(state.partitions):
        one = state.partitions[namespace]
        table.add(
            limit,
            f"{namespace:016x}",
            one.created,
            one.first,
            one.end,
            len(one.segments),
            sum(len(run.pieces) for run in one.runs),
            len(one.cursors),
            len(one.writers),
        )
    found.tables.append(table)


def _local(data: bytes, found: Anatomy, limit: int) -> None:
    known = placement.decode(data)
    carries = Table("carry files", ("op", "size", "checksum"))
    for carried in known.carried:
        carries.add(limit, str(carried.op), carried.size, carried.checksum.hex())
    segments = Table("segments", ("file", "rows", "size", "file digest"))
    for one in known.placed:
        name = segment_name(one.namespace, one.created, one.first, one.end)
        segments.add(limit, name, one.end - one.first, one.size, one.file.hex())
    unplaced = Table("not sealed yet", ("partition", "first", "end", "why"))
    for each in known.unplaced:
        unplaced.add(limit, f"{each.namespace:016x}", each.first, each.end, each.flaw)
    found.tables += [one for one in (carries, segments, unplaced) if one.rows]


def carry_anatomy(path: str, limit: int) -> Anatomy:
    """Show a carry file: its index, and each entry's state."""
    file = opened(path)
    try:
        found = Anatomy("carry", file.size())
        table = Table("entries", ("op", "position", *ENTRY_HEADS, "state"))
        found.tables.append(table)
        try:
            carry = load_carry(file, None, None, ReadonlyDirectory(str(Path(path).parent)))
        except HeadraceError as error:
            found.flaw(0, str(error))
            return found
        if isinstance(carry, Flaw):
            found.flaw(0, carry)
            _ruin(file, found, limit)
        else:
            _carried(carry, found, limit)
        return found
    finally:
        file.close()


def _carried(carry: CarryFile, found: Anatomy, limit: int) -> None:
    cluster, group = carry.owner
    found.fields = {
        "checksum": carry.checksum.hex(),
        "cluster": cluster.hex(),
        "group": group,
        "op of the Seal": carry.op,
        "size": carry.size,
        "entries": len(carry.ops),
    }
    for op in carry.ops:
        entry, row = carry.read(op), carry.row(op)
        source = carry.source_of(row)
        header = entry.header if isinstance(entry, Entry) else None
        state = "ok" if isinstance(entry, Entry) else flawed(entry)
        if header is None:
            found.flaw(row.position, f"op {op:,}: {state}")
        place = row.position if source is None else f"{row.position} of {source.name}"
        found.tables[0].add(limit, op, place, *entry_cells(header), state)


def _ruin(file: Storage, found: Anatomy, limit: int) -> None:
    """Show the intact entries of a file whose index cannot be read."""
    for position, header in whole_entries(file, 0):
        cells = entry_cells(header)
        found.tables[0].add(limit, header.op, position, *cells, "ok, without the index")
