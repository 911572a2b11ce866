"""The required outcome of each damage, written independently of the code under test.

The rules are those of docs/recovery.md, applied to the map of a scene: which regions changed,
what still proves that an op was durable, and what a reader could still see of it.
"""

from dataclasses import dataclass

from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.heads import NAME as HEADS
from headrace.model.ids import Op
from headrace_lab.counter.damage import damaged
from headrace_lab.counter.scene import GroupScene, Layout, Region
from headrace_lab.disk.faults import SECTOR_SIZE
from headrace_lab.harness.damage import Damage

_ID = slice(16, 24)  # of a prefix: the file id, in clear
_HEADER_SIZE = 256
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Ended:
    """How a recovery ended: one name, and the head it reached (0 if it refused)."""

    name: str
    head: Op = Op(0)

    @property
    def family(self) -> str:
        """The name without an op: what the tally counts."""
        return self.name.split(" at ")[0]


def refused(error: str) -> Ended:
    """Return the outcome of a recovery that raised an error of this name."""
    return Ended(f"refused: {error}")


def expected(scene: GroupScene, damage: Damage) -> Ended | None:
    """Return what must happen; None if the damage changes nothing, so that there is no case."""
    before, after = scene.disk.content(damage.path), damaged(scene, damage)
    if before == after and damage.kind != "unreadable":
        return None
    if damage.kind == "foreign" and not damage.path.startswith("journal/spare"):
        return refused("ForeignFile")
    if damage.path.startswith("journal/spare/") or damage.path == HEADS:
        return Ended("clean", scene.head)  # the journal is whole: nothing is asked of heads
    if damage.path.startswith("superblock"):
        # An older copy is whole, only of a lower sequence: the other one is believed.
        is_older = after in scene.versions[damage.path] and damage.kind != "unreadable"
        return Ended("clean" if is_older else "noted", scene.head)
    if damage.path.startswith("snapshots/"):
        return _snapshot(scene, damage)
    return _Judgement(scene, damage, scene.layout(damage.path), before, after).outcome()


def _snapshot(scene: GroupScene, damage: Damage) -> Ended:
    newest = damage.path == f"snapshots/{scene.base:020}.snap"
    if newest:
        return Ended("fell back", scene.head)
    return Ended("noted" if damage.kind == "missing" else "quarantined", scene.head)


@dataclass(slots=True)
class _Judgement:
    """A damaged journal file."""

    scene: GroupScene
    damage: Damage
    layout: Layout
    before: bytes
    after: bytes | None

    @property
    def is_newest(self) -> bool:
        return self.layout is self.scene.layouts[-1]

    @property
    def last(self) -> Op:
        """The newest op in this file."""
        index = self.scene.layouts.index(self.layout)
        if self.is_newest:
            return self.scene.head
        return Op(self.scene.layouts[index + 1].first_op - 1)

    def outcome(self) -> Ended:
        scene = self.scene
        if self.damage.kind == "forged":
            return refused("ChainBroken")
        if self.after is None:
            covered = not self.is_newest and self.last <= scene.base
            return Ended("noted", scene.head) if covered else refused("MissingFile")
        blocks = [one for one in self.layout.regions if one.kind == "block" and self.hit(one)]
        if len(blocks) == 2:
            covered = not self.is_newest and self.last <= scene.base
            return Ended("quarantined", scene.head) if covered else refused("CorruptFile")
        is_short = len(self.after) < self.layout.size
        frames = [one for one in self.layout.regions if one.kind != "block" and self.hit(one)]
        entries = [one for one in frames if one.kind == "entry"]
        if is_short and self.is_newest and (entries or not scene.is_clean):
            return refused("CorruptFile")
        found = self.frames(frames)
        if found.name == "clean" and (is_short or blocks):
            return Ended("noted", found.head)
        return found

    def frames(self, bad: list[Region]) -> Ended:
        """Judge what happened to the frames of a file whose header can be read."""
        scene = self.scene
        entries = [one for one in bad if one.kind == "entry"]
        proven = self.proven()
        if any(scene.base < one.op <= proven for one in entries):
            return refused("CorruptEntry")
        torn = next((one for one in entries if one.op > proven), None)
        if torn is not None:
            head = Op(torn.op - 1)
            seen = self.is_seen(torn.start)
            return Ended(f"cut at op {torn.op}" if seen else "clean", head)
        if self.tail_is_rubble(bad):
            return Ended(f"cut at op {scene.head + 1}", scene.head)
        if entries:
            hidden = self.is_newest and not self.is_seen(entries[0].start)
            return Ended("noted" if hidden else "damage below", scene.head)
        noted = [one for one in bad if not self.is_last(one)]
        return Ended("noted" if noted else "clean", scene.head)

    def tail_is_rubble(self, bad: list[Region]) -> bool:
        """Tell whether this life left something behind the newest file's last whole frame."""
        if not self.is_newest:
            return False
        last = self.layout.regions[-1]
        if last in bad and last.kind == "mark":
            return self.is_seen(last.start)
        if last in bad and self.hit(Region("", last.start, last.start + PREFIX_SIZE)):
            return False  # without its prefix nobody knows where the last frame ends
        return self.is_seen(-(-last.end // _ALIGNMENT) * _ALIGNMENT)

    def is_last(self, region: Region) -> bool:
        return self.is_newest and region is self.layout.regions[-1]

    def hit(self, region: Region) -> bool:
        """Tell whether a byte of the region changed, or cannot be read."""
        if self.damage.kind == "unreadable":
            start, end = self.damage.at * SECTOR_SIZE, (self.damage.at + 1) * SECTOR_SIZE
            return start < region.end and region.start < end
        assert self.after is not None
        return self.before[region.start : region.end] != self.after[region.start : region.end]

    def proven(self) -> Op:
        """The highest op of which something that is still whole says that it was durable."""
        block = self.scene.superblock
        known = [block.commit, block.checkpoint.op, block.clean_head or Op(0)]
        known.append(self.scene.vouched)
        known += [Op(layout.first_op - 1) for layout in self.scene.layouts[1:]]
        for layout in self.scene.layouts:
            for region in layout.regions:
                prefix = Region(region.kind, region.start, region.start + PREFIX_SIZE)
                if layout is not self.layout or not self.hit(prefix):
                    known.append(region.evidence)
        return max(known)

    def is_seen(self, start: int) -> bool:
        """Tell whether a reader finds anything of this life at or behind `start`."""
        assert self.after is not None
        if self.damage.kind == "unreadable":
            end = (self.damage.at + 1) * SECTOR_SIZE
            if end > start:
                return True
        headers = {
            self.before[one.start + PREFIX_SIZE :][:_HEADER_SIZE] for one in self.layout.entries
        }
        for place in range(start, len(self.after), _ALIGNMENT):
            piece = self.after[place : place + _HEADER_SIZE]
            if piece[_ID] == self.layout.file_id or piece in headers:
                return True
        return False
