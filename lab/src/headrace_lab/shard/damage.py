"""Ways to damage one file of a shard at rest, and the required outcome of each, as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headrace.partition.segments.segment import segment_name
from headrace_lab.disk.faults import SECTOR_SIZE
from headrace_lab.harness.damage import RANGES, Damage, changed, ranges
from headrace_lab.shard.scene import Range, ShardScene, newest_snapshot

WHOLE = ("missing", "empty", "foreign", "older", "swap")
PLACES = ("cut", "flip", "zero", "rot")  # `rot` is a flip while the file is open
EXTRAS = ("unknown partition", "beyond the end", "known rows", "rubbish", "no name of ours")
LEFT = ("segments/0123456789abcdef.tmp", "carry/00000000000000000999.carry.tmp")


@dataclass(frozen=True, slots=True)
class Expected:
    """What must happen. Rows that are not lost are read right, at every moment."""

    refused: str = ""  # the error that opening raises
    fell_back: bool = False
    lost: tuple[Range, ...] = ()  # raise a named error that names the file
    guarded: tuple[Range, ...] = ()  # may raise it, or be right: not every byte is read again
    finding: bool = False  # said at the opening
    scrubbed: bool = False  # said at the latest by the scrub
    fate: str = ""  # of an extra file, some checkpoints later: quarantined, gone, stays


CLEAN = Expected()


def contents(scene: ShardScene, damage: Damage) -> dict[str, bytes | None]:
    """Return the paths that change, and their content; None is a file that is gone."""
    if damage.kind == "leftover":
        return {damage.path: b"half a file"}
    if damage.kind in EXTRAS:
        return {damage.path: _extra(scene, damage)}
    data = scene.disk.content(damage.path)
    if damage.kind == "swap":
        other = _partner(scene, damage.path)
        return {damage.path: scene.disk.content(other), other: data}
    others = {"foreign": scene.foreign.get(damage.path, data)}
    if damage.kind == "older":
        others["older"] = scene.disk.content(_partner(scene, damage.path))
    return {damage.path: changed(data, damage, others)}


def _partner(scene: ShardScene, path: str) -> str:
    """Another file of its kind: an older one, with the same offsets if there is one."""
    room, name = path.split("/")
    others = [one for one in scene.disk.files() if one.startswith(f"{room}/") and one != path]
    alike = [one for one in others if one.split("-")[2:] == name.split("-")[2:]]
    older = [one for one in others if one < path]
    return (alike or older or others)[-1]


def _extra(scene: ShardScene, damage: Damage) -> bytes:
    if damage.kind == "rubbish":
        return b"no Parquet at all"
    return scene.disk.content(min(scene.segments))


def expected(scene: ShardScene, damage: Damage) -> Expected | None:
    """Return what must happen; None if nothing changes."""
    after = contents(scene, damage)
    if all(path in scene.disk.files() and scene.disk.content(path) == data
           for path, data in after.items()):  # fmt: skip
        return None
    if damage.kind == "leftover":
        return Expected(fate="gone")
    if damage.kind in EXTRAS:
        return Expected(fate=_FATES[damage.kind])
    outcomes = [_one(scene, damage, path) for path in after]
    return Expected(
        refused=max(one.refused for one in outcomes),
        fell_back=any(one.fell_back for one in outcomes),
        lost=tuple(rows for one in outcomes for rows in one.lost),
        guarded=tuple(rows for one in outcomes for rows in one.guarded),
        finding=any(one.finding for one in outcomes),
        scrubbed=any(one.scrubbed for one in outcomes),
    )


_FATES = {
    "unknown partition": "quarantined",
    "beyond the end": "quarantined",
    "known rows": "gone",
    "rubbish": "quarantined",
    "no name of ours": "stays",
}


def _one(scene: ShardScene, damage: Damage, path: str) -> Expected:
    """Judge one damaged file by what it is needed for."""
    if path.startswith("snapshots/"):
        return Expected("ForeignFile") if damage.kind == "foreign" else Expected(fell_back=True)
    if path not in scene.named:
        return CLEAN  # an older snapshot's, or written again by the replay
    if path.startswith("carry/"):
        is_kept = path.endswith(".wal")
        return _kept(scene, damage, path) if is_kept else _carry(scene, damage, path)
    is_missing = damage.kind == "missing"
    if path not in scene.segments:
        return Expected(finding=is_missing)  # its rows are trimmed
    rows = (scene.segments[path],)
    if damage.kind == "rot":
        return Expected(guarded=rows, scrubbed=True)
    return Expected(lost=rows, finding=is_missing, scrubbed=True)


def _kept(scene: ShardScene, damage: Damage, path: str) -> Expected:
    """A kept file is listed at the opening, and read when one of its entries is."""
    hit = [one.op for one in scene.regions[path] if _hits(damage, one.start, one.end)]
    if damage.kind == "cut":
        hit = [one.op for one in scene.regions[path] if one.end > damage.at]
    drained = scene.drained.get(path, {})
    if damage.kind != "rot":
        drained = drained | scene.lonely.get(path, {})
    is_missing = damage.kind == "missing"
    return Expected(
        lost=tuple(rows for op in hit for rows in drained.get(op, [])),
        finding=is_missing,
        scrubbed=bool(hit),
    )


def _carry(scene: ShardScene, damage: Damage, path: str) -> Expected:
    if damage.kind == "foreign":
        return Expected("ForeignFile")
    regions = scene.regions[path]
    hit = [one for one in regions if _hits(damage, one.start, one.end)]
    whole = damage.kind in (*WHOLE, "cut") or any(one.kind == "table" for one in hit)
    if whole and damage.kind != "rot":
        homes = (path, *scene.keeps.get(path, ()))
        lost = [ranges for home in homes for ranges in scene.lonely.get(home, {}).values()]
        return Expected(
            lost=tuple(rows for ranges in lost for rows in ranges), finding=True, scrubbed=True
        )
    drained = scene.drained.get(path, {})
    if damage.kind != "rot":  # it was there before what the opening does
        drained = drained | scene.lonely.get(path, {})
    ops = [one.op for one in hit if one.kind == "entry"]
    return Expected(
        lost=tuple(rows for op in ops for rows in drained.get(op, [])), scrubbed=True
    )


def _hits(damage: Damage, start: int, end: int) -> bool:
    if damage.kind in RANGES:
        return start < damage.at + damage.size and damage.at < end
    match damage.kind:
        case "flip" | "rot":
            return start <= damage.at // 8 < end
        case "zero":
            return start < (damage.at + 1) * SECTOR_SIZE and damage.at * SECTOR_SIZE < end
        case _:
            return True


def every(scene: ShardScene, seed: int, flips: int | None) -> Iterator[Damage]:
    """Yield the damages of a scene; `flips` places of each file, None for every byte."""
    rng = Random(seed)
    journaled = [
        scene.disk.content(path) for path in scene.disk.files() if path.startswith("journal/")
    ]
    for path in scene.disk.files():
        if path.startswith(("segments/", "carry/")):
            data = scene.disk.content(path)
            size = len(data)
            if data in journaled:  # one file with two names: its damage is the journal's
                yield Damage(path, "missing")
                continue
            yield from (Damage(path, kind) for kind in WHOLE)
            yield from (Damage(path, "zero", at) for at in range(-(-size // SECTOR_SIZE)))
            yield from (Damage(path, "cut", at) for at in _lengths(size, rng, flips))
            yield from _flips(path, data, rng, flips)
            yield from _ranges(path, size, rng, flips)
            if path in scene.named:
                yield from _rot(path, data, rng, flips)
    newest = newest_snapshot(scene)
    if scene.name != "fallen back":
        size = len(scene.disk.content(newest))
        yield from (Damage(newest, kind) for kind in ("missing", "empty", "foreign"))
        local_part = rng.sample(range((size - 400) * 8, size * 8), 8)
        yield from (Damage(newest, "flip", bit) for bit in local_part)
        yield from _ranges(newest, size, rng, flips)
    yield from (Damage(path, "leftover") for path in LEFT)
    yield from _extras()


def _lengths(size: int, rng: Random, flips: int | None) -> list[int]:
    few = {1, 4, 8, 127, 128, size // 2, size - 8, size - 4, size - 1}
    more = rng.sample(range(1, size), size // 8 if flips is None else 3)
    return sorted(one for one in {*few, *more} if 0 < one < size)


def _ranges(path: str, size: int, rng: Random, flips: int | None) -> Iterator[Damage]:
    each = list(ranges({path: size}))
    yield from each if flips is None else rng.sample(each, min(flips, len(each)))


def _flips(path: str, data: bytes, rng: Random, flips: int | None) -> Iterator[Damage]:
    """Flip bits at the ends and by chance."""
    size = len(data)
    ends = [0, 5, 16, 127, size - 1, size - 6, size - 40, size // 2]
    places = range(size) if flips is None else [*ends, *rng.sample(range(size), flips)]
    yield from (Damage(path, "flip", place * 8 + rng.randrange(8)) for place in places)


def _rot(path: str, data: bytes, rng: Random, flips: int | None) -> Iterator[Damage]:
    """Flip bits of what is read again from an open file: pages, and carried entries."""
    if path.startswith("segments/"):
        footer_size = int.from_bytes(data[-8:-4], "little")
        start, end = 4, len(data) - 8 - footer_size
    else:
        start, end = 128, len(data)
    places = range(start, end) if flips is None else rng.sample(range(start, end), 4 * flips)
    yield from (Damage(path, "rot", place * 8 + rng.randrange(8)) for place in places)


def _extras() -> Iterator[Damage]:
    names = {
        "unknown partition": segment_name(5, 1, 0, 3),
        "beyond the end": segment_name(0, 1, 900, 903),
        "known rows": segment_name(0, 1, 14, 16),
        "rubbish": segment_name(0, 1, 14, 16),
        "no name of ours": "notes.parquet",
    }
    yield from (Damage(f"segments/{name}", kind) for kind, name in names.items())
