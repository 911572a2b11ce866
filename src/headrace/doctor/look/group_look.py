"""Examine one group as a start would: survey and judge, without changing anything.

A start refuses at the first file of another cluster. The doctor names that file and continues
without it. Where a journal file has lost both header blocks, its frames still carry its ID, and
its entries are read by that.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import Corrupt, CorruptFile, ForeignFile, HeadraceError, UnsupportedFormat
from headrace.journal.entry import Flaw, Header
from headrace.journal.frame import FILE_ID_AT
from headrace.journal.heads import Head
from headrace.journal.journal_file import FIRST_POSITION, FileHeader
from headrace.journal.recovery.judge import RecoveryPlan, judge
from headrace.journal.recovery.scan import scan
from headrace.journal.recovery.scan_findings import Candidate, Evidence, Scan
from headrace.journal.recovery.survey import Survey, Unreadable, survey
from headrace.journal.recovery.walk import FileReader
from headrace.journal.snapshot import Snapshot, SnapshotFiles
from headrace.journal.superblock import NAMES, Checkpoint
from headrace.model.ids import Identity, Op

JOURNAL = "journal"
SPARE = "spare"
SNAPSHOTS = "snapshots"


@dataclass(slots=True)
class GroupSight:
    """Everything that a start of one group would find."""

    identity: Identity
    room: ReadonlyDirectory
    survey: Survey
    scan: Scan  # of all readable files, including those readable by their frames alone
    plan: RecoveryPlan | None  # what a start would do
    refusal: HeadraceError | None  # or why it would not
    misfits: list[HeadraceError] = field(default_factory=list)  # files passed over, by name
    revived: list[Unreadable] = field(default_factory=list)  # read by their frames alone

    @property
    def is_empty(self) -> bool:
        return self.survey.is_empty and not self.misfits

    @property
    def snapshots(self) -> list[Snapshot]:
        """Intact snapshots that belong to this log, newest first."""
        block = self.survey.superblock
        pair = block.checkpoint if block is not None else Checkpoint()
        return [
            one
            for one in self.survey.snapshots
            if one.op != pair.op or one.checksum == pair.snapshot
        ]

    def close(self) -> None:
        for one in self.scan.files:
            with suppress(OSError):
                one.candidate.storage.close()


def look_at_group(
    room: ReadonlyDirectory, identity: Identity, slots: int, head: Head | None = None
) -> GroupSight:
    """Examine everything in `room`. No bytes in it can make this raise."""
    journal, snapshots = room.within(JOURNAL), room.within(SNAPSHOTS)
    misfits: list[HeadraceError] = []
    found: Survey | None = None
    while found is None:
        try:
            found = survey(room, journal, SnapshotFiles(snapshots, identity), head)
        except (ForeignFile, UnsupportedFormat) as error:
            _hide(error.path, (room, journal, snapshots))
            misfits.append(error)
        except CorruptFile as error:  # two superblocks of one sequence that differ
            room.hidden.update(NAMES)
            misfits.append(error)
    plan, refusal = _judged(found, identity, slots, room.path)
    whole, revived = _with_revived(found, journal, identity)
    if misfits:  # a start looks no further
        refusal = misfits[0]
    return GroupSight(identity, room, found, whole, plan, refusal, misfits, revived)


def _hide(path: str, rooms: tuple[ReadonlyDirectory, ...]) -> None:
    place = PurePath(path)
    for room in rooms:
        if room.path == str(place.parent) and place.name not in room.hidden:
            room.hidden.add(place.name)
            return
    raise AssertionError(f"{path} was passed over already")


def _judged(
    found: Survey, identity: Identity, slots: int, path: str
) -> tuple[RecoveryPlan | None, HeadraceError | None]:
    if found.is_empty:
        return None, None
    try:
        return judge(found, identity, slots, path), None
    except HeadraceError as error:
        return None, error


def _with_revived(
    found: Survey, journal: ReadonlyDirectory, identity: Identity
) -> tuple[Scan, list[Unreadable]]:
    """Scan again, with the files whose header blocks are bad but whose frames are not."""
    revived = [(one, _revive(one, journal, identity)) for one in found.unreadable]
    more = [(one, candidate) for one, candidate in revived if candidate is not None]
    if not more:
        return found.scan, []
    known = [file.candidate for file in found.scan.files] + [one for _, one in more]
    block = found.superblock
    evidence = Evidence(
        durable=found.scan.proven,
        clean_head=block.clean_head if block else None,
        cut_from=block.cut_from if block else None,
    )
    in_order = sorted(known, key=lambda one: one.header.first_op)
    return scan(in_order, identity, evidence), [one for one, _ in more]


def _revive(
    lost: Unreadable, journal: ReadonlyDirectory, identity: Identity
) -> Candidate | None:
    """Take a file's ID from its first frame, which contains it and is checked by it."""
    try:
        storage = journal.open(lost.name)
    except OSError:
        return None
    try:
        shown = storage.read(FIRST_POSITION + FILE_ID_AT, 8)
        file_id, size = int.from_bytes(shown, "little"), storage.size()
        frame = FileReader(storage, file_id, size).frame(FIRST_POSITION)
    except OSError:
        storage.close()
        return None
    header = frame.header
    if not isinstance(header, Header) or not _is_first(header, lost.first, identity):
        storage.close()
        return None
    life = FileHeader(file_id, header.cluster, header.group, lost.first, header.parent, size)
    return Candidate(storage, life)


def _is_first(header: Header, first: Op, identity: Identity) -> bool:
    return (header.op, header.cluster, header.group) == (
        first,
        identity.cluster,
        identity.group,
    )


def flaw_text(flaw: Flaw) -> str:
    """Describe a flaw, with the expected and found values."""
    if flaw.expected is None and flaw.found is None:
        return flaw.what
    return f"{flaw.what}: expected {flaw.expected}, found {flaw.found}"


def cause_text(error: HeadraceError) -> str:
    """Describe an error without its path and its hint: a finding has both already."""
    text = str(error.args[0])
    path = getattr(error, "path", "")
    if path and text.startswith(path):
        text = text[len(path) :]
        if isinstance(error, Corrupt) and error.position is not None:
            text = text.removeprefix(f" at byte {error.position}")
    return text.lstrip(": ")
