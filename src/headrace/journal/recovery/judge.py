"""Turns the findings of a survey into a plan, or refuses with a named error. Changes nothing.

Each row of the table in docs/recovery.md is one rule here. An exception refuses the start of
this group; nothing on disk has been touched by then, so a human finds everything as it was.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import (
    ChainBroken,
    Corrupt,
    CorruptEntry,
    CorruptFile,
    CorruptSnapshot,
    MissingFile,
    TooFewSlots,
)
from headrace.journal.entry import Flaw, root
from headrace.journal.heads import Head
from headrace.journal.recovery.scan import contiguous_from
from headrace.journal.recovery.scan_findings import Faulty, TornTail
from headrace.journal.recovery.survey import Survey
from headrace.journal.snapshot import Snapshot
from headrace.journal.superblock import Checkpoint
from headrace.model.ids import OP_MAX, Identity, Op

_RESTORE = (
    "Nothing was changed. Keep the directory as it is, and restore the file from a backup; "
    "without one, `headrace doctor --salvage NEW_DIR` copies what can be read into a new log"
)


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What recovery will do."""

    snapshot: Snapshot | None  # the one in use; None replays from op 1
    fell_back: bool
    base: Op  # replay begins above it
    head: Op
    tip: bytes
    watermark: Op  # the journal must reach back to the op above it
    checkpoint: Checkpoint
    previous_op: Op
    commit: Op
    replay_to: Op  # committed, and intact all the way from the base
    cut_from: Op | None
    cut_last: Op | None
    suspect: tuple[Op, Op] | None
    faulty: tuple[Faulty, ...]  # solo: all at or below the base
    needs_file: bool  # the newest file cannot be appended to
    is_recovering: bool  # cluster only: no superblock, so its promises are unknown
    problem: Corrupt | None  # cluster only: why this replica must catch up before it votes


def judge(survey: Survey, identity: Identity, slots: int, path: str) -> RecoveryPlan:
    """Choose the snapshot, check that nothing acknowledged is missing above it, and plan.

    Alone, anything missing refuses the start. In a cluster peers have it: single bad frames
    stay as faulty slots; after larger damage the proven prefix is kept and the rest is suspect.
    """
    _check_intent(survey, identity, path)
    snapshot, fell_back = _choose(survey, identity, path)
    base = snapshot.op if snapshot else Op(0)
    base_tip = snapshot.tip if snapshot else root(identity)
    problem = _lost_above(survey, base, path) or _faulty_above(survey, base, identity)
    unreached = _unreached(survey, base, base_tip, path)
    lost = problem or unreached
    if lost is not None and identity.is_solo:
        raise lost
    chain = list(contiguous_from(survey.scan.entries, base, base_tip))
    reached = chain[-1] if chain else None
    whole = reached.op if reached else base
    head, tip = whole, reached.checksum if reached else base_tip
    problem = problem or _begun_install(survey, whole)
    if problem is None and survey.scan.tip is not None and survey.scan.head > whole:
        head, tip = survey.scan.head, survey.scan.tip  # faulty slots on the way, known by name
    if identity.is_solo:
        _check_chain(survey, base, base_tip, whole)
    else:
        _check_base(survey, base, base_tip)
    checkpoint, previous_op = _pairing(survey, snapshot)
    if not identity.is_solo and not _leads_up_to(survey, identity, checkpoint):
        previous_op = checkpoint.op  # it came from a peer: nothing below it is of use
    watermark = min(_watermark(survey, previous_op), head)
    if head - watermark > slots:
        raise TooFewSlots(path, slots, head - watermark)
    cut_from, cut_last = _cut(survey) if problem is None else (Op(head + 1), _last_lost(survey))
    commit = _commit(survey, identity, base, head)
    return RecoveryPlan(
        snapshot=snapshot,
        fell_back=fell_back,
        base=base,
        head=head,
        tip=tip,
        watermark=watermark,
        checkpoint=checkpoint,
        previous_op=previous_op,
        commit=commit,
        replay_to=min(commit, whole),
        cut_from=cut_from,
        cut_last=cut_last,
        suspect=_suspect(survey, identity, cut_from, cut_last),
        faulty=tuple(one for one in survey.scan.faulty if one.op <= head),
        needs_file=_needs_file(survey, head),
        is_recovering=_is_recovering(survey, identity, unreached),
        problem=problem,
    )


