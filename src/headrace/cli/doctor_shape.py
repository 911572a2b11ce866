"""What `headrace doctor --json` prints, for a look and for a salvage."""

from pathlib import Path

from headrace.cli.output import Shape
from headrace.doctor.account import Account, PartitionAccount, Range
from headrace.doctor.examine import Examination, GroupSummary
from headrace.doctor.finding import Finding
from headrace.model.ids import OP_MAX


class RowsShape(Shape, frozen=True):
    """Rows of one partition, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int


class FindingShape(Shape, frozen=True):
    """One finding. `last_op` is null if nobody knows how far it reached."""

    severity: str
    kind: str
    file: str
    position: int | None
    first_op: int | None
    last_op: int | None
    where: str
    what: str
    means: str
    lost: str
    lost_rows: list[RowsShape]
    next: str


class GroupShape(Shape, frozen=True):
    """One group. Group 0 is the metadata; the others carry partitions."""

    group: int
    head: int
    snapshot_op: int
    journal_files: int
    partitions: int
    rows: int
    segments: int
    carry_files: int
    start: str


class DoctorShape(Shape, frozen=True):
    """What the doctor found. Without --deep, rows in `unread_files` were not looked at."""

    path: str
    cluster: str
    held: bool
    holder_pid: int | None
    deep: bool
    damage: int
    notes: int
    findings: list[FindingShape]
    groups: list[GroupShape]
    checked_bytes: int
    unread_files: int
    seconds: float


class RangeShape(Shape, frozen=True):
    """Old rows and what they became. Not exact: the old offsets are the least they can be."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int
    exact: bool


class MissingShape(Shape, frozen=True):
    """Old rows that could not be brought over."""

    start: int
    end: int
    why: str


class CursorShape(Shape, frozen=True):
    """A consumer group's next offset, before and after."""

    group: str
    old_next: int
    new_next: int


class PartitionShape(Shape, frozen=True):
    """One partition of the new log."""

    topic: str
    partition: int
    rows: int
    old_first: int
    old_end: int
    ranges: list[RangeShape]
    missing: list[MissingShape]
    cursors: list[CursorShape]
    unsure_from: int | None


class SalvageShape(Shape, frozen=True):
    """What a salvage brought over."""

    path: str
    new_path: str
    cluster: str
    new_cluster: str
    rows: int
    missing_rows: int
    partitions: list[PartitionShape]
    lost: list[str]
    notes: list[str]


def report_of(found: Examination, directory: Path) -> DoctorShape:
    """Return an examination as one object."""
    assert found.cluster is not None
    return DoctorShape(
        path=str(directory),
        cluster=found.cluster.identity.cluster.hex(),
        held=found.who.holder.is_held,
        holder_pid=found.who.holder.pid if found.who.holder.is_held else None,
        deep=found.is_deep,
        damage=len(found.damage),
        notes=len(found.notes),
        findings=[_finding(one) for one in found.findings],
        groups=[_group(one) for one in found.groups],
        checked_bytes=found.checked_size,
        unread_files=found.unread_count,
        seconds=round(found.seconds, 3),
    )


def _finding(one: Finding) -> FindingShape:
    return FindingShape(
        severity=str(one.severity),
        kind=one.kind,
        file=one.file,
        position=one.position,
        first_op=one.first_op,
        last_op=None if one.last_op == OP_MAX else one.last_op or one.first_op,
        where=one.where,
        what=one.what,
        means=one.meaning,
        lost=one.lost,
        lost_rows=[
            RowsShape(
                topic=each.topic, partition=each.partition, start=each.start, end=each.end
            )
            for each in one.rows
        ],
        next=one.next,
    )


def _group(one: GroupSummary) -> GroupShape:
    return GroupShape(
        group=one.number,
        head=one.head,
        snapshot_op=one.snapshot_op,
        journal_files=one.journal_count,
        partitions=one.partition_count,
        rows=one.row_count,
        segments=one.segment_count,
        carry_files=one.carry_count,
        start=one.start,
    )


def salvage_report_of(account: Account, directory: Path, new: Path) -> SalvageShape:
    """Return the account of a salvage as one object."""
    return SalvageShape(
        path=str(directory),
        new_path=str(new),
        cluster=account.source_cluster,
        new_cluster=account.cluster,
        rows=account.row_count,
        missing_rows=account.missing_count,
        partitions=[_partition(one) for one in account.partitions],
        lost=account.lost,
        notes=account.words,
    )


def _partition(one: PartitionAccount) -> PartitionShape:
    return PartitionShape(
        topic=one.topic,
        partition=one.partition,
        rows=one.rows,
        old_first=one.first,
        old_end=one.end,
        ranges=[_range(each) for each in one.ranges],
        missing=[
            MissingShape(start=each.start, end=each.end, why=each.why) for each in one.missing
        ],
        cursors=[
            CursorShape(group=each.group, old_next=each.old_next, new_next=each.new_next)
            for each in one.cursors
        ],
        unsure_from=one.unsure_from,
    )


def _range(one: Range) -> RangeShape:
    return RangeShape(
        old_start=one.old_start,
        old_end=one.old_end,
        new_start=one.new_start,
        new_end=one.new_end,
        exact=one.is_exact,
    )
