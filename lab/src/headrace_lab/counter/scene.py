"""Groups at rest, one for each way to stop, with a map of every meaningful byte."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.journal.entry import Flaw
from headrace.journal.frame import FrameKind, Prefix, aligned
from headrace.journal.heads import NAME as HEADS
from headrace.journal.heads import Head, HeadsFile, read_heads
from headrace.journal.journal_file import BLOCK_COUNT, BLOCK_SIZE, FIRST_POSITION, decode_block
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.recovery.walk import FileReader
from headrace.journal.superblock import Superblock
from headrace.journal.superblock import decode as decode_superblock
from headrace.model.ids import Op
from headrace_lab.counter.script import CounterHistory, GroupActor, options
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.history import Broken


@dataclass(frozen=True, slots=True)
class Region:
    """A run of bytes that means one thing. What lies between regions means nothing."""

    kind: str  # block, entry, mark, end
    start: int
    end: int
    op: Op = Op(0)  # of an entry; the newest before a mark or an end
    evidence: Op = Op(0)  # this op was durable, says its prefix


@dataclass(frozen=True, slots=True)
class Layout:
    """One journal file, as it was written."""

    path: str
    file_id: bytes
    first_op: Op
    size: int
    regions: tuple[Region, ...]

    @property
    def entries(self) -> list[Region]:
        return [region for region in self.regions if region.kind == "entry"]


@dataclass(slots=True)
class GroupScene:
    """A disk at rest, its history, and its older and foreign selves."""

    name: str
    disk: MemoryDisk
    history: CounterHistory
    superblock: Superblock
    layouts: list[Layout]
    is_clean: bool
    versions: dict[str, list[bytes]] = field(
        default_factory=dict
    )  # all contents of a path, in order
    options: Callable[[], RecoveryOptions] = options
    foreign: dict[str, bytes] = field(default_factory=dict)  # the same paths in another cluster

    @property
    def head(self) -> Op:
        return Op(len(self.history.acknowledged))

    @property
    def vouched(self) -> Op:
        """The head that is written down outside the journal; 0 if there is none."""
        heads = read_heads(self.disk.root, SOLO.cluster).heads
        return heads[SOLO.group].op if heads else Op(0)

    @property
    def base(self) -> Op:
        """The op of the newest snapshot."""
        return self.superblock.checkpoint.op

    def old(self, path: str) -> bytes:
        """Return the content before the present one, or the present one if there was none."""
        versions = self.versions[path]
        return versions[-2] if len(versions) > 1 else versions[-1]

    def old_piece(self, path: str, start: int, end: int) -> bytes:
        """Return what a piece of a file last was before it became what it is."""
        now = self.versions[path][-1][start:end]
        before = (version[start:end] for version in reversed(self.versions[path]))
        return next((piece for piece in before if piece != now and len(piece) == len(now)), now)

    def layout(self, path: str) -> Layout:
        return next(layout for layout in self.layouts if layout.path == path)


def _young(actor: GroupActor) -> None:
    actor.open()
    actor.append(20, 300)
    actor.append(900)
    actor.append(40, 60)


def _grown(actor: GroupActor) -> None:
    """Three checkpoints, several files, one of them recycled."""
    _young(actor)
    actor.mark()
    actor.checkpoint()
    actor.append(700, 40)
    actor.append(900, 20)
    actor.checkpoint()
    actor.append(300, 300, 1200)
    actor.mark()
    actor.append(500, 800, 100)
    actor.checkpoint()
    actor.append(600, 30)


def _running(actor: GroupActor) -> None:
    _grown(actor)
    actor.append(1100)
    actor.append(70, 700, 40)


def _idle(actor: GroupActor) -> None:
    _running(actor)
    actor.mark()


def _stopped(actor: GroupActor) -> None:
    _running(actor)
    assert actor.solo is not None
    actor.solo.group.stop()


def _checkpointed(actor: GroupActor) -> None:
    _running(actor)
    actor.checkpoint()


STORIES = {
    "young": _young,
    "running": _running,
    "idle": _idle,
    "stopped": _stopped,
    "checkpointed": _checkpointed,
}


def _large(actor: GroupActor) -> None:
    """Files in which a range of 64 KiB is a part, with groups of one to five entries."""
    actor.open()
    for number in range(90):
        sizes = ((number * 37 + at * 811) % 3_900 + 20 for at in range(number % 5 + 1))
        actor.append(*sizes)
        if number % 7 == 3:
            actor.mark()
        if number in (30, 50, 70):
            actor.checkpoint()


def _large_marked(actor: GroupActor) -> None:
    _large(actor)
    actor.mark()


def _large_checkpointed(actor: GroupActor) -> None:
    _large(actor)
    actor.checkpoint()


def _large_stopped(actor: GroupActor) -> None:
    _large(actor)
    assert actor.solo is not None
    actor.solo.group.stop()


def _large_behind(actor: GroupActor) -> None:
    """A checkpoint since the head was written down: the snapshot in use stands above it."""
    _large(actor)
    _write_head(actor)
    actor.checkpoint()


# Groups that rested until their heads were written: what `range` damages.
RESTED = {
    "rested": _large,
    "rested marked": _large_marked,
    "rested checkpointed": _large_checkpointed,
    "rested before a checkpoint": _large_behind,
    "rested stopped": _large_stopped,
}


def large_options() -> RecoveryOptions:
    size = 160 * 1024
    return replace(options(), slots=512, file_size=size, first_size=size)


def build(name: str) -> GroupScene:
    """Play one story to its end, here and in another cluster."""
    is_rested = name in RESTED
    story, chosen = RESTED[name] if is_rested else STORIES[name], options
    if is_rested:
        chosen = large_options
    versions: dict[str, list[bytes]] = {}
    actor = GroupActor(MemoryDisk(), CounterHistory(), chosen())
    if not is_rested:  # nothing asks for what the larger files were before
        actor.disk.hook = lambda _: _remember(actor.disk, versions)
    story(actor)
    other = GroupActor(MemoryDisk(), CounterHistory(), chosen(), cluster=b"another cluster!")
    story(other)
    for one in (actor, other):
        if is_rested and HEADS not in one.disk.files():
            _write_head(one)
    _remember(actor.disk, versions)
    disk = actor.disk.kill()
    superblock = decode_superblock(disk.content("superblock.a"), "superblock.a")
    assert isinstance(superblock, Superblock)
    layouts = [_layout(disk, path) for path in disk.files() if _is_live(path)]
    scene = GroupScene(
        name=name,
        disk=disk,
        history=actor.history,
        superblock=superblock,
        layouts=layouts,
        is_clean=superblock.clean_head is not None,
        versions=versions,
        foreign=_contents(other.disk),
        options=chosen,
    )
    _check_story(scene)
    return scene


def _write_head(actor: GroupActor) -> None:
    """Write the head down as a node does, from what was applied."""
    assert actor.solo is not None
    group = actor.solo.group
    assert group.applied == group.journal.durable
    found = read_heads(actor.disk.root, actor.cluster)
    file = HeadsFile.of(actor.disk.root, actor.cluster, found)
    (newest,) = group.journal.headers(group.applied, group.applied)
    file.write({SOLO.group: Head(Op(newest.op - 1), newest.parent)}, 1)  # for the other slot
    file.write({SOLO.group: Head(newest.op, newest.checksum)}, 2)


def _check_story(scene: GroupScene) -> None:
    """A scene that is not what its story says would excuse every outcome."""
    if scene.disk.content("superblock.a") != scene.disk.content("superblock.b"):
        raise Broken("the copies of the superblock differ at rest")
    last = scene.layouts[-1].regions[-1].kind
    if scene.name.endswith(("idle", "stopped", "marked")) and last != "mark":
        raise Broken(f"the story {scene.name} leaves no mark")
    if scene.vouched and max(one.size for one in scene.layouts) < 2 * 64 * 1024:
        raise Broken("no file is larger than the largest range")
    if scene.is_clean != scene.name.endswith("stopped"):
        raise Broken(f"the story {scene.name} leaves a wrong clean head")
    if scene.name == "young":
        return
    snapshots = [path for path in scene.disk.files() if path.startswith("snapshots/")]
    if len(snapshots) != 2 or scene.layouts[0].first_op > scene.superblock.previous_op:
        raise Broken("a group at rest does not reach back to the previous checkpoint")


def _remember(disk: MemoryDisk, versions: dict[str, list[bytes]]) -> None:
    for path, content in _contents(disk).items():
        known = versions.setdefault(path, [])
        if not known or known[-1] != content:
            known.append(content)


def _contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files()}


def _is_live(path: str) -> bool:
    return path.startswith("journal/") and path.count("/") == 1


def _layout(disk: MemoryDisk, path: str) -> Layout:
    data = disk.content(path)
    header = decode_block(data[:BLOCK_SIZE], path)
    assert not isinstance(header, Flaw)
    regions = [
        Region("block", block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        for block in range(BLOCK_COUNT)
    ]
    directory, name = path.split("/")
    storage = disk.root.child(directory).open(name)
    reader = FileReader(storage, header.file_id, header.size)
    position = FIRST_POSITION
    while isinstance(prefix := reader.frame(position).prefix, Prefix):
        kind = {FrameKind.ENTRY: "entry", FrameKind.MARK: "mark", FrameKind.END: "end"}[
            prefix.kind
        ]
        evidence = max(prefix.durable, prefix.commit)
        regions.append(Region(kind, position, position + prefix.size, prefix.op, evidence))
        position += aligned(prefix.size)
    return Layout(
        path, header.file_id.to_bytes(8, "little"), header.first_op, len(data), tuple(regions)
    )


def opened(scene: GroupScene, disk: MemoryDisk) -> Solo:
    """Recover a disk of this scene, with file ids that no file of it has."""
    fresh = scene.options()
    for _ in range(100):
        fresh.new_id()
    head = read_heads(disk.root, SOLO.cluster).heads.get(SOLO.group)
    return Solo.open(disk.root, replace(fresh, head=head))
