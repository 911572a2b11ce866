"""`headrace metadata`: recover or give up topics that are missing from the metadata."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

import headrace
from headrace.cli.status.status_figures import OrphanFigures
from headrace.cli.status.status_view import doubt_lines
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, Yes, print_json, say, typed
from headrace.cli.terminal.times import iso
from headrace.client.values.answers import OrphanedPartition, Retention, namespace_of, shown_age
from headrace.errors import BadRequest, HeadraceError, MetadataInDoubt
from headrace.model.revisions import shown
from headrace.model.units import format_size

metadata = typer.Typer(
    no_args_is_help=True, help="Recover or give up topics that are missing from the metadata."
)

_AS = "--as"


class AdoptedShape(JsonShape, frozen=True, kw_only=True):
    """Output of `metadata adopt`. `changed` is false without --yes, or without doubt."""

    changed: bool
    revision: int
    adopted: tuple[str, ...]
    left: tuple[str, ...]  # what cannot be recovered, and why
    reasons: tuple[str, ...]  # why the metadata is in doubt; empty if it is not
    orphans: tuple[OrphanFigures, ...]  # the partitions that the metadata had lost


class ForgottenShape(JsonShape, frozen=True, kw_only=True):
    """Output of `metadata forget`: the partitions that were given up.

    `suspended` names topics that now keep all their rows, and the command that restores their
    retention.
    """

    partitions: tuple[str, ...]
    rows: int
    suspended: tuple[str, ...] = ()


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(metadata, name="metadata")


@metadata.command("adopt")
def adopt(
    names: Annotated[
        list[str] | None,
        typer.Option(
            _AS,
            metavar="PARTITION=NAME",
            help="Topic name for a partition; may be repeated.",
        ),
    ] = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show it.")] = False,
    as_json: Json = False,
) -> None:
    """Recover topics that are missing from the metadata.

    Without --yes it changes nothing: it lists why the metadata is in doubt, and what would
    happen to each partition. Rows, offsets, cursors and writers continue unchanged; names,
    retention and keys of the topics are lost, so they get names such as shop/recovered-1-2.
    Every topic keeps all its rows until you set its retention again, since the known one may be
    outdated; the command that sets it is printed. A group 0 that is held is opened with what
    could be read of it; its files are set aside.

    Examples:

        headrace metadata adopt --data ./data

        headrace metadata adopt --data ./data --yes --as 1000001000000=orders
    """
    chosen = _chosen(names or ())
    with opened(data, address, timeout, must_be=True) as log:
        status = log.status()
        reasons = tuple(map(str, status.get("doubt", ())))
        orphans = msgspec.convert(status.get("orphans", ()), tuple[OrphanFigures, ...])
        done = log.adopt_orphans(chosen, dry_run=not yes)
    if as_json:
        print_json(
            AdoptedShape(
                changed=yes and bool(reasons),
                revision=done.revision,
                adopted=done.adopted,
                left=done.left,
                reasons=reasons,
                orphans=orphans,
            )
        )
        return
    for each in doubt_lines(reasons, orphans):
        say(each)
    for each in done.adopted:
        say(f"{'recovered' if yes else 'would recover'}: {each}")
    for each in done.left:
        say(f"{'left as is' if yes else 'would leave as is'}: {each}")
    if not reasons:
        say("The metadata is not in doubt: there is nothing to recover.")
    elif not yes:
        say("Nothing was changed. Add --yes to do it.")


def _chosen(given: Sequence[str]) -> dict[str, str]:
    """Parse the names of topics by partition ID; each partition may be named once."""
    found: dict[str, str] = {}
    for text in given:
        partition, equals, name = text.partition("=")
        if not equals:
            raise BadRequest(f"{_AS}: {text!r} has no name", hint=f"Write {_AS} PARTITION=NAME")
        key = f"{namespace_of(partition):x}"
        if key in found:
            flaw = f"{_AS}: partition {key} has two names, {found[key]!r} and {name!r}"
            raise BadRequest(flaw, hint="Give one name")
        found[key] = name
    return found


@metadata.command("forget")
def forget(
    partitions: Annotated[list[str], typer.Argument(help="Partition IDs, as shown by status.")],
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Permanently remove the rows of partitions that are missing from the metadata.

    It first looks up all of them, shows the rows of each and asks you to type its ID; only then
    does it give up the first one. Rows are removed once the metadata is no longer in doubt.

    Examples:

        headrace metadata forget 1000001000000 --data ./data
    """
    names = list(dict.fromkeys(f"{namespace_of(each):x}" for each in partitions))
    with opened(data, address, timeout, must_be=True) as log:
        found = _orphans(log, names)
        for one in found:
            columns = ", ".join(f"{each.name}: {each.type}" for each in one.schema)
            said = (
                f"This permanently removes {_rows(one.rows)} of partition {one.partition} "
                f"(revision {shown(one.created)}, shard {one.group}){_times(one)} ({columns})."
            )
            typed(said, one.partition, "no partition was given up", yes=yes)
        before = _retentions(log)
        _give_up(log, found)
        suspended = list(_suspended(log, before))
    rows = sum(one.rows for one in found)
    if as_json:
        print_json(
            ForgottenShape(partitions=tuple(names), rows=rows, suspended=tuple(suspended))
        )
    else:
        for each in suspended:
            say(each)
        say(f"{_rows(rows)} given up.")


def _retentions(log: headrace.Log) -> dict[str, Retention]:
    """Return the retention of each known topic that does not keep all its rows."""
    try:
        found = {name: log.topic(name).retention for name in log.topics()}
    except MetadataInDoubt:  # no topic is known
        return {}
    return {name: kept for name, kept in found.items() if kept != Retention(None, None)}


def _suspended(log: headrace.Log, before: dict[str, Retention]) -> Iterator[str]:
    """Yield a line for each topic that now keeps all its rows."""
    for name, kept in before.items():
        if log.topic(name).retention != kept:
            size = "" if kept.size is None else format_size(kept.size)
            option = ",".join(filter(None, (shown_age(kept.age), size)))
            yield (
                f"{name} keeps all its rows, as its retention may be outdated. "
                f"`headrace topic alter {name} --retention {option}` sets it again"
            )


def _times(one: OrphanedPartition) -> str:
    if one.first_at is None or one.last_at is None:
        return ""
    return f", from {iso(one.first_at)} to {iso(one.last_at)}"


def _orphans(log: headrace.Log, names: Sequence[str]) -> list[OrphanedPartition]:
    """Find all the named partitions, or raise NotFound."""
    found: list[OrphanedPartition] = []
    for name in names:
        own = log.orphans(name)
        if not own:
            raise NotFound(
                f"{name!r} is not a recoverable partition ID; no partition was given up",
                hint="`headrace status` lists the first of them (hex, such as 1000001000000), "
                "`headrace doctor` all",
            )
        found += own
    return found


def _give_up(log: headrace.Log, found: Sequence[OrphanedPartition]) -> None:
    """Give them up in order; if one fails, say which were given up before it."""
    for count, one in enumerate(found):
        try:
            log.forget_orphan(one.partition, one.created)
        except HeadraceError:
            for gone in found[:count]:
                say(f"partition {gone.partition} was given up: {_rows(gone.rows)}")
            raise


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
