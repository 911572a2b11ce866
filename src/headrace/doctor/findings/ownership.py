"""Whose directory this is: its lock, its identity and its config, as a start would ask."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.doctor.findings.finding import PUT_BACK, Finding, Severity, count
from headrace.doctor.findings.layout import no_file
from headrace.doctor.look.group_look import JOURNAL, cause_text
from headrace.doctor.look.readonly import Holder, ReadonlyDirectory, holder
from headrace.errors import BadConfig, ForeignFile, HeadraceError
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
from headrace.node.identity import GROUPS, METADATA, ClusterIdentity, group_name, look
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.storage.lock import LOCK_NAME


@dataclass(slots=True)
class Who:
    """What is known before any group is looked at."""

    holder: Holder
    config: Config
    cluster: ClusterIdentity | None  # None: no log was ever made here
    heads: FoundHeads = field(default_factory=FoundHeads)
    copy: FoundCopy = field(default_factory=FoundCopy)  # of a log that nobody holds
    findings: list[Finding] = field(default_factory=list)

    def require_shards(self, number: int, why: str) -> None:
        """Count at least `number` shards: `why` says that there are so many."""
        if self.cluster is None or number <= self.cluster.shard_count:
            return
        said = f"it counts {count(self.cluster.shard_count, 'shard')}, and {why}"
        self.cluster = replace(self.cluster, shard_count=number)
        self.findings.append(
            Finding(
                Severity.DAMAGE,
                "identity-file",
                CLUSTER_NAME,
                said,
                "a node serves no topic of a shard that it does not count",
                next=_OWN_FILE,
            )
        )


_OWN_FILE = "Put this log's own file back: a start makes it again if there is none"


def who_is(root: ReadonlyDirectory) -> Who:
    """Find out whose directory `root` is, and change nothing."""
    found = Who(holder(root), Config(), None)
    found.findings += _no_files(root)
    found.config = _config(root, found.findings)
    try:
        seen = look(root)
        found.cluster = seen.cluster
        if seen.flaw:
            found.findings.append(_identity(Severity.NOTE, seen.flaw))
    except HeadraceError as error:
        found.cluster = _from_journals(root, found.config)
        if found.cluster is None:
            raise
        found.findings.append(_identity(Severity.DAMAGE, cause_text(error)))
    _outvote(root, found)
    _count_groups(root, found)
    _heads(root, found)
    _copy(root, found)
    return found


def _heads(root: ReadonlyDirectory, found: Who) -> None:
    """Read how far each group had come, before any group is looked at, as a start does."""
    if found.cluster is None:
        return
    try:
        found.heads = read_heads(root, found.cluster.identity.cluster)
    except HeadraceError as error:
        found.findings.append(_misplaced(HEADS_NAME, error))
    if found.holder.is_held:
        return  # it may be in the middle of a write
    for flaw in found.heads.flaws:
        found.findings.append(heads_note(flaw))
    if found.heads.is_missing and CONFIG_NAME in root.names():
        found.findings.append(heads_note("there is no such file"))


def _copy(root: ReadonlyDirectory, found: Who) -> None:
    """Read what group 0 is healed from, unless a process is writing it."""
    if found.cluster is None or found.holder.is_held:
        return
    if COPY_NAME in root.rooms():
        found.findings.append(
            Finding(
                Severity.DAMAGE,
                "copy",
                COPY_NAME,
                "a directory, where a file should be",
                "no change of topics is taken while it is here",
                next="Move it elsewhere: the next start makes the file",
            )
        )
        return
    try:
        found.copy = read_copy(root, found.cluster.identity)
    except HeadraceError as error:
        found.findings.append(_misplaced(COPY_NAME, error))
    if found.copy.flaw:
        found.findings.append(copy_note(found.copy.flaw))
    if found.copy.is_missing and CONFIG_NAME in root.names():
        found.findings.append(copy_note("there is no such file"))


def _misplaced(name: str, error: HeadraceError) -> Finding:
    """Tell of a file beside the groups that is of another log, or of a newer release."""
    if isinstance(error, ForeignFile):
        return Finding(
            Severity.DAMAGE,
            "foreign-file",
            name,
            f"its {error.field} should be {error.expected}, is {error.found}",
            "it belongs to another log, and a start refuses while it is here",
            next="Move it to where it belongs, and put this log's own file back: without "
            "one a start goes on, with weaker evidence",
        )
    return Finding(
        Severity.DAMAGE,
        "newer-format",
        name,
        cause_text(error),
        "a newer release wrote it, and a start refuses",
        next="Start that release",
    )


def copy_note(what: str) -> Finding:
    """Say that group 0 is kept in one place only, or in less than two."""
    return Finding(
        Severity.NOTE,
        "copy",
        COPY_NAME,
        what,
        "some of metadata, or all of it, is in the log of group 0 alone",
        next="The next start begins it anew",
    )


def heads_note(what: str) -> Finding:
    """Say that less than should be vouches for the ends of the journals."""
    return Finding(
        Severity.NOTE,
        "heads",
        HEADS_NAME,
        what,
        "only the marks in the journals themselves tell damage at their ends from an "
        "unfinished append",
        next="A running node writes it again",
    )


def _count_groups(root: ReadonlyDirectory, found: Who) -> None:
    """Hold the number of shards against the directories that are shards of this log."""
    home = root.within(GROUPS)
    for name in home.rooms() if found.cluster is not None else ():
        assert found.cluster is not None
        number = int(name) if name.isdecimal() else 0
        if name != group_name(GroupId(number)):
            continue
        identity = found.cluster.of(GroupId(number))
        if identity in identities(home.within(name)):
            found.require_shards(number, f"{GROUPS}/{name} is one of this log")


def _identity(severity: Severity, flaw: str) -> Finding:
    is_note = severity is Severity.NOTE
    return Finding(
        severity,
        "identity-file",
        CLUSTER_NAME,
        flaw,
        "the superblocks say which cluster this is"
        if is_note
        else "no superblock says which cluster this is either: the journal's headers do, and "
        "the widths of ids are taken from node.toml; a start refuses",
        next="The next start writes it again" if is_note else PUT_BACK,
    )


def _no_files(root: ReadonlyDirectory) -> Iterator[Finding]:
    """Find directories where a start opens a file."""
    kinds = {LOCK_NAME: "lock", CONFIG_NAME: "config"}
    for name in filter(kinds.__contains__, root.rooms()):
        yield no_file(kinds[name], name)


def _config(root: ReadonlyDirectory, findings: list[Finding]) -> Config:
    """Read the config that the last start ran with. It is written anew at each start."""
    if CONFIG_NAME not in root.names():
        return Config()
    try:
        return load(Path(root.path) / CONFIG_NAME, {}, {})
    except BadConfig as error:
        findings.append(
            Finding(
                Severity.NOTE,
                "config",
                CONFIG_NAME,
                f"cannot be read: {cause_text(error)}",
                "it only tells people with which settings the last start ran",
                next="The next start writes it again",
            )
        )
        return Config()


def identities(room: ReadonlyDirectory) -> Iterator[Identity]:
    """Give what each superblock of a group says that it is."""
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
    """If all superblocks agree on another cluster, it is the one file that is foreign."""
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
    found.findings.append(
        Finding(
            Severity.DAMAGE,
            "foreign-file",
            CLUSTER_NAME,
            _difference(said, best),
            "it belongs to another log, and a start refuses every group while it is here",
            next=_OWN_FILE,
        )
    )


def _difference(said: Identity, best: Identity) -> str:
    """Name the first field in which cluster.toml and the superblocks differ."""
    if said.cluster != best.cluster:
        known = best.cluster.hex()
        return f"it names cluster {said.cluster.hex()}, and all superblocks {known}"
    for name in ("replica", "replica_count", "namespace_bits"):
        found, known = getattr(said, name), getattr(best, name)
        if found != known:
            word = name.replace("_", " ")
            return f"its {word} should be {known}, as in all superblocks, and is {found}"
    raise AssertionError("they do not differ")


def _from_journals(root: ReadonlyDirectory, config: Config) -> ClusterIdentity | None:
    """Take the cluster from journal headers, where nothing else says it any more."""
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
    # One that was set aside is not a group, whatever its journal says.
    numbers = [int(name) for name in groups.rooms() if name.isdecimal()]
    return ClusterIdentity(identity, max(1, len(numbers) - 1))


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
