"""Ways to damage one file of a group at rest, and the ones that are tried."""

from collections.abc import Iterator
from random import Random

from headrace.journal.entry import Entry, Flaw, decode, seal
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix, decode_prefix, encode_prefix
from headrace.journal.frame import padding as frame_padding
from headrace.journal.heads import NAME as HEADS
from headrace.journal.heads import SLOT_SIZE
from headrace.model.ids import Op
from headrace.model.proposal import EntryProposal
from headrace_lab.counter.scene import GroupScene, Layout, Region
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import SECTOR_SIZE
from headrace_lab.harness.damage import Damage, changed, ranges

WHOLE = ("missing", "empty", "foreign", "stale")
SECTORS = ("old", "swap", "unreadable")  # besides zeros
_HEADS_USED = 64 + 28  # bytes of a slot with one head


def damaged(scene: GroupScene, damage: Damage) -> bytes | None:
    """Return the content after the damage, None if the file is gone."""
    data = scene.disk.content(damage.path)
    if damage.kind == "forged":
        return _forged(data, scene.layout(damage.path), Op(damage.at))
    if damage.kind in SECTORS:
        return _sector(scene, damage, data)
    others = {"foreign": scene.foreign.get(damage.path, data), "stale": scene.old(damage.path)}
    return changed(data, damage, others)


def ranges_of(scene: GroupScene) -> Iterator[Damage]:
    """Yield every range of every file of a scene, and what can befall its heads as a whole."""
    sizes = {path: len(scene.disk.content(path)) for path in scene.disk.files()}
    yield from ranges(sizes)
    yield from (Damage(HEADS, kind) for kind in ("missing", "empty", "foreign"))
    used = range(8 * _HEADS_USED)  # of each slot; in the rest all bits are alike
    for start in (0, 8 * SLOT_SIZE):
        yield from (Damage(HEADS, "flip", start + bit) for bit in used)


def sample_ranges(scene: GroupScene, count: int, seed: int) -> list[Damage]:
    """Return `count` of them, two thirds in the journal, which has most to lose."""
    of_journal = [one for one in ranges_of(scene) if one.path.startswith("journal/0")]
    others = [one for one in ranges_of(scene) if not one.path.startswith("journal/")]
    rng = Random(seed)
    chosen = rng.sample(of_journal, min(len(of_journal), count * 2 // 3))
    return [*chosen, *rng.sample(others, min(len(others), count - len(chosen)))]


def _sector(scene: GroupScene, damage: Damage, data: bytes) -> bytes:
    start, end = damage.at * SECTOR_SIZE, (damage.at + 1) * SECTOR_SIZE
    match damage.kind:
        case "old":
            piece = scene.old_piece(damage.path, start, min(end, len(data)))
        case "swap":
            follower = data[end : end + SECTOR_SIZE]
            return data[:start] + follower + data[start:end] + data[end + SECTOR_SIZE :]
        case "unreadable":
            return data
        case _:
            raise AssertionError(damage.kind)
    return data[:start] + piece + data[end:]


def _forged(data: bytes, layout: Layout, op: Op) -> bytes:
    """Put a whole entry there that follows another parent: what a lost view would have left."""
    region = next(one for one in layout.entries if one.op == op)
    entry = decode(data[region.start + PREFIX_SIZE : region.end])
    file_id = int.from_bytes(layout.file_id, "little")
    prefix = decode_prefix(data[region.start :], file_id, region.start)
    assert isinstance(entry, Entry)
    assert not isinstance(prefix, Flaw)
    forged = seal(
        SOLO,
        EntryProposal(entry.header.operation, entry.body),
        op=op,
        parent=bytes(16),
        view=entry.header.view,
        timestamp=entry.header.timestamp,
    )
    new = Prefix(
        FrameKind.ENTRY,
        prefix.size,
        file_id,
        prefix.durable,
        prefix.commit,
        op,
        forged.checksum,
    )
    frame = b"".join((encode_prefix(new, region.start), forged.sealed, forged.body))
    frame += frame_padding(prefix.size)
    return data[: region.start] + frame + data[region.start + len(frame) :]


def every(scene: GroupScene) -> Iterator[Damage]:
    """Yield every damage of every file: all bits, all lengths, all sectors, the whole file."""
    for path in scene.disk.files():
        if path.startswith("journal/spare/"):
            yield from (Damage(path, kind) for kind in ("missing", "empty"))
            continue
        size = len(scene.disk.content(path))
        yield from (Damage(path, kind) for kind in WHOLE)
        yield from (Damage(path, "flip", bit) for bit in range(size * 8))
        yield from (Damage(path, "cut", length) for length in range(1, size))
        count = -(-size // SECTOR_SIZE)
        for kind in ("zero", "old", "unreadable"):
            yield from (Damage(path, kind, sector) for sector in range(count))
        if size % SECTOR_SIZE == 0:
            yield from (Damage(path, "swap", sector) for sector in range(count - 1))
    for layout in scene.layouts:
        yield from (
            Damage(layout.path, "forged", region.op)
            for region in layout.entries
            if region.op > scene.base
        )


def sample(scene: GroupScene, count: int, seed: int) -> list[Damage]:
    """Return about `count` damages: all but flips and cuts, and a fair share of those."""
    all_of_them = list(every(scene))
    few = [one for one in all_of_them if one.kind not in ("flip", "cut")]
    many = [one for one in all_of_them if one.kind in ("flip", "cut")]
    telling = [one for one in many if _is_telling(scene, one)]
    rng = Random(seed)
    wanted = max(0, count - len(few))
    # Most bits of a small file are the empty part of header blocks: look more often where there
    # is more to hit.
    chosen = rng.sample(telling, min(len(telling), wanted * 2 // 3))
    rest = rng.sample(many, min(len(many), wanted - len(chosen)))
    return [*few, *chosen, *rest]


def _is_telling(scene: GroupScene, damage: Damage) -> bool:
    if not damage.path.startswith("journal/"):
        return True
    place = damage.at // 8 if damage.kind == "flip" else damage.at
    regions = scene.layout(damage.path).regions
    return any(_hits(region, place) for region in regions if region.kind != "block")


def _hits(region: Region, place: int) -> bool:
    return region.start <= place < region.end