def _check_intent(survey: Survey, identity: Identity, path: str) -> None:
    """Refuse an intent to cut committed ops: no cut ever does that.

    In a cluster one may: after a loss, the rest is cut as suspect and fetched again.
    """
    block = survey.superblock
    if block is None or block.cut_from is None:
        return
    if not identity.is_solo and block.suspect and block.suspect[0] <= block.cut_from:
        return
    known = [block.commit, block.checkpoint.op, block.clean_head or Op(0)]
    known += [survey.scan.commit, *(snapshot.op for snapshot in survey.snapshots)]
    known += [] if survey.head is None else [survey.head.op]
    if block.cut_from <= max(known):
        raise CorruptFile(
            f"it records an unfinished cut from op {block.cut_from}",
            path=f"{path}/superblock.a",
            expected=f"an op above {max(known)}, the newest op known to be committed",
            found=block.cut_from,
            hint=_RESTORE,
        )


def _watermark(survey: Survey, previous_op: Op) -> Op:
    """Keep everything from the previous checkpoint on, as far as the files reach back."""
    files = survey.scan.files
    first = files[0].candidate.header.first_op if files else Op(1)
    return Op(max(previous_op - 1, first - 1, 0))


def _last_lost(survey: Survey) -> Op:
    """The highest op that may have been durable here; OP_MAX if unknown."""
    scan = survey.scan
    open_ended = any(gap.last is None for gap in scan.gaps) or scan.shorts or not scan.files
    if open_ended or any(one.last is None for one in survey.unreadable):
        return OP_MAX
    return max(scan.proven, scan.reach)


def _suspect(
    survey: Survey, identity: Identity, cut_from: Op | None, cut_last: Op | None
) -> tuple[Op, Op] | None:
    """Return the ops that may have been acknowledged here before the cut."""
    known = survey.superblock.suspect if survey.superblock else None
    if identity.is_solo or cut_from is None:
        return known
    last = max(cut_from, cut_last or cut_from)
    if isinstance(survey.scan.ending, TornTail):
        last = max(last, survey.scan.reach)
    return (cut_from, last) if known is None else (min(known[0], cut_from), max(known[1], last))


def _commit(survey: Survey, identity: Identity, base: Op, head: Op) -> Op:
    """Alone, durable ops are committed; in a cluster only those with evidence."""
    if identity.is_solo:
        return head
    known = survey.superblock.commit if survey.superblock else Op(0)
    return min(head, max(survey.scan.commit, known, base))


def _choose(survey: Survey, identity: Identity, path: str) -> tuple[Snapshot | None, bool]:
    """Return the newest usable snapshot, and whether a newer one had to be skipped."""
    pairing = survey.superblock.checkpoint if survey.superblock else Checkpoint()
    newest = max([pairing.op, *(bad.op for bad in survey.bad_snapshots)])
    for snapshot in survey.snapshots:
        if _is_usable(survey, snapshot, pairing):
            return snapshot, snapshot.op < newest
        newest = max(newest, snapshot.op)
    if newest == 0 or _reaches(survey, Op(0), root(identity), pairing):
        return None, newest > 0
    flaw = survey.bad_snapshots[0].flaw if survey.bad_snapshots else Flaw("snapshot is missing")
    raise CorruptSnapshot(
        f"no snapshot can be used ({flaw.what}), and the journal does not begin at op 1",
        path=path,
        expected=f"a snapshot at op {newest}",
        found=[snapshot.op for snapshot in survey.snapshots],
        hint=_RESTORE,
    )


def _is_usable(survey: Survey, snapshot: Snapshot, pairing: Checkpoint) -> bool:
    if snapshot.op > pairing.op:
        return True  # a crash came between persisting and pairing
    if snapshot.op == pairing.op:
        return snapshot.checksum == pairing.snapshot
    return _reaches(survey, snapshot.op, snapshot.tip, pairing)


def _reaches(survey: Survey, base: Op, tip: bytes, pairing: Checkpoint) -> bool:
    """Whether the journal chains from `base` through the paired op."""
    if base == 0 and not _begins_at_1(survey):
        return False
    if base == pairing.op:
        return True
    chain = contiguous_from(survey.scan.entries, base, tip)
    return any(found.op == pairing.op and found.checksum == pairing.tip for found in chain)


