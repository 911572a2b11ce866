"""Findings about one group's superblock, snapshots and journal."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from headrace.doctor.findings.finding import NOTHING, Finding, Loss, Severity, count
from headrace.doctor.findings.journal_findings import JournalWords, LossOf
from headrace.doctor.findings.words import finding, foreign
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
    """Turns the state of a group into findings."""

    sight: GroupSight
    where: str  # of the group, relative to the data directory
    covered: Op  # the op of the snapshot in use: nothing at or below is needed anymore
    loss_of: LossOf

    def findings(self) -> list[Finding]:
        """Return all findings, in the order in which a start checks."""
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
            path = str(getattr(error, "path", ""))
            file, loss = self._file(path), self._misfit_loss(path)
            if isinstance(error, ForeignFile):
                yield foreign("foreign-file", file, error, loss)
            else:
                is_newer = isinstance(error, UnsupportedFormat)
                kind = "newer-format" if is_newer else "superblock-fork"
                yield finding(kind, file, loss=loss, what=cause_text(error))

    def _misfit_loss(self, path: str) -> Loss:
        """Return the loss if the right file is nowhere else."""
        place = PurePath(path)
        first = first_op_of(place.name)
        if place.parent.name == JOURNAL and first is not None:
            last = self._last_in(first)
            return NOTHING if last <= self.covered else self.loss_of(first, last)
        if place.parent.name == SNAPSHOTS and self.sight.plan is None:
            return Loss(_STATE, is_counted=False)
        return self._superblock_loss() if place.name in NAMES else NOTHING

    def _last_in(self, first: Op) -> Op:
        """Return the last op that the journal file of `first` can have held."""
        names = ReadonlyDirectory(f"{self.sight.room.path}/{JOURNAL}").names()
        above = [op for op in map(first_op_of, names) if op is not None and op > first]
        return Op(min(above) - 1) if above else OP_MAX

    def _superblock_loss(self) -> Loss:
        """Without a superblock, only the journal can tell a torn tail from damage."""
        if self.sight.survey.superblock is None and isinstance(
            self.sight.scan.ending, TornTail
        ):
            what = "whether the unfinished append at the journal's end was acknowledged"
            return Loss(f"{what} is unknown", is_counted=False)
        return Loss("nothing that the journal or a snapshot still proves")

    def _superblocks(self) -> Iterator[Finding]:
        copies = self.sight.survey.copies
        if self.sight.survey.is_empty or any(name in self.sight.room.hidden for name in NAMES):
            return
        best = copies.best
        for name, flaw in zip(NAMES, copies.flaws, strict=True):
            path = f"{self.where}/{name}"
            if flaw is not None and best is not None:
                what, number = flaw_text(flaw), best.sequence
                yield finding("superblock-copy", path, position=0, what=what, sequence=number)
            elif flaw is not None:
                loss, what = self._superblock_loss(), flaw_text(flaw)
                yield finding("superblock-lost", path, loss=loss, position=0, what=what)
        if best is not None:
            yield from self._stale(best)
            if best.cut_from is not None:
                path = f"{self.where}/{NAMES[0]}"
                yield finding("cut-begun", path, cut_from=best.cut_from)

    def _stale(self, best: Superblock) -> Iterator[Finding]:
        for name in NAMES:
            found = _read_superblock(self.sight, name)
            if isinstance(found, Superblock) and found.sequence < best.sequence:
                file, sequence = f"{self.where}/{name}", found.sequence
                yield finding("superblock-stale", file, sequence=sequence, best=best.sequence)

    def _snapshots(self) -> Iterator[Finding]:
        for bad in self.sight.survey.bad_snapshots:
            yield self._snapshot(bad.op, "snapshot-bad", flaw_text(bad.flaw))
        block = self.sight.survey.superblock
        if block is None:
            return
        known = {one.op for one in self.sight.survey.snapshots}
        known |= {one.op for one in self.sight.survey.bad_snapshots}
        pairs = [(block.checkpoint.op, "newest"), (block.previous_op, "previous")]
        for op, which in dict(pairs).items():
            if op and op not in known:
                what = f"the {which} snapshot, which the superblock names, is missing"
                yield self._snapshot(op, "snapshot-gone", what)

    def _snapshot(self, op: Op, kind: str, what: str) -> Finding:
        path = f"{self.where}/{SNAPSHOTS}/{snapshot_name(op)}"
        if self.sight.plan is None:
            loss = Loss(_STATE, is_counted=False)
            return finding(kind, path, loss=loss, first_op=op, what=what)
        base = self.sight.plan.base
        begin = f"the snapshot at op {base:,}" if base else "op 1"
        return finding(f"{kind}: spared", path, first_op=op, what=what, begin=begin)

    def _refusal(self, error: HeadraceError) -> Finding:
        """Report why a start refuses, if no earlier finding does."""
        if isinstance(error, TooFewSlots):
            live = count(error.live, "op")
            return finding("slots", self.where, live=live, slots=error.slots)
        file = self._file(str(getattr(error, "path", self.sight.room.path)))
        position = error.position if isinstance(error, Corrupt) else None
        loss, what = Loss("unknown", is_counted=False), cause_text(error)
        return finding("refused", file, loss=loss, position=position, what=what)


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
