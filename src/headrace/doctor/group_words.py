"""What was found in one group's superblock, snapshots and journal, in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.doctor.finding import (
    PUT_BACK,
    PUT_BACK_OR_SALVAGE,
    Finding,
    Rows,
    Severity,
    count,
)
from headrace.doctor.group import JOURNAL, SNAPSHOTS, GroupSight, cause_text, flaw_text
from headrace.errors import Corrupt, ForeignFile, HeadraceError, TooFewSlots, UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.file import BLOCK_SIZE, file_name
from headrace.journal.findings import Faulty, Gap, TornTail
from headrace.journal.snapshot import snapshot_name
from headrace.journal.superblock import NAMES, Superblock, decode
from headrace.model.ids import OP_MAX, Op

# What is lost with these ops, in words and, where that is known, as rows.
LossOf = Callable[[Op, Op], tuple[str, tuple[Rows, ...]]]

_REFUSES = "a start of this group refuses"


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
            *self._headers(),
            *self._entries(),
            *self._breaks_and_gaps(),
            *self._rubble(),
            *self._tail(),
        ]
        refusal = self.sight.refusal
        is_told = any(one.severity is Severity.DAMAGE for one in found)
        if refusal is not None and not is_told:
            found.append(self._refusal(refusal))
        return found

    def _file(self, path: str) -> str:
        return self.where + path.removeprefix(self.sight.room.path)

    def _misfits(self) -> Iterator[Finding]:
        for error in self.sight.misfits:
            kind, what = "superblock-fork", cause_text(error)
            meaning = f"{_REFUSES}: one of the two was copied from elsewhere"
            helps = "Put the right copy back"
            if isinstance(error, ForeignFile):
                kind = "foreign-file"
                what = f"its {error.field} should be {error.expected}, is {error.found}"
                meaning = f"it belongs to another log, and {_REFUSES} while it is here"
                helps = "Move it to where it belongs, and put this log's own file back"
            elif isinstance(error, UnsupportedFormat):
                kind, meaning = "newer-format", f"a newer release wrote it, and {_REFUSES}"
                helps = "Start that release"
            path = self._file(str(getattr(error, "path", "")))
            lost = "nothing, if what should be here is elsewhere"
            yield Finding(Severity.DAMAGE, kind, path, what, meaning, lost, helps)

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
                yield Finding(
                    Severity.DAMAGE,
                    "superblock-lost",
                    path,
                    flaw_text(flaw),
                    "neither copy can be read: a start makes the record again from snapshots "
                    "and journal, and cannot tell whether the last stop was clean",
                    "nothing that the journal or a snapshot still proves",
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
        return Finding(
            Severity.DAMAGE,
            kind,
            path,
            what,
            f"{_REFUSES}: no other snapshot reaches the journal that is here",
            "the state at that op: cursors, and which entries belong to which rows",
            PUT_BACK_OR_SALVAGE,
            first_op=op,
        )

    def _headers(self) -> Iterator[Finding]:
        for lost in self.sight.survey.unreadable:
            yield self._unreadable(lost.path, lost.first, lost.last, flaw_text(lost.flaw))
        for file in self.sight.survey.scan.files:
            for block in file.candidate.bad_blocks:
                yield Finding(
                    Severity.NOTE,
                    "header-block",
                    self._file(file.candidate.storage.path),
                    f"header block {block + 1} of 2 is bad",
                    "the other one is whole and is taken",
                    next="The next start writes it again",
                    position=block * BLOCK_SIZE,
                )

    def _unreadable(self, path: str, first: Op, last: Op | None, flaw: str) -> Finding:
        file = self._file(path)
        if last is not None and last <= self.covered:
            meaning = f"the snapshot at op {self.covered:,} covers all its ops"
            helps = "The next start moves it to quarantine"
            return Finding(
                Severity.NOTE,
                "journal-header",
                file,
                flaw,
                meaning,
                next=helps,
                position=0,
                first_op=first,
                last_op=last,
            )
        is_revived = any(one.path == path for one in self.sight.revived)
        if is_revived:
            lost = "nothing: its frames tell its id, and --salvage reads them by that"
            rows: tuple[Rows, ...] = ()
        else:
            lost, rows = self.loss_of(first, last or OP_MAX)
        return Finding(
            Severity.DAMAGE,
            "journal-header",
            file,
            f"neither header block can be read: {flaw}",
            f"{_REFUSES}: the ops from {first:,} are out of its reach",
            lost,
            PUT_BACK_OR_SALVAGE,
            position=0,
            first_op=first,
            last_op=last or OP_MAX,
            rows=rows,
        )

    def _entries(self) -> Iterator[Finding]:
        for run in _runs(self.sight.scan.faulty):
            first, last = run[0], run[-1]
            lost, rows = self.loss_of(first.op, last.op)
            is_covered = last.op <= self.covered
            meaning = f"an entry that was acknowledged cannot be read, and {_REFUSES}"
            if is_covered:
                meaning = f"the snapshot at op {self.covered:,} stands above it"
                lost, rows = "nothing", ()
            yield Finding(
                Severity.NOTE if is_covered else Severity.DAMAGE,
                "journal-entry",
                self._file(first.path),
                flaw_text(first.flaw),
                meaning,
                lost,
                "" if is_covered else PUT_BACK_OR_SALVAGE,
                first.position,
                first.op,
                last.op,
                rows,
            )

    def _breaks_and_gaps(self) -> Iterator[Finding]:
        for broken in self.sight.scan.breaks:
            is_covered = broken.op <= self.covered
            yield Finding(
                Severity.NOTE if is_covered else Severity.DAMAGE,
                "chain-broken",
                self._file(broken.path),
                f"the entry does not follow the one before it: its parent should be "
                f"{broken.expected}, is {broken.found}",
                "a snapshot stands above it"
                if is_covered
                else f"what is behind it belongs to another log, and {_REFUSES}",
                "nothing" if is_covered else "what stood here before",
                "" if is_covered else f"Find out who wrote here. {PUT_BACK_OR_SALVAGE}",
                broken.position,
                broken.op,
            )
        for gap in self.sight.scan.gaps:
            yield self._gap(gap)
        for short in self.sight.scan.shorts:
            is_clean = self.sight.survey.is_clean
            yield Finding(
                Severity.NOTE if is_clean else Severity.DAMAGE,
                "journal-short",
                self._file(short.path),
                f"{short.found:,} bytes, where its header says {short.expected:,}",
                "the stop was clean, so the part that is gone was empty"
                if is_clean
                else f"no crash cuts a file short, and {_REFUSES}",
                "nothing" if is_clean else "not known: nothing tells what was in the rest",
                "The next start gives its empty part back" if is_clean else PUT_BACK_OR_SALVAGE,
                short.found,
            )

    def _gap(self, gap: Gap) -> Finding:
        is_covered = gap.last is not None and gap.last <= self.covered
        lost, rows = self.loss_of(gap.first, gap.last or OP_MAX)
        what, path = "its end is gone", gap.path
        if gap.is_file:
            what = "the file is gone"
            path = f"{self.sight.room.path}/{JOURNAL}/{file_name(gap.first)}"
        return Finding(
            Severity.NOTE if is_covered else Severity.DAMAGE,
            "journal-missing" if gap.is_file else "journal-end",
            self._file(path),
            what,
            f"the snapshot at op {self.covered:,} covers its ops"
            if is_covered
            else f"ops that were acknowledged are nowhere, and {_REFUSES}",
            "nothing" if is_covered else lost,
            "" if is_covered else PUT_BACK_OR_SALVAGE,
            first_op=gap.first,
            last_op=gap.last or OP_MAX,
            rows=() if is_covered else rows,
        )

    def _rubble(self) -> Iterator[Finding]:
        for one in self.sight.scan.rubble:
            yield Finding(
                Severity.NOTE,
                "rubble",
                self._file(one.path),
                flaw_text(one.flaw),
                "an end frame is bad or absent"
                if one.is_end
                else "bad bytes where no entry is: a mark, or the empty part of the file",
                next="The next start writes it again" if one.is_end else "",
                position=one.position,
            )

    def _tail(self) -> Iterator[Finding]:
        tail = self.sight.scan.ending
        if not isinstance(tail, TornTail):
            return
        path = self.sight.scan.files[tail.file].candidate.storage.path
        yield Finding(
            Severity.NOTE,
            "torn-tail",
            self._file(path),
            "an unfinished append at the end of the journal",
            "a process died while it was writing; nothing says that it was ever acknowledged",
            "nothing that was acknowledged",
            "The next start cuts it off",
            tail.position,
            tail.first,
            tail.last,
        )

    def _refusal(self, error: HeadraceError) -> Finding:
        """Say why a start refuses, where no finding before has said it."""
        path = str(getattr(error, "path", self.sight.room.path))
        position = error.position if isinstance(error, Corrupt) else None
        if isinstance(error, TooFewSlots):
            what = f"{count(error.live, 'op')} must stay reachable; node.toml has {error.slots}"
            helps = "Start with at least that many in journal.slots"
            return Finding(Severity.NOTE, "slots", self.where, what, _REFUSES, next=helps)
        return Finding(
            Severity.DAMAGE,
            "refused",
            self._file(path),
            cause_text(error),
            _REFUSES,
            "not known",
            PUT_BACK_OR_SALVAGE,
            position,
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


def _runs(faulty: Sequence[Faulty]) -> Iterator[list[Faulty]]:
    """Join ops that were lost together: only the first of them has a place."""
    run: list[Faulty] = []
    for one in faulty:
        if run and not (one.position is None and one.op == run[-1].op + 1):
            yield run
            run = []
        run.append(one)
    if run:
        yield run