def _begins_at_1(survey: Survey) -> bool:
    files = survey.scan.files
    return bool(files) and files[0].candidate.header.first_op == 1


def _lost_above(survey: Survey, base: Op, path: str) -> Corrupt | None:
    """Return the first thing that hides more than single entries above `base`."""
    return (
        _unreadable_above(survey, base)
        or _short(survey)
        or _break_above(survey, base)
        or _gap_above(survey, base, path)
    )


def _unreadable_above(survey: Survey, base: Op) -> Corrupt | None:
    for one in survey.unreadable:
        if one.last is None or one.last > base:
            return CorruptFile(
                f"its header cannot be read, so the ops from {one.first} are out of reach: "
                f"{one.flaw.what}",
                path=one.path,
                position=0,
                expected=one.flaw.expected,
                found=one.flaw.found,
                hint=_RESTORE,
            )
    return None


def _gap_above(survey: Survey, base: Op, path: str) -> Corrupt | None:
    if not survey.scan.files:
        return MissingFile("the journal has no files", path=f"{path}/journal", hint=_RESTORE)
    first = survey.scan.files[0].candidate
    if first.header.first_op > base + 1:
        return MissingFile(
            "the file before it is missing",
            path=first.storage.path,
            expected=f"first op at most {base + 1}",
            found=first.header.first_op,
            hint=_RESTORE,
        )
    for gap in survey.scan.gaps:
        if gap.last is not None and gap.last <= base:
            continue
        if gap.is_file:
            until = "" if gap.last is None else f" to {gap.last}"
            message = f"the file after it is missing, with the ops from {gap.first}{until}"
            return MissingFile(message, path=gap.path, hint=_RESTORE)
        return CorruptEntry(
            f"ops {gap.first} to {gap.last} were acknowledged but are missing from its end"
            f"{_as_heads_say(survey, gap.first)}",
            path=gap.path,
            expected=f"head {gap.last}",
            found=gap.first - 1,
            hint=_RESTORE,
        )
    return None


def _begun_install(survey: Survey, whole: Op) -> Corrupt | None:
    """The file of an interrupted install, which nothing links to the ops below it.

    Ops that were never here must not look like corrupt entries: their neighbours would vouch
    for a different log below them.
    """
    block = survey.superblock
    if block is None or block.syncing_to is None:
        return None
    for one in survey.scan.files:
        first = one.candidate.header.first_op
        if first > whole + 1:
            return MissingFile(
                f"an install was interrupted, and op {first - 1} is missing",
                path=one.candidate.storage.path,
                expected=f"first op at most {whole + 1}",
                found=first,
                hint=_RESTORE,
            )
    return None


def _short(survey: Survey) -> Corrupt | None:
    if survey.is_clean:
        return None  # the clean head proves that the missing part was empty
    for short in survey.scan.shorts:
        return CorruptFile(
            "the file was cut short, and the content of the rest is unknown",
            path=short.path,
            position=short.found,
            expected=f"{short.expected} bytes",
            found=short.found,
            hint=_RESTORE,
        )
    return None


def _break_above(survey: Survey, base: Op) -> Corrupt | None:
    for broken in survey.scan.breaks:
        if broken.op > base:
            return ChainBroken(
                f"op {broken.op} does not follow the previous op",
                path=broken.path,
                position=broken.position,
                expected=broken.expected,
                found=broken.found,
                hint=_RESTORE,
            )
    return None


def _faulty_above(survey: Survey, base: Op, identity: Identity) -> Corrupt | None:
    """Alone, the first bad entry; in a cluster only one at the very end without a checksum."""
    for one in survey.scan.faulty:
        if one.op > base and (identity.is_solo or survey.scan.tip is None):
            return CorruptEntry(
                f"op {one.op} was acknowledged but cannot be read: {one.flaw.what}"
                f"{_as_heads_say(survey, one.op)}",
                path=one.path,
                position=one.position,
                expected=one.flaw.expected,
                found=one.flaw.found,
                hint=_RESTORE,
            )
    return None


def reaches(survey: Survey, head: Head, base: Op, base_tip: bytes) -> bool:
    """Whether a group still has the entry of its head, or a snapshot above it.

    Nothing is checked below the snapshot in use: damage there costs nothing.
    """
    if head.op <= base:
        return head.op < base or head.tip == base_tip
    return any(one.op == head.op and one.checksum == head.tip for one in survey.scan.entries)


