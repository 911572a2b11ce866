"""`headrace metadata`: recover topics that are missing from the metadata, or give them up."""

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
from headrace.client.topic import age_of
from headrace.client.values.answers import OrphanedPartition, Retention, namespace_of
from headrace.errors import BadRequest, HeadraceError, MetadataInDoubt
from headrace.metadata.adoption import suspended
from headrace.model.revisions import shown

metadata = typer.Typer(
    no_args_is_help=True, help="Recover, or give up, what is missing from the metadata."
)

_AS = "--as"


class AdoptedShape(JsonShape, frozen=True, kw_only=True):
    """What `metadata adopt` prints. `changed` is false without --yes, or without doubt."""

    changed: bool
    revision: int
    adopted: tuple[str, ...]
    left: tuple[str, ...]  # what cannot be recovered, and why
    reasons: tuple[str, ...]  # why the metadata is in doubt; empty if it is not
    orphans: tuple[OrphanFigures, ...]  # the partitions that it had lost


class ForgottenShape(JsonShape, frozen=True, kw_only=True):
    """What `metadata forget` prints: the partitions that were given up.

    `suspended` names topics that keep all their rows now, and the command that sets their
    retention again.
    """

    partitions: tuple[str, ...]
    rows: int
    suspended: tuple[str, ...] = ()


def register(app: typer.Typer) -> None:
    """Put the commands on `app`."""
    app.add_typer(metadata, name="metadata")


@metadata.command("adopt")
def adopt(
    names: Annotated[
        list[str] | None,
        typer.Option(
            _AS,
            metavar="PARTITION=NAME",
            help="The name of the topic that a partition belongs to.",
        ),
    ] = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only say it.")] = False,
    as_json: Json = False,
) -> None:
    """Recover topics that are missing from the metadata.

    Without --yes nothing is changed: it lists why the metadata is in doubt, and what would
    become of each partition. Rows, offsets, cursors and writers go on as they were; names of
    topics, their retention and their keys are lost, so they get names such as
    shop/recovered-1-2. Every topic keeps all its rows until its retention is set again, since
    the one that is known may be of an earlier moment; the command that sets it is printed.
    A group 0 that is held is opened with what could be read of it; its files are set aside.

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
        say("Nothing is changed. Add --yes to do it.")


def _chosen(given: Sequence[str]) -> dict[str, str]:
    """Read the names of topics by partition ID; each partition is named once."""
    found: dict[str, str] = {}
    for text in given:
        partition, equals, name = text.partition("=")
        if not equals:
            raise BadRequest(f"{_AS}: {text!r} has no name", hint=f"Write {_AS} PARTITION=NAME")
        key = f"{namespace_of(partition):x}"
        if key in found:
            flaw = f"{_AS}: partition {key} has two names, {found[key]!r} and {name!r}"
            raise BadRequest(flaw, hint="Give it one")
        found[key] = name
    return found


@metadata.command("forget")
def forget(
    partitions: Annotated[
        list[str], typer.Argument(help="IDs of partitions, as status shows them.")
    ],
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove for ever the rows of partitions that are missing from the metadata.

    It looks all of them up first, shows the rows of each, and asks for its ID typed back; only
    then is the first given up. Rows are removed once the metadata is no longer in doubt.

    Examples:

        headrace metadata forget 1000001000000 --data ./data
    """
    names = list(dict.fromkeys(f"{namespace_of(each):x}" for each in partitions))
    with opened(data, address, timeout, must_be=True) as log:
        found = _orphans(log, names)
        for one in found:
            columns = ", ".join(f"{each.name}: {each.type}" for each in one.schema)
            said = (
                f"This removes {_rows(one.rows)} of partition {one.partition} "
                f"(revision {shown(one.created)}, shard {one.group}){_times(one)} ({columns}) "
                "for ever."
            )
            typed(said, one.partition, "no partition is given up", yes=yes)
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
    """Return what each topic that the metadata knows keeps, if it is not all."""
    try:
        found = {name: log.topic(name).retention for name in log.topics()}
    except MetadataInDoubt:  # it knows none
        return {}
    return {name: kept for name, kept in found.items() if kept != Retention(None, None)}


def _suspended(log: headrace.Log, before: dict[str, Retention]) -> Iterator[str]:
    """Say which topics keep all their rows now."""
    for name, kept in before.items():
        if log.topic(name).retention != kept:
            yield f"{name} keeps {suspended(name, age_of(kept.age), kept.size)}"


def _times(one: OrphanedPartition) -> str:
    if one.first_at is None or one.last_at is None:
        return ""
    return f", from {iso(one.first_at)} to {iso(one.last_at)}"


def _orphans(log: headrace.Log, names: Sequence[str]) -> list[OrphanedPartition]:
    """Find every partition that is named, or none of them."""
    found: list[OrphanedPartition] = []
    for name in names:
        own = log.orphans(name)
        if not own:
            raise NotFound(
                f"{name!r} is not a recoverable partition ID; no partition is given up",
                hint="`headrace status` lists the first of them (hex, such as 1000001000000), "
                "`headrace doctor` all",
            )
        found += own
    return found


def _give_up(log: headrace.Log, found: Sequence[OrphanedPartition]) -> None:
    """Give them up in their order; if one fails, say which are gone."""
    for count, one in enumerate(found):
        try:
            log.forget_orphan(one.partition, one.created)
        except HeadraceError:
            for gone in found[:count]:
                say(f"partition {gone.partition} is given up: {_rows(gone.rows)}")
            raise


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
