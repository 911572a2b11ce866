"""What a recovery found and did, as one value for tests and people."""

from dataclasses import dataclass, field

from headrace.journal.recovery.scan_findings import Faulty
from headrace.model.ids import OP_MAX, Op


@dataclass(frozen=True, slots=True)
class TailCut:
    """Ops removed from the end: an unfinished commit group, or the rest of an earlier cut."""

    first: Op
    last: Op
    path: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something bad that cost nothing. `mended` if it was repaired."""

    path: str
    position: int | None
    what: str
    mended: bool


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """One recovery. Equal reports mean equal findings, however long they took."""

    is_new: bool = False  # the group was created by this call
    was_clean: bool = False  # the last stop was clean
    snapshot_op: Op = Op(0)  # the snapshot in use, 0 if the log was replayed from its start
    fell_back: bool = False  # a newer snapshot existed and could not be used
    file_count: int = 0
    head: Op = Op(0)
    replayed: int = 0
    rewritten: int = 0  # frames above the proven ones, rewritten before being trusted
    cut: TailCut | None = None
    suspect: tuple[Op, Op] | None = None
    faulty: tuple[Faulty, ...] = ()  # below the snapshot in use, or waiting for repair
    problem: str | None = None  # cluster: what was lost; catch up before voting
    superblock_rebuilt: bool = False
    is_recovering: bool = False  # cluster: its promises are unknown; it must not vote yet
    notes: tuple[Note, ...] = ()
    quarantined: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def lines(self) -> list[str]:
        """Return the report in words, one finding per line."""
        if self.is_new:
            return ["created a new group"]
        start = (
            f"snapshot at op {self.snapshot_op}" if self.snapshot_op else "no snapshot needed"
        )
        stop = "after a clean stop" if self.was_clean else "after an unclean stop"
        found = [
            f"recovered {stop}: {start}, {self.replayed} ops replayed, head is op {self.head}"
        ]
        if self.fell_back:
            found.append("the newest snapshot was unusable: fell back to the previous one")
        if self.superblock_rebuilt:
            found.append("no superblock was readable: rebuilt from snapshot and journal")
        if self.cut is not None:
            last = "the end" if self.cut.last == OP_MAX else f"op {self.cut.last}"
            found.append(f"cut the unfinished tail, from op {self.cut.first} to {last}")
        if self.rewritten:
            frames = "1 frame" if self.rewritten == 1 else f"{self.rewritten} frames"
            found.append(f"rewrote {frames} before trusting the scan")
        if self.problem is not None:
            found.append(f"must catch up before it votes: {self.problem}")
        found += [
            f"op {one.op} is damaged: {one.flaw.what} ({one.path})" for one in self.faulty
        ]
        found += [
            f"{note.path}: {note.what}{' (repaired)' if note.mended else ''}"
            for note in self.notes
        ]
        return found + [f"moved to quarantine: {path}" for path in self.quarantined]
