"""What was found in one group's superblock, snapshots and journal, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from headrace.doctor.findings.finding import (
    NOTHING,
    PUT_BACK,
    PUT_BACK_OR_SALVAGE,
    Finding,
    Loss,
    Severity,
    count,
    damage,
)
from headrace.doctor.findings.journal_findings import REFUSES, JournalWords, LossOf
from headrace.doctor.look.group_look import (
    JOURNAL,
    SNAPSHOTS,
    GroupSight,
    cause_text,
    flaw_text,
)
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import Corrupt, ForeignFile, HeadraceError, TooFewSlots, UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.journal_file import first_op_of
from headrace.journal.recovery.scan_findings import TornTail
from headrace.journal.snapshot import snapshot_name
from headrace.journal.superblock import NAMES, Superblock, decode
from headrace.model.ids import OP_MAX, Op

_STATE = "the state at that op: cursors, writers, and what was trimmed or purged"


@dataclass(slots=True)
class GroupWords:
    """Turns what was found in a group into findings."""

    sight: GroupSight
    where: str  # of the group, relative to the data directory
    covered: Op  # the snapshot in use stands here: nothing at or below is needed any more
    loss_of: LossOf

    def findings(self) -> list[Finding]:
        """Return all of them, in the order in which a start looks."""
        found = [
            *self._misfits(),
            *self._superblocks(),
            *self._snapshots(),
            *self._journal(),
        ]
        refusal = self.sight.refusal
        is_told = any(one.severity is Severity.DAMAGE for one in found)
        if refusal is not None and not is_told:
            found.append(self._refusal(refusal))
        return found

    def _journal(self) -> list[Finding]:
        told = {PurePath(str(getattr(one, "path", ""))).name for one in self.sight.misfits}
        return JournalWords(self.sight, self.where, self.covered, self.loss_of, told).findings()

    def _file(self, path: str) -> str:
        return self.where + path.removeprefix(self.sight.room.path)

    def _misfits(self) -> Iterator[Finding]:
        for error in self.sight.misfits:
            kind, what = "superblock-fork", cause_text(error)
            meaning = f"{REFUSES}: one of the two was copied from elsewhere"
            helps = "Put the right copy back"
            if isinstance(error, ForeignFile):
                kind = "foreign-file"
                what = f"its {error.field} should be {error.expected}, is {error.found}"
                meaning = f"it belongs to another log, and {REFUSES} while it is here"
                helps = "Move it to where it belongs, and put this log's own file back"
            elif isinstance(error, UnsupportedFormat):
                kind, meaning = "newer-format", f"a newer release wrote it, and {REFUSES}"
                helps = "Start that release"
            path = str(getattr(error, "path", ""))
            yield damage(kind, self._file(path), what, meaning, self._misfit_loss(path), helps)

    def _misfit_loss(self, path: str) -> Loss:
        """Say what is lost if the file that should be here is nowhere else."""
        place = PurePath(path)
        first = first_op_of(place.name)
        if place.parent.name == JOURNAL and first is not None:
            last = self._last_in(first)
            return NOTHING if last <= self.covered else self.loss_of(first, last)
        if place.parent.name == SNAPSHOTS and self.sight.plan is None:
            return Loss(_STATE, is_counted=False)
        return self._superblock_loss() if place.name in NAMES else NOTHING

    def _last_in(self, first: Op) -> Op:
        """Return the last op that the journal file of `first` can have had."""
        names = ReadonlyDirectory(f"{self.sight.room.path}/{JOURNAL}").names()
        above = [op for op in map(first_op_of, names) if op is not None and op > first]
        return Op(min(above) - 1) if above else OP_MAX

    def _superblock_loss(self) -> Loss:
        """Without a superblock, only the journal tells a torn tail from damage."""
        if self.sight.survey.superblock is None and isinstance(
            self.sight.scan.ending, TornTail
        ):
            what = "whether the unfinished append at the journal's end was acknowledged"
            return Loss(f"{what} is not known", is_counted=False)
        return Loss("nothing that the journal or a snapshot still proves")

    def _superblocks(self) -> Iterator[Finding]:
        copies = self.sight.survey.copies
        if self.sight.survey.is_empty or any(name in self.sight.room.hidden for name in NAMES):
            return
        best = copies.best
        for name, flaw in zip(NAMES, copies.flaws, strict=True):
            path = f"{self.where}/{name}"
            if flaw is not None and best is not None:
                meaning = f"the other copy, sequence {best.sequence}, is whole and is taken"
                helps = "The next start writes both again"
                yield Finding(
                    Severity.NOTE,
                    "superblock-copy",
                    path,
                    flaw_text(flaw),
                    meaning,
                    next=helps,
                    position=0,
                )
            elif flaw is not None:
                yield damage(
                    "superblock-lost",
                    path,
                    flaw_text(flaw),
                    "neither copy can be read: a start makes the record again from snapshots "
                    "and journal, and cannot tell whether the last stop was clean",
                    self._superblock_loss(),
                    f"{PUT_BACK} if there is one, or start: it is made again",
                    position=0,
                )
        yield from self._stale(best)
        if best is not None and best.cut_from is not None:
            yield Finding(
                Severity.NOTE,
                "cut-begun",
                f"{self.where}/{NAMES[0]}",
                f"a cut from op {best.cut_from:,} was begun",
                "a start was interrupted while it removed a torn tail",
                next="The next start finishes it",
            )

    def _stale(self, best: Superblock | None) -> Iterator[Finding]:
        for name in NAMES if best is not None else ():
            assert best is not None
            found = _read_superblock(self.sight, name)
            if isinstance(found, Superblock) and found.sequence < best.sequence:
                yield Finding(
                    Severity.NOTE,
                    "superblock-stale",
                    f"{self.where}/{name}",
                    f"sequence {found.sequence}, while the other copy has {best.sequence}",
                    "a crash came between the two writes; the newer one is taken",
                    next="The next start writes both again",
                )

    def _snapshots(self) -> Iterator[Finding]:
        is_usable = self.sight.plan is not None
        helps = "The next start moves it to quarantine and writes it again"
        for bad in self.sight.survey.bad_snapshots:
            yield self._snapshot(bad.op, "snapshot-bad", flaw_text(bad.flaw), is_usable, helps)
        block = self.sight.survey.superblock
        if block is None:
            return
        known = {one.op for one in self.sight.survey.snapshots}
        known |= {one.op for one in self.sight.survey.bad_snapshots}
        pairs = [(block.checkpoint.op, "newest"), (block.previous_op, "previous")]
        for op, which in dict(pairs).items():
            if op and op not in known:
                what = f"the {which} snapshot, which the superblock names, is gone"
                helps = "The next start or checkpoint writes a new one"
                yield self._snapshot(op, "snapshot-gone", what, is_usable, helps)

    def _snapshot(self, op: Op, kind: str, what: str, is_usable: bool, helps: str) -> Finding:
        path = f"{self.where}/{SNAPSHOTS}/{snapshot_name(op)}"
        if is_usable:
            base = self.sight.plan.base if self.sight.plan else Op(0)
            begin = f"the snapshot at op {base:,}" if base else "op 1"
            meaning = f"a start begins at {begin} and replays the journal from there"
            return Finding(Severity.NOTE, kind, path, what, meaning, next=helps, first_op=op)
        return damage(
            kind,
            path,
            what,
            f"{REFUSES}: no other snapshot reaches the journal that is here",
            Loss(_STATE, is_counted=False),
            PUT_BACK_OR_SALVAGE,
            first_op=op,
        )

    def _refusal(self, error: HeadraceError) -> Finding:
        """Say why a start refuses, where no finding before has said it."""
        path = str(getattr(error, "path", self.sight.room.path))
        position = error.position if isinstance(error, Corrupt) else None
        if isinstance(error, TooFewSlots):
            what = f"{count(error.live, 'op')} must stay reachable; node.toml has {error.slots}"
            helps = "Start with at least that many in journal.slots"
            return Finding(Severity.NOTE, "slots", self.where, what, REFUSES, next=helps)
        return damage(
            "refused",
            self._file(path),
            cause_text(error),
            REFUSES,
            Loss("not known", is_counted=False),
            PUT_BACK_OR_SALVAGE,
            position=position,
        )


def _read_superblock(sight: GroupSight, name: str) -> Superblock | Flaw:
    try:
        file = sight.room.open(name)
    except OSError as error:
        return Flaw(str(error))
    try:
        return decode(file.read(0, file.size()), file.path)
    except (OSError, HeadraceError) as error:
        return Flaw(str(error))
    finally:
        file.close()
