"""Shards at rest, one for each way to stop, and what each of their files is needed for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.journal.entry import HEADER_SIZE
from headrace.journal.frame import aligned
from headrace.journal.snapshot import Snapshot, snapshot_name
from headrace.journal.superblock import Superblock
from headrace.journal.superblock import decode as decode_superblock
from headrace.model.ids import Op
from headrace.partition.files import placement
from headrace.partition.files.carry import CarryFile, carry_name, op_of, open_carry
from headrace.partition.files.placement import Local
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.reader import Key
from headrace.partition.segments.segment import segment_name
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, Crashed, Effect, Fault
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.history import Broken
from headrace_lab.shard.history import ShardHistory
from headrace_lab.shard.oracle import Deed
from headrace_lab.shard.script import (
    HOT,
    IDLER,
    SLOW,
    STAGER,
    WARM,
    ShardActor,
    options,
    stage,
)

Range = tuple[Key, int, int]  # offsets start to before end
Carried = dict[Op, list[Range]]
OTHER_CLUSTER = b"another cluster!"


@dataclass(frozen=True, slots=True)
class CarryRegion:
    """A run of bytes of a carry file that means one thing."""

    kind: str  # table, entry, padding; of a kept file, only entries mean anything
    start: int
    end: int
    op: Op = Op(0)


@dataclass(slots=True)
class ShardScene:
    """A disk at rest, its history, and what the snapshot in use says of its files."""

    name: str
    disk: MemoryDisk
    history: ShardHistory
    foreign: dict[str, bytes]  # the same paths in another cluster
    base: Op  # the snapshot that a recovery begins with
    segments: dict[str, Range]  # rows for which only this file stands, by path
    lonely: dict[str, Carried]  # rows of which the journal has no copy, by path of a carry file
    drained: dict[str, Carried]  # the same after the opening, which may have made a checkpoint
    regions: dict[str, list[CarryRegion]]  # of each carry file and each kept file
    named: frozenset[str]  # paths that the snapshot in use names, and what is kept for those
    keeps: dict[str, set[str]]  # the kept files that a named carry file needs


def grown(actor: ShardActor) -> None:
    """Four checkpoints: segments of three partitions, and rows that wait in carry files."""
    actor.open()
    actor.submit(*(Deed("open", key, version=1, topic=1, at=2) for key in (HOT, WARM)))
    actor.submit(Deed("open", SLOW, version=1, topic=2, at=2))
    for count in (4, 4, 4):
        actor.submit(actor.append(HOT, count), actor.append(WARM, count))
    actor.submit(actor.append(SLOW, 2), stage(WARM, IDLER, 1, ("idle", 0), 2))
    actor.checkpoint()
    actor.submit(*(actor.append(key, 3) for key in (HOT, SLOW)))
    actor.submit(actor.append(HOT, 4))
    actor.submit(actor.append(HOT, 4), Deed("cursor", WARM, group="readers", offset=3))
    actor.checkpoint()
    actor.submit(actor.append(WARM, 2), actor.append(SLOW, 1))
    actor.checkpoint()
    actor.submit(Deed("trim", HOT, offset=13), actor.append(HOT, 2))
    actor.submit(actor.append(WARM, 3), actor.append(SLOW, 2))
    actor.checkpoint()
    actor.submit(actor.append(HOT, 1), actor.append(WARM, 1))


def _stopped(actor: ShardActor) -> None:
    grown(actor)
    actor.running().store.stop()


def _crashed(actor: ShardActor) -> None:
    """A Seal whose checkpoint had not begun: a recovery makes it."""
    grown(actor)
    actor.seal()
    actor.submit(actor.append(HOT, 2), actor.append(SLOW, 1))


def _orphaned(actor: ShardActor) -> None:
    """Died when the files of a Seal had their names, and no snapshot named them yet."""
    grown(actor)
    actor.submit(actor.append(HOT, 3), actor.append(SLOW, 1))
    actor.seal()

    def at_snapshot(effect: Effect) -> Fault | None:
        is_begun = effect.kind == "create" and effect.path.startswith("snapshots/")
        return Crash() if is_begun else None

    actor.disk.hook = at_snapshot
    try:
        actor.run()
    except Crashed:
        return
    raise Broken("no snapshot was begun")


def _kept(actor: ShardActor) -> None:
    """Staged rows that wait have journal files kept, and rows of partitions with them."""
    grown(actor)
    for _ in range(3):  # every run of before is in a segment now
        actor.checkpoint()
    for number, key in ((0, WARM), (3, HOT), (6, SLOW)):
        stages = (stage(HOT, STAGER, 1, ("long", number + each), 3) for each in range(3))
        actor.submit(actor.append(key, 1), *stages)
    actor.checkpoint()
    actor.submit(actor.append(HOT, 1))
    actor.checkpoint()
    actor.running().store.stop()


STORIES: dict[str, Callable[[ShardActor], None]] = {
    "stopped": _stopped,
    "crashed": _crashed,
    "orphaned": _orphaned,
    "kept": _kept,
    "fallen back": _stopped,  # and its newest snapshot is gone
}


def build(name: str) -> ShardScene:
    """Play one story to its end, here and in another cluster."""
    actor = ShardActor(MemoryDisk())
    STORIES[name](actor)
    other = ShardActor(MemoryDisk(), cluster=OTHER_CLUSTER)
    STORIES[name](other)
    disk = actor.disk.kill()
    snapshots = sorted(path for path in disk.files() if path.startswith("snapshots/"))
    if name == "fallen back":
        disk.remove(snapshots[-1])
        other.disk.remove(snapshots[-1])
    foreign = {path: other.disk.content(path) for path in other.disk.files()}
    return _mapped(name, disk, actor.history, foreign)


def _mapped(
    name: str, disk: MemoryDisk, history: ShardHistory, foreign: dict[str, bytes]
) -> ShardScene:
    trial = ShardActor(disk.clone(), history.copy(), options())
    store = trial.open().store
    trial.history.check_store(store)
    base = store.report.snapshot_op
    block = decode_superblock(disk.content("superblock.a"), "superblock.a")
    found = store.group.checkpoints.snapshots.load(base)
    assert isinstance(block, Superblock)
    assert isinstance(found, Snapshot)
    known = placement.decode(found.state.local)
    machine = PartitionsMachine(SOLO.namespace_bits[2])
    machine.restore(found.state)
    carries = _carry_files(disk)
    regions = {path: _regions(file) for path, file in carries.items()}
    named = frozenset(_paths(known))
    keeps: dict[str, set[str]] = {}
    for path in sorted(named & carries.keys()):
        kept = _kept_regions(carries[path])
        keeps[path] = set(kept)
        for each, found_there in kept.items():
            regions.setdefault(each, []).extend(found_there)
    named = named.union(*keeps.values())
    homes = {region.op: path for path in regions if path in named for region in regions[path]}
    lonely = _rows(machine, history, lambda op: op < block.previous_op)
    lost_later = _rows(store.machine, history, lambda op: store.group.journal.slot(op) is None)
    return ShardScene(
        name=name,
        disk=disk,
        history=trial.history,
        foreign=foreign,
        base=base,
        segments=_segments(known, history),
        lonely=_by_path(lonely, homes),
        drained=_by_path(lost_later, homes),
        regions=regions,
        named=named,
        keeps=keeps,
    )


def _paths(known: Local) -> Iterator[str]:
    yield from (f"segments/{segment_name(*_place(one))}" for one in known.placed)
    yield from (f"carry/{carry_name(one.op)}" for one in known.carried)


def _place(one: placement.PlacedHere) -> tuple[int, int, int, int]:
    return one.namespace, one.created, one.first, one.end


def _segments(known: Local, history: ShardHistory) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for one in known.placed:
        rows = _retained(history, Key(one.namespace, one.created), one.first, one.end)
        if rows is not None:
            found[f"segments/{segment_name(*_place(one))}"] = rows
    return found


def _retained(history: ShardHistory, key: Key, first: int, end: int) -> Range | None:
    life = history.oracle.lives.get(key)
    if life is None or end <= life.first:
        return None
    return key, max(first, life.first), end


def _carry_files(disk: MemoryDisk) -> dict[str, CarryFile]:
    room = disk.clone().root.child("carry")
    found: dict[str, CarryFile] = {}
    for name in filter(op_of, room.names()):
        file = open_carry(room, SOLO, Op(int(name.split(".")[0])))
        assert isinstance(file, CarryFile)
        found[f"carry/{name}"] = file
    return found


def _regions(file: CarryFile) -> list[CarryRegion]:
    rows = [file.row(op) for op in file.ops]
    own = [(row.op, row.position, row.size) for row in rows if not row.source]
    found = [CarryRegion("table", 0, own[0][1] if own else file.size)]
    for op, position, size in own:
        assert size >= HEADER_SIZE
        found.append(CarryRegion("entry", position, position + size, op))
        found.append(CarryRegion("padding", position + size, position + aligned(size), op))
    return found


def _kept_regions(file: CarryFile) -> dict[str, list[CarryRegion]]:
    found: dict[str, list[CarryRegion]] = {}
    for row in map(file.row, file.ops):
        source = file.source_of(row)
        if source is not None:
            region = CarryRegion("entry", row.position, row.position + row.size, row.op)
            found.setdefault(f"carry/{source.name}", []).append(region)
    return found


def _rows(
    machine: PartitionsMachine, history: ShardHistory, is_drained: Callable[[Op], bool]
) -> Carried:
    """Say which rows are in no segment, and in the journal no more."""
    found: Carried = {}
    for partition in machine.state.partitions.values():
        key = Key(partition.namespace, partition.created)
        for piece in (piece for run in partition.runs for piece in run.pieces):
            rows = _retained(history, key, piece.first, piece.end)
            if is_drained(piece.op) and rows is not None:
                found.setdefault(piece.op, []).append(rows)
    return found


def _by_path(rows: Carried, homes: dict[Op, str]) -> dict[str, Carried]:
    found: dict[str, Carried] = {}
    for op, ranges in rows.items():
        if op in homes:
            found.setdefault(homes[op], {})[op] = ranges
    return found


def newest_snapshot(scene: ShardScene) -> str:
    return f"snapshots/{snapshot_name(scene.base)}"
