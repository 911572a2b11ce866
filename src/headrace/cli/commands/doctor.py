"""`headrace doctor`: say what is wrong with a log, and bring its rows into a new one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.output import (
    Json,
    JsonShape,
    console,
    print_json,
    print_table,
    say,
    words,
)
from headrace.doctor.examine import Examination, GroupSummary, Tell, examine, say_nothing
from headrace.doctor.findings.finding import Finding, Severity, count, offsets
from headrace.doctor.salvage.salvage import salvage as bring_over
from headrace.doctor.salvage.salvage_report import Account, MovedRange, PartitionAccount
from headrace.model.ids import OP_MAX


class RowsShape(JsonShape, frozen=True):
    """Rows of one partition, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int


class FindingShape(JsonShape, frozen=True):
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


class GroupShape(JsonShape, frozen=True):
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


class DoctorShape(JsonShape, frozen=True):
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


class RangeShape(JsonShape, frozen=True):
    """Old rows and what they became. Not exact: the old offsets are the least they can be."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int
    exact: bool


class MissingShape(JsonShape, frozen=True):
    """Old rows that could not be brought over."""

    start: int
    end: int
    why: str


class CursorShape(JsonShape, frozen=True):
    """A consumer group's next offset, before and after."""

    group: str
    old_next: int
    new_next: int


class PartitionShape(JsonShape, frozen=True):
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


class SalvageShape(JsonShape, frozen=True):
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


def _range(one: MovedRange) -> RangeShape:
    return RangeShape(
        old_start=one.old_start,
        old_end=one.old_end,
        new_start=one.new_start,
        new_end=one.new_end,
        exact=one.is_exact,
    )


_COLOURS = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.DAMAGE: "bold red"}
_SHOWN_MAX = 20  # ranges of one partition in a table; salvage.json has them all


def print_examination(found: Examination, directory: Path) -> None:
    """Print findings, damage first, then figures, then the verdict."""
    screen = console()
    for one in (*found.damage, *found.notes):
        screen.print(_in_words(one))
        screen.print()
    heads = (
        *("group", "head", "snapshot", "journal", "carry", "segments", "partitions", "rows"),
        "a start",
    )
    print_table(heads, [_line(one) for one in found.groups])
    screen.print()
    colour = _COLOURS[Severity.DAMAGE if found.damage else Severity.OK]
    screen.print(Text(_verdict(found, directory), style=colour))


def _in_words(one: Finding) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    colour = _COLOURS[one.severity]
    table.add_row(Text(str(one.severity), style=colour), Text(one.where, style="bold"))
    lines = (("what", one.what), ("means", one.meaning), ("lost", one.lost), ("next", one.next))
    for label, text in lines:
        if text:
            table.add_row(Text(label, style="dim"), Text(text))
    return table


def _line(one: GroupSummary) -> tuple[str, ...]:
    figures = (one.carry_count, one.segment_count, one.partition_count, one.row_count)
    return (
        str(one.number),
        f"{one.head:,}",
        f"{one.snapshot_op:,}",
        f"{one.journal_count:,}",
        *(f"{each:,}" for each in figures),
        one.start,
    )


def _verdict(found: Examination, directory: Path) -> str:
    notes = f", {count(len(found.notes), 'note')}" if found.notes else ""
    if found.damage:
        opening = f"Damage in {count(len(found.damage), 'place')}"
    elif found.unread_count:
        opening = "No damage in the journal, headers and tables"
    else:
        opening = "No damage"
    return f"{opening}{notes}: {directory}. {_depth(found)}. Nothing was changed."


def _depth(found: Examination) -> str:
    """Say what was looked at, and what was not."""
    if found.is_deep:
        return (
            f"Every byte was checked in {found.seconds:.1f} s "
            f"({found.checked_size:,} in segments and carry files)"
        )
    if not found.unread_count:
        return (
            f"All of it was checked in {found.seconds:.1f} s: there is no segment or carry file"
        )
    unread = count(found.unread_count, "segment or carry file", "segments and carry files")
    said = f"The rows in {unread} were NOT read: --deep checks them"
    return f"Checked in {found.seconds:.1f} s. {said}"


