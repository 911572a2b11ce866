"""What was found in one group's journal files, in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.doctor.findings.finding import (
    NOTHING,
    PUT_BACK_OR_SALVAGE,
    Finding,
    Loss,
    Severity,
    damage,
)
from headrace.doctor.look.group_look import JOURNAL, GroupSight, flaw_text
from headrace.journal.journal_file import BLOCK_SIZE, file_name
from headrace.journal.recovery.scan_findings import Faulty, Gap, TornTail
from headrace.model.ids import OP_MAX, Op

LossOf = Callable[[Op, Op], Loss]  # what is lost with these ops

REFUSES = "a start of this group refuses"


@dataclass(slots=True)
class JournalWords:
    """Turns what a scan found into findings."""

    sight: GroupSight
    where: str  # of the group, relative to the data directory
    covered: Op  # the snapshot in use stands here: nothing at or below is needed any more
    loss_of: LossOf
    told: set[str]  # names of files of which is said already that they cannot be used

    def findings(self) -> list[Finding]:
        """Return all of them, in the order in which a start looks."""
        return [
            *self._headers(),
            *self._entries(),
            *self._breaks(),
            *self._gaps(),
            *self._shorts(),
            *self._rubble(),
            *self._tail(),
        ]

    def _file(self, path: str) -> str:
        return self.where + path.removeprefix(self.sight.room.path)

    def _headers(self) -> Iterator[Finding]:
        for lost in self.sight.survey.unreadable:
            self.told.add(lost.name)
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
        loss = Loss("nothing: its frames tell its id, and --salvage reads them by that")
        if not is_revived:
            loss = self.loss_of(first, last or OP_MAX)
        return damage(
            "journal-header",
            file,
            f"neither header block can be read: {flaw}",
            f"{REFUSES}: the ops from {first:,} are out of its reach",
            loss,
            PUT_BACK_OR_SALVAGE,
            position=0,
            first_op=first,
            last_op=last or OP_MAX,
        )

    def _entries(self) -> Iterator[Finding]:
        for run in _runs(self.sight.scan.faulty):
            first, last = run[0], run[-1]
            is_covered = last.op <= self.covered
            yield damage(
                "journal-entry",
                self._file(first.path),
                flaw_text(first.flaw),
                f"the snapshot at op {self.covered:,} stands above it"
                if is_covered
                else f"an entry that was acknowledged cannot be read, and {REFUSES}",
                NOTHING if is_covered else self.loss_of(first.op, last.op),
                "" if is_covered else PUT_BACK_OR_SALVAGE,
                severity=Severity.NOTE if is_covered else Severity.DAMAGE,
                position=first.position,
                first_op=first.op,
                last_op=last.op,
            )

    def _breaks(self) -> Iterator[Finding]:
        for broken in self.sight.scan.breaks:
            is_covered = broken.op <= self.covered
            yield damage(
                "chain-broken",
                self._file(broken.path),
                f"the entry does not follow the one before it: its parent should be "
                f"{broken.expected}, is {broken.found}",
                "a snapshot stands above it"
                if is_covered
                else f"what is behind it belongs to another log, and {REFUSES}",
                NOTHING if is_covered else Loss("what stood here before", is_counted=False),
                "" if is_covered else f"Find out who wrote here. {PUT_BACK_OR_SALVAGE}",
                severity=Severity.NOTE if is_covered else Severity.DAMAGE,
                position=broken.position,
                first_op=broken.op,
            )

    def _gaps(self) -> Iterator[Finding]:
        for gap in self.sight.scan.gaps:
            if not (gap.is_file and file_name(gap.first) in self.told):
                yield self._gap(gap)

    def _shorts(self) -> Iterator[Finding]:
        unknown = Loss("not known: nothing tells what was in the rest", is_counted=False)
        for short in self.sight.scan.shorts:
            is_clean = self.sight.survey.is_clean
            yield damage(
                "journal-short",
                self._file(short.path),
                f"{short.found:,} bytes, where its header says {short.expected:,}",
                "the stop was clean, so the part that is gone was empty"
                if is_clean
                else f"no crash cuts a file short, and {REFUSES}",
                NOTHING if is_clean else unknown,
                "The next start gives its empty part back" if is_clean else PUT_BACK_OR_SALVAGE,
                severity=Severity.NOTE if is_clean else Severity.DAMAGE,
                position=short.found,
            )

    def _gap(self, gap: Gap) -> Finding:
        is_covered = gap.last is not None and gap.last <= self.covered
        what, path = "its end is gone", gap.path
        if gap.is_file:
            what = "the file is gone"
            path = f"{self.sight.room.path}/{JOURNAL}/{file_name(gap.first)}"
        return damage(
            "journal-missing" if gap.is_file else "journal-end",
            self._file(path),
            what,
            f"the snapshot at op {self.covered:,} covers its ops"
            if is_covered
            else f"ops that were acknowledged are nowhere, and {REFUSES}",
            NOTHING if is_covered else self.loss_of(gap.first, gap.last or OP_MAX),
            "" if is_covered else PUT_BACK_OR_SALVAGE,
            severity=Severity.NOTE if is_covered else Severity.DAMAGE,
            first_op=gap.first,
            last_op=gap.last or OP_MAX,
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
