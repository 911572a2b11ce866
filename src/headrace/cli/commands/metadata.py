"""`headrace metadata`: the operator's way out of metadata that is in doubt."""

from typing import Annotated, Any

import typer

import headrace
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, Yes, print_json, say, typed
from headrace.errors import BadRequest
from headrace.model.revisions import shown

metadata = typer.Typer(
    no_args_is_help=True, help="Bring back, or give up, what the metadata has lost."
)

_AS = "--as"


class AdoptedShape(JsonShape, frozen=True, kw_only=True):
    """What `metadata adopt` prints. `changed` is false without --yes."""

    changed: bool
    revision: int
    adopted: tuple[str, ...]
    left: tuple[str, ...]  # what cannot be adopted, and why
    reasons: tuple[str, ...]  # why the metadata was in doubt


class ForgottenShape(JsonShape, frozen=True, kw_only=True):
    """What `metadata forget` prints: the partitions that were given up."""

    partitions: tuple[str, ...]
    rows: int


def register(app: typer.Typer) -> None:
    """Put the commands on `app`."""
    app.add_typer(metadata, name="metadata")


@metadata.command("adopt")
def adopt(
    names: Annotated[
        list[str] | None,
        typer.Option(_AS, help="NAMESPACE=name: the name of the topic that it belongs to."),
    ] = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only say it.")] = False,
    as_json: Json = False,
) -> None:
    """Make partitions that the metadata has lost topics again, and end the doubt.

    Without --yes nothing is changed: it lists why the metadata is in doubt, and what would
    become of each partition. Rows, offsets, cursors and writers go on as they were; names of
    topics, their retention and their keys are lost, so they get names such as
    shop/recovered-1-2.

    Examples:

        headrace metadata adopt --data ./data

        headrace metadata adopt --data ./data --yes --as 1000001000000=orders
    """
    chosen = dict(_pair(each) for each in names or ())
    with opened(data, address, timeout) as log:
        reasons = tuple(map(str, log.status().get("degraded", ())))
        done = log.adopt_orphans(chosen, dry_run=not yes)
    if as_json:
        print_json(
            AdoptedShape(
                changed=yes,
                revision=done.revision,
                adopted=done.adopted,
                left=done.left,
                reasons=reasons,
            )
        )
        return
    for each in reasons:
        say(each)
    for each in done.adopted:
        say(f"{'adopted' if yes else 'would be adopted'}: {each}")
    for each in done.left:
        say(f"{'left' if yes else 'would be left'} as it is: {each}")
    if not reasons:
        say("The metadata is not in doubt: there is nothing to adopt.")
    elif not yes:
        say("Nothing is changed. Add --yes to do it.")


def _pair(text: str) -> tuple[str, str]:
    namespace, equals, name = text.partition("=")
    if not equals:
        raise BadRequest(f"{_AS}: {text!r} has no name", hint=f"Write {_AS} NAMESPACE=name")
    return namespace, name


@metadata.command("forget")
def forget(
    partitions: Annotated[
        list[str], typer.Argument(help="Namespaces of partitions, as status shows them.")
    ],
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give up partitions that the metadata has lost: their rows are removed for ever.

    It shows the rows of each, and asks for its namespace typed back. Rows go once the metadata
    is in no doubt any more.

    Examples:

        headrace metadata forget 1000001000000 --data ./data
    """
    rows = 0
    with opened(data, address, timeout) as log:
        for name in dict.fromkeys(partitions):
            for one in _orphans(log, name):
                said = (
                    f"This removes {one['rows']:,} rows of partition {name} of revision "
                    f"{shown(one['created'])}, group {one['group']}, from {one['first_at']} to "
                    f"{one['last_at']} ({', '.join(one['schema'])}) for ever."
                )
                typed(said, name, f"partition {name} is not given up", yes=yes)
                log.forget_orphan(name, one["created"])
                rows += one["rows"]
    if as_json:
        print_json(ForgottenShape(partitions=tuple(dict.fromkeys(partitions)), rows=rows))
    else:
        say(f"{rows:,} rows are given up.")


def _orphans(log: headrace.Log, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        one for one in log.status().get("orphans", ()) if one["partition"] == name.lower()
    ]
    if not found:
        raise NotFound(
            f"there is no partition {name} that the metadata has lost",
            hint="`headrace status` shows all there are",
        )
    return found
