"""Findings about one group's journal files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.doctor.findings.finding import NOTHING, Finding, Loss
from headrace.doctor.findings.words import finding
from headrace.doctor.look.group_look import JOURNAL, GroupSight, flaw_text
from headrace.journal.journal_file import BLOCK_SIZE, file_name
from headrace.journal.recovery.scan_findings import Faulty, TornTail
from headrace.model.ids import OP_MAX, Op

LossOf = Callable[[Op, Op], Loss]  # what is lost with these ops

_REVIVED = Loss("nothing: its frames still carry its file ID, so --salvage reads them")


@dataclass(slots=True)
class JournalWords:
    """Turns the result of a scan into findings."""

    sight: GroupSight
    where: str  # of the group, relative to the data directory
    covered: Op  # the op of the snapshot in use: nothing at or below is needed anymore
    loss_of: LossOf
    told: set[str]  # names of files already reported as unusable

    def findings(self) -> list[Finding]:
        """Return all findings, in the order in which a start checks."""
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
            revived = any(one.path == lost.path for one in self.sight.revived)
            yield self._needed(
                "journal-header",
                lost.path,
                (lost.first, lost.last),
                _REVIVED if revived else None,
                position=0,
                what=flaw_text(lost.flaw),
            )
        for file in self.sight.survey.scan.files:
            for block in file.candidate.bad_blocks:
                path = self._file(file.candidate.storage.path)
                position = block * BLOCK_SIZE
                yield finding("header-block", path, position=position, block=block + 1)

    def _entries(self) -> Iterator[Finding]:
        for run in _runs(self.sight.scan.faulty):
            first, place = run[0], (run[0].op, run[-1].op)
            what = flaw_text(first.flaw)
            yield self._needed(
                "journal-entry", first.path, place, position=first.position, what=what
            )

    def _breaks(self) -> Iterator[Finding]:
        for one in self.sight.scan.breaks:
            yield self._needed(
                "chain-broken",
                one.path,
                (one.op, one.op),
                Loss("the entries that were here before", is_counted=False),
                position=one.position,
                expected=one.expected,
                found=one.found,
            )

    def _gaps(self) -> Iterator[Finding]:
        for gap in self.sight.scan.gaps:
            name, place = file_name(gap.first), (gap.first, gap.last)
            if not gap.is_file:
                yield self._needed("journal-end", gap.path, place)
            elif name not in self.told:
                path = f"{self.sight.room.path}/{JOURNAL}/{name}"
                yield self._needed("journal-missing", path, place)

    def _needed(
        self,
        kind: str,
        path: str,
        place: tuple[Op, Op | None],
        loss: Loss | None = None,
        *,
        position: int | None = None,
        **blanks: object,
    ) -> Finding:
        """Report ops that cannot be read: a note where a snapshot covers them."""
        first, last = place
        case, ending = kind, last or OP_MAX
        if last is not None and last <= self.covered:
            case, loss = f"{kind}: covered", NOTHING
        return finding(
            case,
            self._file(path),
            loss=self.loss_of(first, ending) if loss is None else loss,
            position=position,
            first_op=first,
            last_op=ending,
            covered=self.covered,
            **blanks,
        )

    def _shorts(self) -> Iterator[Finding]:
        is_clean = self.sight.survey.is_clean
        unknown = Loss("unknown: no record of what was in the rest", is_counted=False)
        for short in self.sight.scan.shorts:
            yield finding(
                "journal-short: clean" if is_clean else "journal-short",
                self._file(short.path),
                loss=NOTHING if is_clean else unknown,
                position=short.found,
                size=short.found,
                expected=short.expected,
            )

    def _rubble(self) -> Iterator[Finding]:
        for one in self.sight.scan.rubble:
            case, what = "rubble: end" if one.is_end else "rubble", flaw_text(one.flaw)
            yield finding(case, self._file(one.path), position=one.position, what=what)

    def _tail(self) -> Iterator[Finding]:
        tail = self.sight.scan.ending
        if isinstance(tail, TornTail):
            yield finding(
                "torn-tail",
                self._file(self.sight.scan.files[tail.file].candidate.storage.path),
                loss=Loss("nothing that was acknowledged"),
                position=tail.position,
                first_op=tail.first,
                last_op=tail.last,
            )


def _runs(faulty: Sequence[Faulty]) -> Iterator[list[Faulty]]:
    """Join ops that were lost together: only the first of them has a position."""
    run: list[Faulty] = []
    for one in faulty:
        if run and not (one.position is None and one.op == run[-1].op + 1):
            yield run
            run = []
        run.append(one)
    if run:
        yield run
