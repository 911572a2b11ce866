"""Which cluster a data directory belongs to: made once, before anything else is.

    cluster.toml := cluster id, replica, replica count, shard count, namespace bits

The same facts are in every superblock. If this file is lost they are taken from there.
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
_GAP_MAX = 16  # directories of groups in a row that may be gone
METADATA = GroupId(0)


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What all groups of a data directory share, and how many shards there are."""

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
    """Open a group's directory; make it, durably, if it is not there."""
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
    """Open a group's directory if it is there; make nothing."""
    try:
        return root.child(GROUPS).child(group_name(group))
    except FileNotFoundError:
        return None
    except OSError as error:
        path = f"{root.path}/{GROUPS}/{group_name(group)}"
        raise StorageFailed(path, "open", error) from error


def has_files(path: str, group: GroupId) -> bool:
    """Say whether a group has any file that only a group makes."""
    place = Path(path, GROUPS, group_name(group))
    kinds = ("superblock.*", "journal/*.wal", "snapshots/*.snap")
    return any(next(place.glob(kind), None) is not None for kind in kinds)


def refuse_if_gone(path: str, group: GroupId, *, is_told: bool) -> None:
    """Refuse to make a group anew in a log that was in use: its rows are somewhere else.

    All groups are made by the first start, before anything is written to any of them.
    `is_told`:
    group 0 says that the log was in use, or it is group 0 that is asked for.
    """
    if not has_files(path, group):
        with suppress(FileNotFoundError):  # what may not be read is not gone
            next(Path(path, GROUPS, group_name(group)).iterdir(), None)
        raise gone(path, group, is_told=is_told)


def gone(path: str, group: GroupId, *, is_told: bool, head: Op | None = None) -> MissingFile:
    """Return why a group without files is not made anew. `head`: how far it had come."""
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
    """What a directory says of itself. Nothing was changed to find it out."""

    cluster: ClusterIdentity | None  # None: nothing was ever made here
    flaw: str = ""  # what is wrong with the file, if the superblocks had to say it


def read_or_make(
    directory: Directory, fresh: ClusterIdentity, *, tell: Callable[[str], None]
) -> ClusterIdentity:
    """Return the identity of `directory`; an empty one gets `fresh`, durably.

    Where the file is gone or bad and groups are there, their superblocks say it, and it is
    written again. `tell` hears of that.
    """
    seen = look(directory)
    found = fresh if seen.cluster is None else seen.cluster
    if seen.flaw:
        tell(f"{seen.flaw}, and is made again from the superblocks")
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
    """Find out which cluster `directory` belongs to, and change nothing."""
    data = _content(directory)
    if data is None:
        found = from_groups(directory)
        return Seen(found, f"{NAME} was gone" if found is not None else "")
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
    return Seen(rebuilt, f"{NAME} could not be read")


def _with_all_shards(directory: Directory, parsed: ClusterIdentity) -> Seen:
    """Count every shard of this log that is there: one that is not counted is not served."""
    try:
        groups = directory.child(GROUPS)
    except OSError:
        return Seen(parsed)  # the first group that is opened says so
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
    """Take the identity from any superblock that can be read; None if there is no group."""
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
    """Say whether a group was ever made in a directory: its own directories are there."""
    for name in ("journal", "snapshots", "segments", "carry"):
        try:
            directory.child(name)
        except FileNotFoundError:
            continue
        except OSError:
            pass  # it may not be listed, and it is there
        return True
    return False


def _is_of(one: Identity, identity: Identity) -> bool:
    return replace(one, group=METADATA) == replace(identity, group=METADATA)


def _numbered(groups: Directory, first: int) -> Iterator[tuple[GroupId, Directory]]:
    """Give the directories of groups from `first` on; a few that are gone hide none."""
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
