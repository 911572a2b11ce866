"""`headrace doctor`: report what is wrong with a log, and salvage its rows into a new one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.output import (
    Json,
    console,
    print_json,
    print_table,
    say,
    words,
)
from headrace.doctor.examine import Examination, GroupSummary, Tell, examine, say_nothing
from headrace.doctor.findings.finding import Finding, Severity, count, offsets
from headrace.doctor.salvage.salvage import salvage as bring_over
from headrace.doctor.salvage.salvage_report import Account, PartitionAccount

_OK = "green"
_COLOURS = {Severity.NOTE: "yellow", Severity.DAMAGE: "bold red"}
_SHOWN_MAX = 20  # ranges of one partition in a table; salvage.json has them all


def print_examination(found: Examination) -> None:
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
    colour = _COLOURS[Severity.DAMAGE] if found.damage else _OK
    screen.print(Text(_verdict(found), style=colour))


def _in_words(one: Finding) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    colour = _COLOURS[one.severity]
    table.add_row(Text(str(one.severity), style=colour), Text(one.where, style="bold"))
    lines = (("what", one.what), ("means", one.means), ("lost", one.lost), ("next", one.next))
    for label, text in lines:
        if text:
            table.add_row(Text(label, style="dim"), Text(text))
    return table


def _line(one: GroupSummary) -> tuple[str, ...]:
    figures = (
        *(one.head, one.snapshot_op, one.journal_files, one.carry_files),
        *(one.segments, one.partitions, one.rows),
    )
    return (str(one.group), *(f"{each:,}" for each in figures), one.start)


def _verdict(found: Examination) -> str:
    notes = f", {count(len(found.notes), 'note')}" if found.notes else ""
    if found.damage:
        opening = f"Damage in {count(len(found.damage), 'place')}"
    elif found.unread_files:
        opening = "No damage in the journal, headers and tables"
    else:
        opening = "No damage"
    return f"{opening}{notes}: {found.path}. {_depth(found)}. Nothing was changed."


def _depth(found: Examination) -> str:
    """Say what was checked, and what was not."""
    if found.deep:
        return (
            f"Every byte was checked in {found.seconds:.1f} s "
            f"({found.checked_bytes:,} in segments and carry files)"
        )
    if not found.unread_files:
        return (
            f"Everything was checked in {found.seconds:.1f} s: no segments or carry files exist"
        )
    unread = count(found.unread_files, "segment or carry file", "segments and carry files")
    said = f"The rows in {unread} were NOT read: --deep checks them"
    return f"Checked in {found.seconds:.1f} s. {said}"


def print_salvage(account: Account) -> None:
    """Print how old rows map to new ones, and what is missing."""
    lines = []
    for one in account.partitions:
        lines += _partition_lines(one)
    print_table(("topic", "partition", "old rows", "new rows", ""), lines)
    screen = console()
    screen.print()
    for said in account.lost:
        screen.print(Text(f"Lost: {said}.", style="bold red"))
    for said in account.notes:
        screen.print(Text(f"{said[0].upper()}{said[1:]}.", style="yellow"))
    colour = _OK if account.is_whole else _COLOURS[Severity.DAMAGE]
    rows = count(account.rows, "row")
    text = f"{rows} in {account.new_path}, each read back and compared; {_outcome(account)}."
    screen.print(Text(text, style=colour))


def _outcome(account: Account) -> str:
    """Say in one clause what is missing; "no row" only if nothing is lost."""
    if account.is_whole:
        return "no row missing"
    if not account.missing_rows:
        return "see above for what is lost"
    missing = f"{count(account.missing_rows, 'row')} missing"
    return f"{missing}; see above for what else is lost" if account.lost else missing


def _homes(one: PartitionAccount) -> str:
    """Say from which files a partition was rebuilt."""
    names = {"segments": "segments", "carry": "carry files", "journal": "the journal"}
    found = [
        f"{one.homes[key]:,} from {name}" for key, name in names.items() if key in one.homes
    ]
    return ", ".join(found)


def _partition_lines(one: PartitionAccount) -> list[tuple[str, ...]]:
    """Return one line per range, in the order of the old log."""
    name = (one.topic, str(one.partition))
    found: list[tuple[int, tuple[str, ...]]] = []
    for each in one.ranges:
        old = offsets(each.old_start, each.old_end)
        new = offsets(each.new_start, each.new_end)
        about = "" if each.exact else "old offsets are lower bounds"
        found.append((each.old_start, (*name, old, new, about)))
    found += [
        (gone.start, (*name, offsets(gone.start, gone.end), "missing", gone.why))
        for gone in one.missing
    ]
    if not found:
        return [(*name, "none", "none", "")]
    lines = [line for _, line in sorted(found)]
    if one.rebuilt:
        said = "; ".join(text for text in (lines[0][-1], _homes(one)) if text)
        lines[0] = (*lines[0][:-1], said)
    if len(lines) > _SHOWN_MAX:
        more = f"and {len(lines) - _SHOWN_MAX:,} more ranges, in salvage.json"
        lines = [*lines[:_SHOWN_MAX], (*name, more, "", "")]
    return lines


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", readable=False, help="The data directory to check."),
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
            help="Create a new log there with every row of DIR that can be read and proven.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a log's files and report what is wrong, what it means and what to do.

    Changes nothing in DIR; a process may keep using it. Checks the journal, all headers and all
    tables; --deep also reads every byte of segments and carry files. Exits with 0 if there is
    no damage (notes are harmless) and with 6 if there is.

    With --salvage, DIR must not be in use and stays unchanged; NEW_DIR must be new or empty. It
    receives all topics, schemas, settings, consumer groups' cursors and rows that can be
    proven, and salvage.json, which maps old rows to new ones and lists the missing ones. If
    interrupted, run it again: it starts from scratch. Exits with 6 if anything could not be
    salvaged.

    Examples:

        headrace doctor ./data

        headrace doctor ./data --deep --json | jq '.findings[].where'

        headrace doctor ./data --salvage ./data-new
    """
    if not directory.is_dir():
        raise NotFound(
            f"{str(directory)!r} does not exist", hint="Give a node's data directory"
        )
    if salvage is not None:
        _salvage(directory, salvage, as_json=as_json)
    with _progress(quiet=as_json) as tell:
        found = examine(str(directory), deep=deep, tell=tell)
    if found is None:
        raise NotFound(
            f"{directory} holds no log", hint="Give the directory that `headrace serve` uses"
        )
    if as_json:
        print_json(found)
    else:
        if found.held:
            say(f"Process {found.holder_pid} uses {directory}: the numbers may change.")
        print_examination(found)
    raise typer.Exit(Exit.INTEGRITY if found.damage else Exit.OK)


def _salvage(directory: Path, new: Path, *, as_json: bool) -> NoReturn:
    with _progress(quiet=as_json) as tell:
        account = bring_over(str(directory), str(new), tell=tell)
    if as_json:
        print_json(account)
    else:
        print_salvage(account)
    raise typer.Exit(Exit.OK if account.is_whole else Exit.INTEGRITY)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """Show the progress of long work on a terminal."""
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
