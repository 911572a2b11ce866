"""`headrace inspect`: show one file of a log, field by field and row by row."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.output import Json, JsonShape, console, print_json, print_table
from headrace.doctor.anatomy.file_anatomy import Anatomy, Cell, kind_of, shown
from headrace.doctor.anatomy.journal_anatomy import journal_anatomy
from headrace.doctor.anatomy.segment_anatomy import segment_anatomy
from headrace.doctor.anatomy.state_anatomy import (
    carry_anatomy,
    snapshot_anatomy,
    superblock_anatomy,
)
from headrace.errors import BadRequest, ReadFailed

_HEX = re.compile("[0-9a-f]{32}")
_RARELY_READ = frozenset({"checksum", "created", "commit", "durable", "size"})
_HEADS_MAX = 8  # a table with more columns is narrowed on a terminal
_WIDTH_OF_ALL = 150  # characters that all columns of a journal's frames take
LIMIT = 50  # rows of a table: a screen or two

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file; it is only read.")]
Limit = Annotated[int, typer.Option(min=0, help="Rows to show of each table; 0 shows all.")]

inspect = typer.Typer(
    name="inspect",
    help="Show one file of a log as text and tables, even if it is damaged.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class TableShape(JsonShape, frozen=True):
    """Rows of one kind, each an object; `left_out` counts the rows not shown."""

    title: str
    rows: list[dict[str, Cell]]
    left_out: int


class FlawShape(JsonShape, frozen=True):
    """Something wrong in the file."""

    position: int | None
    what: str


class FileShape(JsonShape, frozen=True):
    """One file."""

    path: str
    kind: str
    size: int
    fields: dict[str, Cell]
    tables: list[TableShape]
    flaws: list[FlawShape]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(inspect)


@inspect.command("journal")
def journal(file: File, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show a journal file (*.wal): header blocks, and each frame with its op and state.

    Frames after a bad one are found and shown. Exits with 6 if anything in the file is bad.

    Examples:

        headrace inspect journal data/groups/00001/journal/00000000000000000001.wal

        headrace inspect journal FILE.wal --limit 0 --json | jq '.tables[0].rows[].op'

        headrace inspect journal data/groups/00001/quarantine/FILE.wal
    """
    _show("journal", journal_anatomy, file, limit, as_json)


@inspect.command("snapshot")
def snapshot(file: File, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show a snapshot (*.snap): its header, and topics or partitions of the state in it.

    Examples:

        headrace inspect snapshot data/groups/00000/snapshots/00000000000000000100.snap

        headrace inspect snapshot FILE.snap --limit 5

        headrace inspect snapshot FILE.snap --json | jq '.fields.op'
    """
    _show("snapshot", snapshot_anatomy, file, limit, as_json)


@inspect.command("segment")
def segment(file: File, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show a segment (*.parquet): its metadata, its columns, and the state of its row groups.

    Every page is read and checked, and the row digest is compared.

    Examples:

        headrace inspect segment data/groups/00001/segments/FILE.parquet

        headrace inspect segment FILE.parquet --limit 3

        headrace inspect segment FILE.parquet --json | jq '.flaws'
    """
    _show("segment", segment_anatomy, file, limit, as_json)


@inspect.command("superblock")
def superblock(file: File, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show one copy of a superblock: the identity of its directory, and its checkpoint.

    Examples:

        headrace inspect superblock data/groups/00001/superblock.a

        headrace inspect superblock data/groups/00000/superblock.b

        headrace inspect superblock data/groups/00001/superblock.a --json | jq '.fields'
    """
    _show("superblock", superblock_anatomy, file, limit, as_json)


@inspect.command("carry")
def carry(file: File, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show a carry file (*.carry): its index, and each entry with its state.

    If the index is unreadable, the intact entries are found and shown.

    Examples:

        headrace inspect carry data/groups/00001/carry/00000000000000000100.carry

        headrace inspect carry FILE.carry --limit 0

        headrace inspect carry FILE.carry --json | jq '.flaws'
    """
    _show("carry", carry_anatomy, file, limit, as_json)


def _show(
    kind: str, look: Callable[[str, int], Anatomy], path: Path, limit: int, as_json: bool
) -> None:
    if not path.is_file():
        raise NotFound(f"{path} is not a file", hint="Give a file of a data directory")
    try:
        own = kind_of(str(path))
        if own is not None and own != kind:
            hint = f"Use `headrace inspect {own} {path}`"
            raise BadRequest(f"{path} is a {own} file, not a {kind} file", hint=hint)
        found = look(str(path), limit)
    except OSError as error:
        raise ReadFailed(str(path), error) from error
    if as_json:
        print_json(_shape(found, path))
    else:
        _print(found, path)
    raise typer.Exit(Exit.INTEGRITY if found.flaws else Exit.OK)


def _shape(found: Anatomy, path: Path) -> FileShape:
    return FileShape(
        path=str(path),
        kind=found.kind,
        size=found.size,
        fields={_key(name): value for name, value in found.fields.items()},
        tables=[
            TableShape(
                title=_key(one.title),
                rows=[dict(zip(map(_key, one.heads), row, strict=True)) for row in one.rows],
                left_out=one.left_out,
            )
            for one in found.tables
        ],
        flaws=[FlawShape(position=one.position, what=one.what) for one in found.flaws],
    )


def _key(name: str) -> str:
    return name.replace(" ", "_")


def _fields(found: Anatomy) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in found.fields.items():
        grid.add_row(Text(name, style="dim"), Text(*shown([value])))
    return grid


def _kept(heads: tuple[str, ...], width: int) -> list[int]:
    """Return the columns that fit on the terminal; a pipe gets all of them."""
    is_wide = width >= _WIDTH_OF_ALL or len(heads) <= _HEADS_MAX
    return [place for place, head in enumerate(heads) if is_wide or head not in _RARELY_READ]


def _short(cells: list[str], heads: list[str]) -> list[str]:
    """Shorten hex values, and states that are explained below; --json has them in full."""
    cut = [f"{one[:12]}…" if _HEX.fullmatch(one) else one for one in cells]
    is_told_below = heads[-1] == "state" and not cut[-1].startswith("ok")
    return [*cut[:-1], "bad, see below"] if is_told_below else cut


def _print(found: Anatomy, path: Path) -> None:
    screen = console()
    screen.print(Text(f"{found.kind} {path}, {found.size:,} bytes", style="bold"))
    screen.print(_fields(found))
    for table in found.tables:
        screen.print()
        kept = _kept(table.heads, console().width)
        heads = [table.heads[place] for place in kept]
        lines = [_short(shown([row[place] for place in kept]), heads) for row in table.rows]
        print_table(heads, lines, table.title)
        if table.left_out:
            screen.print(Text(f"and {table.left_out:,} more; --limit 0 shows all", style="dim"))
    screen.print()
    for flaw in found.flaws:
        where = "" if flaw.position is None else f"at byte {flaw.position:,}: "
        screen.print(Text(f"{where}{flaw.what}", style="bold red"))
    if not found.flaws:
        screen.print(Text(found.verdict, style="green"))
