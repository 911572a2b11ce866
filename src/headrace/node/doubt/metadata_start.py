"""Group 0 at a start: surveyed and judged, then recovered, healed from its copy, or held.

look         resume an interrupted heal; read the copy; survey group 0
recover      recover a whole group 0, before the shards
settle       judge a group 0 that has less than its copy, once the shards' revisions are known
open_anew    replace a held group 0 with a new one, after an operator's decision
begin_copy   rewrite the copy once group 0 is recovered: until then the copy may know more
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import (
    ApplyFailed,
    Corrupt,
    CorruptEntry,
    CorruptFile,
    DiskFull,
    HeadraceError,
    StorageFailed,
    UnsupportedFormat,
)
from headrace.journal.entry import Entry, root
from headrace.journal.group import Group
from headrace.journal.heads import Head
from headrace.journal.journal import Journal
from headrace.journal.recovery.judge import judge as judge_journal
from headrace.journal.recovery.readable_prefix import read_prefix
from headrace.journal.recovery.recover import RecoveryOptions, recover
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.journal.recovery.scan import contiguous_from
from headrace.journal.recovery.survey import Survey
from headrace.journal.superblock import Superblock
from headrace.metadata.machine import MetadataMachine
from headrace.model.ids import GroupId, Identity, Op
from headrace.node.doubt import heal
from headrace.node.doubt.copy_writer import CopyFile
from headrace.node.doubt.metadata_copy import NAME, Base, Copy, FoundCopy, read_copy
from headrace.node.doubt.verdict import (
    CopyState,
    Healed,
    Held,
    Recovered,
    Remains,
    Shards,
    Verdict,
    judge,
)
from headrace.node.identity import GROUPS, METADATA, find_group, gone, group_directory
from headrace.node.requests.catalog import MetadataGroup
from headrace.partition.shard_store import Store
from headrace.storage.seam import Directory, is_full, joined


def is_holdable(error: HeadraceError) -> bool:
    """Return whether group 0 failed because of damaged or missing bytes."""
    is_other = isinstance(error, UnsupportedFormat | ApplyFailed)
    return isinstance(error, Corrupt) and not is_other


def hold(
    root: Directory, identity: Identity, machine: MetadataMachine, error: HeadraceError
) -> Op | None:
    """Read the whole part of group 0 after it failed with `error`; return the op reached.

    None: damage is not the cause, or peers have the data. Nothing is written.
    """
    if not is_holdable(error) or not identity.is_solo:
        return None
    directory = find_group(root, METADATA)
    if directory is None:
        machine.restore(None)
        return Op(0)
    return read_prefix(directory, identity, MetadataGroup(machine))


_PUT_BACK = (
    "Nothing was changed. Keep the directory as it is. Restore group 0 and the copy from the "
    "same point in time; to continue with group 0 instead, move the copy away"
)


@dataclass(slots=True)
class MetadataStart:
    """What is known of group 0, and the verdict on it."""

    directory: Directory  # the data directory
    identity: Identity
    machine: MetadataMachine
    options: RecoveryOptions
    found: FoundCopy
    remains: Remains
    refusal: HeadraceError | None  # why a recovery would fail
    resumed: heal.Swapped | None  # an interrupted heal, completed now
    copy_reach: Op = Op(0)  # the newest op of the copy, even if its state is invalid
    state: CopyState | None = None  # of the copy, if its metadata state is valid
    verdict: Verdict = field(default_factory=lambda: Held(()))
    swapped: heal.Swapped | None = None
    opened_at: Op | None = None  # it was held, and has been replaced
    leftover: str = ""  # why the remains of an unused new one could not be removed
    copy: CopyFile | None = None  # rewritten, once group 0 is recovered

    @classmethod
    def look(
        cls,
        directory: Directory,
        identity: Identity,
        machine: MetadataMachine,
        options: RecoveryOptions,
        *,
        is_in_use: bool,
    ) -> "MetadataStart":
        """Survey everything. `is_in_use`: all groups are known to have been created before."""
        found = read_copy(directory, identity)
        groups = _groups(directory)
        resumed = None if groups is None else heal.resume(groups, identity, options)
        is_in_use = is_in_use or not found.is_missing or resumed is not None
        remains, refusal = _surveyed(directory, groups, identity, options, is_in_use)
        start = cls(directory, identity, machine, options, found, remains, refusal, resumed)
        start._replay_copy()
        # In a cluster, peers have what is missing here: it is fetched, never healed.
        start.verdict = (
            judge(options.head, start.state, remains, {}) if identity.is_solo else Recovered()
        )
        return start

    @property
    def is_decided(self) -> bool:
        """Return whether the verdict does not depend on the shards."""
        return isinstance(self.verdict, Recovered)

    @property
    def reached(self) -> Op:
        """The highest op that group 0, its head or its copy are known to have reached."""
        head = Op(0) if self.options.head is None else self.options.head.op
        return max(self.remains.reach, self.copy_reach, head)

    @property
    def is_replaced(self) -> bool:
        """Return whether a new group 0 has replaced the held one."""
        return self.opened_at is not None

    def recover(self) -> tuple[Group, RecoveryReport]:
        """Recover a whole group 0."""
        recovered = recover(
            group_directory(self.directory, METADATA),
            self.identity,
            MetadataGroup(self.machine),
            self.options,
        )
        # An unused whole `.new` would be used if this group were lost later.
        try:
            heal.discard(self.directory.child(GROUPS))
        except OSError as error:
            self.leftover = f"{heal.NEW} cannot be emptied: {error.strerror or error}"
        return recovered

    def settle(self, shards: Shards) -> tuple[Group, RecoveryReport]:
        """Heal a group 0 that has less than its copy, or raise why that is not allowed."""
        self.verdict = judge(self.options.head, self.state, self.remains, shards)
        if isinstance(self.verdict, Held):
            raise self._refusal(self.verdict)
        if isinstance(self.verdict, Healed):
            self._heal()
        return self.recover()

    def lines(self) -> list[str]:
        """Return the actions besides the recovery, in words."""
        said: list[str] = []
        if self.resumed is not None:
            said.append(f"resumed an interrupted heal or adoption{_aside(self.resumed)}")
        if isinstance(self.verdict, Healed) and self.swapped is not None:
            said.append(f"{self.verdict.words}{_aside(self.swapped)}")
        if self.opened_at is not None and self.swapped is not None:
            said.append(
                f"recreated from its readable part, as an operator decided, at op "
                f"{self.opened_at}{_aside(self.swapped)}"
            )
        if self.leftover:
            said.append(self.leftover)
        if self.found.flaw:
            said.append(f"{NAME}: {self.found.flaw}")
        return said

    def describe(self) -> dict[str, object]:
        """Return what the status shows: the use of the copy, and its flaw."""
        said = {"failure": None} if self.copy is None else self.copy.describe()
        reasons = self.verdict.reasons if isinstance(self.verdict, Held) else ()
        healed = self.verdict.words if isinstance(self.verdict, Healed) else None
        if healed is not None and self.swapped is not None:
            healed += _aside(self.swapped)
        flaw = self.found.flaw or None
        return {"healed": healed, "held": list(reasons), "flaw": flaw, **said}

    def _replay_copy(self) -> None:
        """Replay the copy. One that yields no valid metadata state counts as damaged."""
        copy = self.found.copy
        if copy is None:
            return
        self.copy_reach = copy.newest.op
        try:
            machine = replayed(copy, self.machine)
        except HeadraceError as error:
            self.found = FoundCopy(flaw=f"it is not a valid metadata state: {error}")
        else:
            self.state = CopyState(copy, machine.state)

    def _heal(self) -> None:
        assert self.state is not None
        copy = self.state.copy
        image = replayed(copy, self.machine).snapshot()
        entry = copy.entries[-1] if copy.entries else copy.base.entry
        self._replace(Base(copy.newest.op, copy.newest.tip, image, entry))

    def open_anew(self, base: Base) -> tuple[Group, RecoveryReport]:
        """Replace the held group 0 with a new one, and recover it.

        DiskFull before `is_replaced`: nothing is changed. Any other error: only the next start
        can tell.
        """
        self._replace(base)
        self.opened_at, self.verdict = base.op, Recovered()
        self.machine = MetadataMachine(self.machine.layout)  # the loop reads the other one
        recovered = self.recover()
        self.begin_copy(recovered[0])
        return recovered

    def _replace(self, base: Base) -> None:
        """Create a group 0 that begins with `base`; set the old one aside."""
        try:
            groups = self.directory.child(GROUPS, make=True)
            self.directory.sync()
        except OSError as error:
            raise StorageFailed(joined(self.directory.path, GROUPS), "make", error) from error
        self.swapped = heal.heal(groups, self.identity, self.options, base)

    def begin_copy(self, group: Group, *, is_in_doubt: bool = False) -> None:
        """Rewrite the copy from the recovered group, and let the group write it from now on.

        In doubt, it stays unchanged until metadata changes: it may know more than was readable
        of group 0, and an operator may need it. Nothing else runs meanwhile.
        """
        journal = group.journal
        known: dict[Op, bytes] = {}
        is_kin = isinstance(self.verdict, Healed) or self.verdict == Recovered(is_kin=True)
        if self.found.copy is not None and is_kin:
            known = self.found.copy.history
        headers = journal.headers(Op(1), journal.durable)
        known |= {header.op: header.checksum for header in headers}
        file = CopyFile(self.directory, self.identity.cluster, known, waits=is_in_doubt)
        image = group.machine.snapshot().replicated
        file.start(Base(journal.durable, journal.tip, image, _newest(journal)))
        group.copy = self.copy = file

    def _refusal(self, held: Held) -> HeadraceError:
        """Return the error that a recovery would raise, or why it must not be attempted."""
        if self.refusal is not None:
            return self.refusal
        path = joined(self.directory.path, NAME)
        return CorruptFile("; ".join(held.reasons), path=path, hint=_PUT_BACK)


def followed(numbers: Iterable[GroupId], stores: Mapping[GroupId, Store]) -> Shards:
    """Return the metadata revision that each shard follows; None if it did not start."""
    return {
        number: store.machine.state.revision if (store := stores.get(number)) else None
        for number in numbers
    }


def replayed(copy: Copy, like: MetadataMachine) -> MetadataMachine:
    """Replay a copy. Raises Corrupt if its image is invalid."""
    machine = MetadataMachine(like.layout)
    machine.restore(copy.base.image)
    group = MetadataGroup(machine)
    for entry in copy.entries:
        try:
            group.apply(entry)
        except Exception as error:
            raise ApplyFailed(
                f"op {entry.op}: {error!r}",
                path=NAME,
                expected="a result",
                found=type(error).__name__,
                hint="Report this error",
            ) from error
    return machine


def _groups(directory: Directory) -> Directory | None:
    try:
        return directory.child(GROUPS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFailed(joined(directory.path, GROUPS), "open", error) from error


def _surveyed(
    directory: Directory,
    groups: Directory | None,
    identity: Identity,
    options: RecoveryOptions,
    is_in_use: bool,
) -> tuple[Remains, HeadraceError | None]:
    """Survey group 0; also return why a recovery would fail, if it would."""
    try:
        room = None if groups is None else groups.child(heal.GROUP)
    except FileNotFoundError:
        room = None
    except OSError as error:
        path = joined(joined(directory.path, GROUPS), heal.GROUP)
        raise StorageFailed(path, "open", error, hint=_hint_of(error)) from error
    if room is None:
        return _nothing(directory, options, is_in_use)
    try:
        with heal.closed(heal.look(room, identity, options)) as found:
            if found.is_empty:
                return _nothing(directory, options, is_in_use)
            return remains_of(found, identity, options.slots, room.path)
    except OSError as error:
        if is_full(error):
            raise DiskFull(room.path, "recovery") from error
        raise StorageFailed(str(error.filename or room.path), "recovery", error) from error


def _hint_of(error: OSError) -> str:
    is_stray = isinstance(error, NotADirectoryError)
    return "Put the group's directory itself there: links are not followed" if is_stray else ""


def _nothing(
    directory: Directory, options: RecoveryOptions, is_in_use: bool
) -> tuple[Remains, HeadraceError | None]:
    """Judge a group 0 without files: a new log, or one that lost it."""
    if not is_in_use and options.head is None:
        return Remains((), Op(0), None, is_whole=True), None
    head = None if options.head is None else options.head.op
    error = gone(directory.path, METADATA, is_told=True, head=head)
    return Remains((), Op(0), None, is_whole=False), error


def remains_of(
    found: Survey, identity: Identity, slots: int, path: str
) -> tuple[Remains, HeadraceError | None]:
    """Summarize a survey of group 0; also return why a recovery would fail, if it would."""
    block = found.superblock or Superblock(identity)
    pair = block.checkpoint
    heads = [Head(one.op, one.checksum) for one in found.scan.entries]
    heads += [Head(one.op, one.tip) for one in found.snapshots]
    heads += [Head(pair.op, pair.tip)] if pair.op else []
    known = [block.commit, pair.op, block.clean_head or Op(0), found.scan.proven]
    reach = max([*known, *(one.op for one in heads)])
    remains = Remains(tuple(heads), reach, _left(found, identity), is_whole=True)
    try:
        plan = judge_journal(found, identity, slots, path)
    except Corrupt as error:
        return replace(remains, is_whole=False), error
    return replace(remains, left=Head(plan.head, plan.tip)), None


def _left(found: Survey, identity: Identity) -> Head | None:
    """Return the highest op that a replay of the found files could reach, from any state."""
    bases = [Head(one.op, one.tip) for one in found.snapshots]
    files = found.scan.files
    if files and files[0].candidate.header.first_op == 1:
        bases.append(Head(Op(0), root(identity)))
    ends: list[Head] = []
    for base in bases:
        chain = list(contiguous_from(found.scan.entries, base.op, base.tip))
        ends.append(Head(chain[-1].op, chain[-1].checksum) if chain else base)
    return max(ends, key=lambda one: one.op, default=None)


def _newest(journal: Journal) -> Entry | None:
    """The newest entry; None if there is none, or if only a snapshot is left of it."""
    try:
        return journal.read(journal.durable)
    except CorruptEntry:
        return None


def _aside(swapped: heal.Swapped) -> str:
    return "" if swapped.aside is None else f"; the old files are in {swapped.aside}"
