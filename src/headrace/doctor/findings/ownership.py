"""Whose directory this is: its lock, identity and config, checked as at a start."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace.doctor.findings.finding import Finding, count
from headrace.doctor.findings.words import finding, foreign
from headrace.doctor.look.group_look import JOURNAL, cause_text
from headrace.doctor.look.readonly import Holder, ReadonlyDirectory, holder
from headrace.errors import BadConfig, ForeignFile, HeadraceError, MissingFile, StorageFailed
from headrace.journal.heads import NAME as HEADS_NAME
from headrace.journal.heads import FoundHeads, read_heads
from headrace.journal.journal_file import BLOCK_SIZE, FileHeader, decode_block, first_op_of
from headrace.journal.superblock import NAMES, Superblock, decode
from headrace.model.ids import GroupId, Identity, ReplicaId
from headrace.node.bootstrap import CONFIG_NAME
from headrace.node.config.config import load
from headrace.node.config.settings import Config
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.doubt.metadata_copy import FoundCopy, read_copy
from headrace.node.identity import (
    GROUPS,
    METADATA,
    ClusterIdentity,
    Seen,
    from_groups,
    group_name,
    is_group,
    look,
)
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.storage.lock import LOCK_NAME

_NO_SUCH_FILE: Final = "the file does not exist"


@dataclass(slots=True)
class Who:
    """What is known before any group is examined."""

    holder: Holder
    config: Config
    cluster: ClusterIdentity | None  # None: no log was ever created here
    heads: FoundHeads = field(default_factory=FoundHeads)
    copy: FoundCopy = field(default_factory=FoundCopy)  # of a log that no process holds
    findings: list[Finding] = field(default_factory=list)

    def require_shards(self, number: int, why: str) -> None:
        """Count at least `number` shards; `why` is the evidence."""
        if self.cluster is None or number <= self.cluster.shard_count:
            return
        counted = count(self.cluster.shard_count, "shard")
        self.cluster = replace(self.cluster, shard_count=number)
        self.findings.append(
            finding("identity-file: too few", CLUSTER_NAME, counted=counted, why=why)
        )


def who_is(root: ReadonlyDirectory) -> Who:
    """Find out whose directory `root` is, without changing anything."""
    found = Who(holder(root), Config(), None)
    found.findings += _no_files(root)
    found.config = _config(root, found.findings)
    try:
        seen = _seen(root, found.findings)
        found.cluster = seen.cluster
        if seen.flaw:
            found.findings.append(finding("identity-file", CLUSTER_NAME, what=seen.flaw))
    except HeadraceError as error:
        found.cluster = _from_journals(root, found.config)
        if found.cluster is None:
            raise
        what = cause_text(error)
        found.findings.append(finding("identity-file: lost", CLUSTER_NAME, what=what))
    _outvote(root, found)
    _count_groups(root, found)
    _heads(root, found)
    _copy(root, found)
    return found


def _seen(root: ReadonlyDirectory, findings: list[Finding]) -> Seen:
    """Find the cluster; from the superblocks alone where the file may not be read."""
    try:
        return look(root)
    except StorageFailed as error:
        seen = None
        with suppress(MissingFile):
            seen = from_groups(root)
        if seen is None:
            raise
        if CLUSTER_NAME not in root.rooms():
            what = cause_text(error)
            findings.append(finding("identity-file: unreadable", CLUSTER_NAME, what=what))
        return Seen(seen)


def _heads(root: ReadonlyDirectory, found: Who) -> None:
    """Read how far each group had come, before examining any group, as a start does."""
    if found.cluster is None:
        return
    try:
        found.heads = read_heads(root, found.cluster.identity.cluster)
    except HeadraceError as error:
        found.findings.append(_misplaced(HEADS_NAME, error))
    if found.holder.is_held:
        return  # it may be in the middle of a write
    flaws = list(found.heads.flaws)
    if found.heads.is_missing and CONFIG_NAME in root.names():
        flaws.append(_NO_SUCH_FILE)
    found.findings += [finding("heads", HEADS_NAME, what=flaw) for flaw in flaws]


def _copy(root: ReadonlyDirectory, found: Who) -> None:
    """Read the copy that heals group 0, unless a process is writing it."""
    if found.cluster is None or found.holder.is_held:
        return
    if COPY_NAME in root.rooms():
        found.findings.append(finding("copy: directory", COPY_NAME))
        return
    try:
        found.copy = read_copy(root, found.cluster.identity)
    except HeadraceError as error:
        found.findings.append(_misplaced(COPY_NAME, error))
    is_missing = found.copy.is_missing and CONFIG_NAME in root.names()
    flaw = _NO_SUCH_FILE if is_missing else found.copy.flaw
    if flaw:
        found.findings.append(finding("copy", COPY_NAME, what=flaw))


def _misplaced(name: str, error: HeadraceError) -> Finding:
    """Report a file beside the groups that belongs to another log or a newer release."""
    if isinstance(error, ForeignFile):
        return foreign("foreign-file: root", name, error)
    return finding("newer-format: root", name, what=cause_text(error))


def _count_groups(root: ReadonlyDirectory, found: Who) -> None:
    """Compare the number of shards with the directories that are shards of this log."""
    home = root.within(GROUPS)
    for name in home.rooms() if found.cluster is not None else ():
        assert found.cluster is not None
        number = int(name) if name.isdecimal() else 0
        if name != group_name(GroupId(number)):
            continue
        identity = found.cluster.of(GroupId(number))
        if identity in identities(home.within(name)):
            found.require_shards(number, f"{GROUPS}/{name} is a shard of this log")


def _no_files(root: ReadonlyDirectory) -> Iterator[Finding]:
    """Find directories where a start opens a file."""
    kinds = {
        LOCK_NAME: "lock",
        CONFIG_NAME: "config: directory",
        CLUSTER_NAME: "identity-file: directory",
    }
    for name in filter(kinds.__contains__, root.rooms()):
        yield finding(kinds[name], name)


def _config(root: ReadonlyDirectory, findings: list[Finding]) -> Config:
    """Read the config of the last start. Each start rewrites it."""
    if CONFIG_NAME not in root.names():
        return Config()
    try:
        return load(Path(root.path) / CONFIG_NAME, {}, {})
    except BadConfig as error:
        findings.append(finding("config", CONFIG_NAME, what=cause_text(error)))
        return Config()


def identities(room: ReadonlyDirectory) -> Iterator[Identity]:
    """Yield the identity in each superblock of a group."""
    for copy in NAMES:
        try:
            file = room.open(copy)
        except OSError:
            continue
        try:
            found = decode(file.read(0, file.size()), file.path)
        except (OSError, HeadraceError):
            continue
        finally:
            file.close()
        if isinstance(found, Superblock):
            yield found.identity


def _outvote(root: ReadonlyDirectory, found: Who) -> None:
    """If all superblocks agree on another cluster, cluster.toml is the foreign file."""
    if found.cluster is None:
        return
    groups = root.within(GROUPS)
    votes = Counter(
        replace(one, group=METADATA)
        for name in groups.rooms()
        for one in identities(groups.within(name))
    )
    said = found.cluster.identity
    if not votes or said in votes:
        return
    (best, _), *_ = votes.most_common(1)
    found.cluster = replace(found.cluster, identity=best)
    what = _difference(said, best)
    found.findings.append(finding("foreign-file: cluster", CLUSTER_NAME, what=what))


def _difference(said: Identity, best: Identity) -> str:
    """Name the first field in which cluster.toml and the superblocks differ."""
    if said.cluster != best.cluster:
        known = best.cluster.hex()
        return f"it names cluster {said.cluster.hex()}, but all superblocks name {known}"
    for name in ("replica", "replica_count", "namespace_bits"):
        found, known = getattr(said, name), getattr(best, name)
        if found != known:
            word = name.replace("_", " ")
            return f"expected {word} {known}, as in all superblocks, found {found}"
    raise AssertionError("they do not differ")


def _from_journals(root: ReadonlyDirectory, config: Config) -> ClusterIdentity | None:
    """Take the cluster from journal headers, where nothing else records it."""
    groups = root.within(GROUPS)
    clusters: Counter[bytes] = Counter()
    for name in groups.rooms():
        journal = groups.within(name).within(JOURNAL)
        for file in journal.names():
            if first_op_of(file) is not None:
                clusters.update(_cluster_of(journal, file))
    if not clusters:
        return None
    wanted = config.cluster
    identity = Identity(
        clusters.most_common(1)[0][0],
        METADATA,
        ReplicaId(0),
        1,
        (wanted.stream_bits, wanted.topic_bits, wanted.partition_bits),
    )
    # A directory that was set aside is not a group, whatever is in its journal.
    numbers = [
        int(name)
        for name in groups.rooms()
        if name.isdecimal() and is_group(groups.within(name))
    ]
    return ClusterIdentity(identity, max(1, *numbers))


def _cluster_of(journal: ReadonlyDirectory, name: str) -> list[bytes]:
    try:
        file = journal.open(name)
    except OSError:
        return []
    try:
        header = decode_block(file.read(0, BLOCK_SIZE), file.path)
    except (OSError, HeadraceError):
        return []
    finally:
        file.close()
    return [header.cluster] if isinstance(header, FileHeader) else []
