"""The identity of a data directory's cluster: created once, before anything else.

    cluster.toml := cluster id, replica, replica count, shard count, namespace bits

Every superblock holds the same facts. If this file is lost, it is rebuilt from them.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import CorruptFile, ForeignFile, MissingFile, StorageFailed
from headrace.journal.entry import Flaw
from headrace.journal.superblock import NAMES, Superblock, decode
from headrace.model.ids import CLUSTER_ID_SIZE, GroupId, Identity, Op, ReplicaId
from headrace.storage.atomic import atomic_replace
from headrace.storage.seam import Directory, joined

NAME = "cluster.toml"
GROUPS = "groups"
_SIZE_MAX = 64 * 1024
_GAP_MAX = 16  # consecutive group directories that may be missing
METADATA = GroupId(0)


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The identity that all groups of a data directory share, and the shard count."""

    identity: Identity  # of group 0
    shard_count: int

    def of(self, group: GroupId) -> Identity:
        return replace(self.identity, group=group)

    @property
    def shards(self) -> list[GroupId]:
        return [GroupId(number) for number in range(1, self.shard_count + 1)]


def group_name(group: GroupId) -> str:
    """Return the name of a group's directory."""
    return f"{group:05}"


def group_directory(root: Directory, group: GroupId) -> Directory:
    """Open a group's directory; create it, durably, if it does not exist."""
    directory = root
    for name in (GROUPS, group_name(group)):
        try:
            made = directory.child(name, make=True)
            directory.sync()
        except OSError as error:
            raise StorageFailed(f"{directory.path}/{name}", "make", error) from error
        directory = made
    return directory


def find_group(root: Directory, group: GroupId) -> Directory | None:
    """Open a group's directory, or return None if it does not exist. Creates nothing."""
    try:
        return root.child(GROUPS).child(group_name(group))
    except FileNotFoundError:
        return None
    except OSError as error:
        path = f"{root.path}/{GROUPS}/{group_name(group)}"
        raise StorageFailed(path, "open", error) from error


def has_files(path: str, group: GroupId) -> bool:
    """Return whether any file of a group exists."""
    place = Path(path, GROUPS, group_name(group))
    kinds = ("superblock.*", "journal/*.wal", "snapshots/*.snap")
    return any(next(place.glob(kind), None) is not None for kind in kinds)


def refuse_if_gone(path: str, group: GroupId, *, is_told: bool) -> None:
    """Refuse to recreate a group in a log that was in use: its rows are somewhere else.

    The first start creates all groups before it writes to any of them. `is_told`: group 0
    shows that the log was in use, or the group is group 0 itself.
    """
    if not has_files(path, group):
        with suppress(FileNotFoundError):  # an unreadable directory is not a missing one
            next(Path(path, GROUPS, group_name(group)).iterdir(), None)
        raise gone(path, group, is_told=is_told)