def _unreached(survey: Survey, base: Op, base_tip: bytes, path: str) -> Corrupt | None:
    head = survey.head
    if head is None or reaches(survey, head, base, base_tip):
        return None
    return ChainBroken(
        f"op {head.op} is not the entry that was acknowledged{_as_heads_say(survey, head.op)}",
        path=f"{path}/journal",
        expected=head.tip.hex(),
        found=next(
            (one.checksum.hex() for one in survey.scan.entries if one.op == head.op), "nothing"
        ),
        hint=_RESTORE,
    )


def _as_heads_say(survey: Survey, op: Op) -> str:
    """Name the evidence outside a damaged journal, if it covers this op."""
    head = survey.head
    if head is None or head.op < op:
        return ""
    at = datetime.fromtimestamp(head.written_at // 1_000_000, UTC).isoformat()
    return f" (the file `heads` records op {head.op} here at {at.replace('+00:00', 'Z')})"


def _check_chain(survey: Survey, base: Op, base_tip: bytes, head: Op) -> None:
    """The journal's entries above the base must continue from it."""
    above = [found for found in survey.scan.entries if found.op > base]
    if above and above[-1].op != head:
        stray = next(found for found in above if found.op > head)
        raise ChainBroken(
            f"op {stray.op} does not follow the snapshot at op {base}",
            path=survey.scan.files[stray.file].candidate.storage.path,
            position=stray.position,
            expected=base_tip.hex(),
            found=stray.parent.hex(),
            hint=_RESTORE,
        )


def _check_base(survey: Survey, base: Op, base_tip: bytes) -> None:
    """Refuse a journal that contradicts the snapshot: an install cuts it beforehand."""
    for found in survey.scan.entries:
        here, above = found.op == base, found.op == base + 1
        if (here and found.checksum != base_tip) or (above and found.parent != base_tip):
            raise ChainBroken(
                f"op {found.op} does not belong to the snapshot at op {base}",
                path=survey.scan.files[found.file].candidate.storage.path,
                position=found.position,
                expected=base_tip.hex(),
                found=(found.checksum if here else found.parent).hex(),
                hint=_RESTORE,
            )


def _leads_up_to(survey: Survey, identity: Identity, checkpoint: Checkpoint) -> bool:
    """Whether the journal leads from the pair on disk to the new pair."""
    known = survey.superblock.checkpoint if survey.superblock else Checkpoint()
    if checkpoint.op <= known.op:
        return True
    tip = known.tip if known.op else root(identity)
    chain = contiguous_from(survey.scan.entries, known.op, tip)
    return any(found.op == checkpoint.op for found in chain)


def _pairing(survey: Survey, snapshot: Snapshot | None) -> tuple[Checkpoint, Op]:
    """Return the pair for the superblock: a snapshot newer than the old pair becomes it."""
    superblock = survey.superblock
    known = superblock.checkpoint if superblock else Checkpoint()
    previous = superblock.previous_op if superblock else Op(0)
    if snapshot is None or snapshot.op <= known.op:
        return known, previous
    if superblock is None:
        older = [one.op for one in survey.snapshots if one.op < snapshot.op]
        previous = max(older, default=Op(0) if _begins_at_1(survey) else snapshot.op)
    else:
        previous = known.op
    return Checkpoint(snapshot.op, snapshot.tip, snapshot.checksum), previous


def _is_recovering(survey: Survey, identity: Identity, unreached: Corrupt | None) -> bool:
    block = survey.superblock
    forgot = block is None or block.recovering or unreached is not None
    return not identity.is_solo and forgot


def _cut(survey: Survey) -> tuple[Op | None, Op | None]:
    intended = survey.superblock.cut_from if survey.superblock else None
    ending = survey.scan.ending
    if isinstance(ending, TornTail):
        first = ending.first if intended is None else min(intended, ending.first)
        return first, max(ending.last, first)
    return intended, intended


def _needs_file(survey: Survey, head: Op) -> bool:
    """Damage at or below the snapshot ends the newest file: continue in a new one."""
    files, entries = survey.scan.files, survey.scan.entries
    if not files:
        return True
    newest = files[-1].candidate.header
    if entries and entries[-1].op == head:
        return False
    return newest.first_op - 1 != head
