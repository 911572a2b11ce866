"""What `headrace doctor` prints for people: findings in words, groups in figures."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from headrace.cli.output import console, print_table
from headrace.doctor.account import Account, PartitionAccount
from headrace.doctor.examine import Examination, GroupSummary
from headrace.doctor.finding import Finding, Severity, count, offsets

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