def print_salvage(account: Account, new: Path) -> None:
    """Print which old rows are which new ones, and what is missing."""
    lines = []
    for one in account.partitions:
        lines += _partition_lines(one)
    print_table(("topic", "partition", "old rows", "new rows", ""), lines)
    screen = console()
    screen.print()
    for said in account.lost:
        screen.print(Text(f"Lost: {said}.", style="bold red"))
    for said in account.words:
        screen.print(Text(f"{said[0].upper()}{said[1:]}.", style="yellow"))
    colour = _COLOURS[Severity.OK if account.is_whole else Severity.DAMAGE]
    rows = count(account.row_count, "row")
    text = f"{rows} in {new}, each read back and compared; {_outcome(account)}."
    screen.print(Text(text, style=colour))


def _outcome(account: Account) -> str:
    """Say in one clause what is missing; "no row" only where nothing is lost."""
    if account.is_whole:
        return "no row missing"
    if not account.missing_count:
        return "what is lost is said above"
    missing = f"{count(account.missing_count, 'row')} missing"
    return f"{missing}, and what is said above" if account.lost else missing


def _homes(one: PartitionAccount) -> str:
    """Say from which files a partition was put together."""
    names = {"segments": "segments", "carry": "carry files", "journal": "the journal"}
    found = [
        f"{one.homes[key]:,} from {name}" for key, name in names.items() if key in one.homes
    ]
    return ", ".join(found)


def _partition_lines(one: PartitionAccount) -> list[tuple[str, ...]]:
    """Return a line for each range, in the order of the old log."""
    name = (one.topic, str(one.partition))
    found: list[tuple[int, tuple[str, ...]]] = []
    for each in one.ranges:
        old = offsets(each.old_start, each.old_end)
        new = offsets(each.new_start, each.new_end)
        about = "" if each.is_exact else "old offsets are the least they can be"
        found.append((each.old_start, (*name, old, new, about)))
    found += [
        (gone.start, (*name, offsets(gone.start, gone.end), "missing", gone.why))
        for gone in one.missing
    ]
    if not found:
        return [(*name, "none", "none", "")]
    lines = [line for _, line in sorted(found)]
    if one.is_rebuilt:
        said = "; ".join(text for text in (lines[0][-1], _homes(one)) if text)
        lines[0] = (*lines[0][:-1], said)
    if len(lines) > _SHOWN_MAX:
        more = f"and {len(lines) - _SHOWN_MAX:,} more ranges, in salvage.json"
        lines = [*lines[:_SHOWN_MAX], (*name, more, "", "")]
    return lines


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("doctor")(doctor)


def doctor(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", readable=False, help="The data directory to look at."),
    ],
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Check every byte, in several processes."),
    ] = False,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage",
            metavar="NEW_DIR",
            file_okay=False,
            help="Make a new log there, with every row of DIR that can be read and proven.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at a log's files and say what is wrong, what that means, and what can be done.

    Nothing in DIR is changed, and a process may go on using it. The journal, all headers and
    all tables are checked; --deep also reads every byte of segments and carry files. Exits with
    0 if there is no damage (notes do no harm) and with 6 if there is.

    With --salvage, DIR must not be in use and stays as it is; NEW_DIR must be new or empty. It
    gets all topics, schemas, settings, consumer groups' cursors and rows that can be proven,
    and salvage.json, which says which old rows are which new ones and which are missing. If it
    is interrupted, run it again: it begins anew. Exits with 6 if something could not be
    brought over.

    Examples:

        headrace doctor ./data

        headrace doctor ./data --deep --json | jq '.findings[].where'

        headrace doctor ./data --salvage ./data-new
    """
    if not directory.is_dir():
        raise NotFound(f"{str(directory)!r} is not there", hint="Name a node's data directory")
    if salvage is not None:
        with _progress(quiet=as_json) as tell:
            account = bring_over(str(directory), str(salvage), tell=tell)
        if as_json:
            print_json(salvage_report_of(account, directory, salvage))
        else:
            print_salvage(account, salvage)
        raise typer.Exit(Exit.OK if account.is_whole else Exit.INTEGRITY)
    with _progress(quiet=as_json) as tell:
        found = examine(str(directory), deep=deep, tell=tell)
    _require_log(found, directory)
    if as_json:
        print_json(report_of(found, directory))
    else:
        if found.who.holder.is_held:
            say(f"Process {found.who.holder.pid} uses {directory}: figures may move.")
        print_examination(found, directory)
    raise typer.Exit(Exit.INTEGRITY if found.damage else Exit.OK)


def _require_log(found: Examination, directory: Path) -> None:
    if found.cluster is None:
        raise NotFound(
            f"{directory} holds no log", hint="Name the directory that `headrace serve` has"
        )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """Show how far long work is, to a person who watches."""
    console = words()
    if quiet or not console.is_terminal:
        yield say_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield tell