def gone(path: str, group: GroupId, *, is_told: bool, head: Op | None = None) -> MissingFile:
    """Return why a group without files is not recreated. `head`: its last known op."""
    said = (
        f"the files of group {group} are missing, but the log was in use"
        if is_told
        else f"group {group} has no files, and group 0 does not show whether it had any"
    )
    return MissingFile(
        said if head is None else f"{said}: its head was op {head}",
        path=joined(joined(path, GROUPS), group_name(group)),
        hint="Restore it from a backup; `headrace doctor` shows what is left",
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """The identity found in a directory, without changing anything."""

    cluster: ClusterIdentity | None  # None: nothing was ever created here
    flaw: str = ""  # of the file, if the superblocks had to replace it


def read_or_make(
    directory: Directory, fresh: ClusterIdentity, *, tell: Callable[[str], None]
) -> ClusterIdentity:
    """Return the identity of `directory`; an empty one gets `fresh`, durably.

    If the file is missing or damaged but groups exist, it is rewritten from their superblocks,
    and `tell` is called with the reason.
    """
    seen = look(directory)
    found = fresh if seen.cluster is None else seen.cluster
    if seen.flaw:
        tell(f"{seen.flaw}; rewritten from the superblocks")
    if seen.cluster is None or seen.flaw:
        _write(directory, found)
    expected = fresh.identity
    if found.identity.replica_count != expected.replica_count:
        raise ForeignFile(
            f"{directory.path}/{NAME}",
            "replica count",
            expected.replica_count,
            found.identity.replica_count,
        )
    return found


def look(directory: Directory) -> Seen:
    """Find out which cluster `directory` belongs to. Changes nothing."""
    data = _content(directory)
    if data is None:
        found = from_groups(directory)
        return Seen(found, f"{NAME} was missing" if found is not None else "")
    parsed = _parse(data)
    if parsed is not None:
        return _with_all_shards(directory, parsed)
    rebuilt = from_groups(directory)
    if rebuilt is None:
        raise CorruptFile(
            "it does not identify the cluster",
            path=f"{directory.path}/{NAME}",
            hint="Restore it from a backup",
        )
    return Seen(rebuilt, f"{NAME} was unreadable")


def _with_all_shards(directory: Directory, parsed: ClusterIdentity) -> Seen:
    """Count all shards of this log that exist: an uncounted one would not be served."""
    try:
        groups = directory.child(GROUPS)
    except OSError:
        return Seen(parsed)  # opening the first group reports it
    number = parsed.shard_count
    for found, group in _numbered(groups, number + 1):
        if _from_superblocks(group) == parsed.of(found):  # and not one of another log
            number = found
    if number == parsed.shard_count:
        return Seen(parsed)
    said = f"{NAME} counts {parsed.shard_count} shards, but group {number} is also one"
    return Seen(replace(parsed, shard_count=number), said)


def _content(directory: Directory) -> bytes | None:
    path = f"{directory.path}/{NAME}"
    try:
        file = directory.open(NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(path, "open", error) from error
    try:
        return file.read(0, _SIZE_MAX)
    except OSError as error:
        raise StorageFailed(path, "read", error) from error
    finally:
        file.close()


def _parse(data: bytes) -> ClusterIdentity | None:
    try:
        table = tomllib.loads(data.decode())
        cluster = bytes.fromhex(table["cluster"])
        bits = tuple(int(each) for each in table["namespace_bits"])
        replica, count = int(table["replica"]), int(table["replicas"])
        shard_count = int(table["shards"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if len(cluster) != CLUSTER_ID_SIZE or len(bits) != 3 or min(bits) < 1 or sum(bits) > 64:
        return None
    if not 0 <= replica < count or not 1 <= shard_count < 100_000:
        return None
    identity = Identity(
        cluster, METADATA, ReplicaId(replica), count, (bits[0], bits[1], bits[2])
    )
    return ClusterIdentity(identity, shard_count)


def _write(directory: Directory, found: ClusterIdentity) -> None:
    identity = found.identity
    text = (
        "# Which cluster this directory belongs to. Made once; never edit it.\n"
        f'cluster = "{identity.cluster.hex()}"\n'
        f"replica = {identity.replica}\n"
        f"replicas = {identity.replica_count}\n"
        f"shards = {found.shard_count}\n"
        f"namespace_bits = {list(identity.namespace_bits)}\n"
    )
    atomic_replace(directory, NAME, [text.encode()])


def from_groups(directory: Directory) -> ClusterIdentity | None:
    """Take the identity from any readable superblock; None if there are no groups."""
    try:
        groups = directory.child(GROUPS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(f"{directory.path}/{GROUPS}", "open", error) from error
    there = list(_numbered(groups, METADATA))
    if not there:
        return None
    named = {number: (_from_superblocks(group), group) for number, group in there}
    identity = next((one for one, _ in named.values() if one is not None), None)
    if identity is None:
        raise MissingFile(
            f"neither {NAME} nor a superblock identifies the cluster",
            path=directory.path,
            hint="Restore one of them from a backup",
        )
    own = [
        number
        for number, (one, group) in named.items()
        if (is_group(group) if one is None else _is_of(one, identity))
    ]
    return ClusterIdentity(replace(identity, group=METADATA), max(1, *own))


def is_group(directory: Directory) -> bool:
    """Return whether a directory ever held a group: one of its subdirectories exists."""
    for name in ("journal", "snapshots", "segments", "carry"):
        try:
            directory.child(name)
        except FileNotFoundError:
            continue
        except OSError:
            pass  # it cannot be listed, but it exists
        return True
    return False


def _is_of(one: Identity, identity: Identity) -> bool:
    return replace(one, group=METADATA) == replace(identity, group=METADATA)


def _numbered(groups: Directory, first: int) -> Iterator[tuple[GroupId, Directory]]:
    """Yield the group directories from `first` on; a few missing ones do not end the list."""
    number, missing = first, 0
    while missing <= _GAP_MAX:
        try:
            yield GroupId(number), groups.child(group_name(GroupId(number)))
            missing = 0
        except OSError:
            missing += 1
        number += 1


def _from_superblocks(group: Directory) -> Identity | None:
    for name in NAMES:
        try:
            file = group.open(name)
        except OSError:
            continue
        try:
            found: Superblock | Flaw = decode(file.read(0, file.size()), name)
        except OSError:
            continue
        finally:
            file.close()
        if isinstance(found, Superblock):
            return found.identity
    return None
