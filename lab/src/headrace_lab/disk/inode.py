"""The files and directories of a memory disk: what is cached, what is durable, what is pending.

Content is shared between copies as immutable bytes and becomes a bytearray on its first change.
Only bytes are ever shared, so `cached` and `durable` are never the same bytearray.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.storage.seam import joined
from headrace_lab.disk.faults import Pending, PendingKind, Ranges, sectors

Content = bytes | bytearray


@dataclass(frozen=True, slots=True)
class Write:
    order: int  # its place among all changes of the disk
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    order: int
    size: int


@dataclass(frozen=True, slots=True)
class Naming:
    order: int
    name: str
    node: "File | Folder | None"  # None: the name is dropped


@dataclass(slots=True, eq=False)
class File:
    cached: Content = b""  # what reads see
    durable: Content = b""  # what a power cut leaves
    pending: list[Write | Resize] = field(default_factory=list)  # since the last sync
    stale: bool = False  # cached has bytes that are neither durable nor pending
    is_immutable: bool = False  # as by `chattr +i`: across power cuts, under all its names

    def change(self, change: Write | Resize) -> None:
        self.cached = _changed(self.cached, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            self.durable = _changed(self.durable, change)
        self.pending.clear()

    def lose(self) -> None:
        self.stale = self.stale or bool(self.pending)
        self.pending.clear()

    def drop_cache(self) -> None:
        # Only clean pages can be dropped: what is pending stays visible.
        if self.stale:
            self.cached = bytes(self.durable)
            for change in self.pending:
                self.cached = _changed(self.cached, change)
            self.stale = False

    def keep(self, change: Write | Resize, ranges: Ranges | None) -> None:
        """Make `change`, or those ranges of it, durable: for the survivor of a power cut."""
        if ranges is None or isinstance(change, Resize):
            assert ranges is None
            self.durable = _changed(self.durable, change)
            return
        for start, end in ranges:
            if not 0 <= start <= end <= len(change.data):
                raise ValueError(f"{start}..{end} is not within {len(change.data)} bytes")
            part = Write(change.order, change.position + start, change.data[start:end])
            self.durable = _changed(self.durable, part)

    def copy(self) -> "File":
        self.durable = bytes(self.durable)
        settled = not self.pending and not self.stale
        self.cached = self.durable if settled else bytes(self.cached)
        pending = list(self.pending)
        return File(self.cached, self.durable, pending, self.stale, self.is_immutable)


@dataclass(slots=True, eq=False)
class Folder:
    cached: dict[str, "File | Folder"] = field(default_factory=dict)
    durable: dict[str, "File | Folder"] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)
    stale: bool = False  # as in File: a sync was lost

    def change(self, change: Naming) -> None:
        _name(self.cached, change.name, change.node)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _name(self.durable, change.name, change.node)
        self.pending.clear()

    def lose(self) -> None:
        self.stale = self.stale or bool(self.pending)
        self.pending.clear()

    def forget(self, name: str) -> None:
        """Remove `name` as if it had never been: cached, durable and pending."""
        self.cached.pop(name, None)
        self.durable.pop(name, None)
        self.pending = [change for change in self.pending if change.name != name]

    def nodes(self, now: bool) -> Iterator[tuple[str, "File | Folder"]]:
        """Yield the names here: those seen now, or those that a power cut may bring back."""
        if now:
            yield from self.cached.items()
            return
        yield from self.durable.items()
        for change in self.pending:
            if change.node is not None:
                yield change.name, change.node


Node = File | Folder
Change = Write | Resize | Naming
Copies = dict[Node, Node]  # each node once, however many names lead to it


def copied(node: Node, copies: Copies) -> Node:
    """Return the copy of `node` with all that is cached, durable and pending."""
    if (known := copies.get(node)) is not None:
        return known
    if isinstance(node, File):
        copies[node] = copy = node.copy()
        return copy
    folder = Folder(stale=node.stale)
    copies[node] = folder
    folder.cached = {name: copied(child, copies) for name, child in node.cached.items()}
    if not node.pending and not node.stale:
        folder.durable = dict(folder.cached)
        return folder
    folder.durable = {name: copied(child, copies) for name, child in node.durable.items()}
    for change in node.pending:
        named = None if change.node is None else copied(change.node, copies)
        folder.pending.append(Naming(change.order, change.name, named))
    return folder


def survivor(node: Node, copies: Copies) -> Node:
    """Return what a power cut leaves of `node` if nothing pending landed, not yet settled."""
    if (known := copies.get(node)) is not None:
        return known
    if isinstance(node, File):
        node.durable = bytes(node.durable)  # frozen once, shared by every further cut
        copies[node] = copy = File(node.durable, node.durable)
        copy.is_immutable = node.is_immutable
        return copy
    copies[node] = folder = Folder()
    folder.durable = {name: survivor(child, copies) for name, child in node.durable.items()}
    return folder


def settle(node: Node) -> None:
    """Make what is durable also what reads see."""
    if isinstance(node, File):
        node.cached = node.durable = bytes(node.durable)
    else:
        node.cached = dict(node.durable)


def land(node: Node, change: Change, ranges: Ranges | None, copies: Copies) -> None:
    """Let a pending change of a node reach that node's survivor."""
    if isinstance(change, Naming):
        assert isinstance(node, Folder)
        assert ranges is None
        named = None if change.node is None else survivor(change.node, copies)
        _name(node.durable, change.name, named)
    else:
        assert isinstance(node, File)
        node.keep(change, ranges)


def described(index: int, path: str, change: Change) -> Pending:
    """Return the value that tells a test about a pending change of the node at `path`."""
    match change:
        case Write(_, position, data):
            sector_count = len(sectors(position, len(data)))
            return Pending(index, "write", path, position, len(data), sector_count)
        case Resize(_, size):
            return Pending(index, "truncate", path, size=size)
        case Naming(_, name, node):
            kind: PendingKind = "drop-name" if node is None else "add-name"
            return Pending(index, kind, joined(path, name))


def files(folder: Folder, path: str) -> Iterator[str]:
    """Yield the paths of the files that reads see in and below `folder`."""
    for name, node in folder.cached.items():
        if isinstance(node, Folder):
            yield from files(node, joined(path, name))
        else:
            yield joined(path, name)


def name_count(folder: Folder, file: File) -> int:
    """Count the names that reads see of a file in and below `folder`."""
    return sum(
        name_count(node, file) if isinstance(node, Folder) else node is file
        for node in folder.cached.values()
    )


def paths(root: Folder) -> dict[Node, str]:
    """Return every node that has, had or may get a name, by its path now if it has one."""
    found: dict[Node, str] = {root: "."}
    for now in (True, False):
        folders = [node for node in found if isinstance(node, Folder)]
        for folder in folders:  # grows while it is walked
            for name, node in folder.nodes(now):
                if node not in found:
                    found[node] = joined(found[folder], name)
                    if isinstance(node, Folder):
                        folders.append(node)
    return found


def overwritten(content: Content, position: int, data: bytes) -> bytearray:
    """Return `content` with `data` at `position`, in place where it is a bytearray."""
    target = content if isinstance(content, bytearray) else bytearray(content)
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data
    return target


def _changed(content: Content, change: Write | Resize) -> Content:
    if isinstance(change, Write):
        return overwritten(content, change.position, change.data)
    if change.size <= len(content):
        return content[: change.size]
    return overwritten(content, change.size, b"")


def _name(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
