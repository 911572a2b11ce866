"""`headrace group`: consumer groups, their lag and their cursors."""

from typing import Annotated

import typer

from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import (
    Json,
    JsonShape,
    Yes,
    confirm,
    confirm_name,
    console,
    print_json,
    print_table,
    say,
)
from headrace.cli.terminal.times import shown_seconds
from headrace.cli.topics.consumer_lag import (
    CursorLag,
    GroupLag,
    all_lags,
    found_group,
    shown_rows,
)
from headrace.cli.topics.cursor_moves import Move, moves_of
from headrace.cli.topics.topic_lines import print_groups
from headrace.model.namespace import check_name

groups = typer.Typer(
    no_args_is_help=True, help="List, describe, reset and delete consumer groups."
)

Name = Annotated[str, typer.Argument(help="The consumer group.")]
Topic = Annotated[
    str | None, typer.Option("--topic", help="Only this topic; by default all topics.")
]


class GroupList(JsonShape, frozen=True, kw_only=True):
    """Output of `group list` and `group describe`: one entry per group and topic."""

    groups: list[GroupLag]


class GroupReset(JsonShape, frozen=True, kw_only=True):
    """Output of `group reset`. `changed` is false with --dry-run."""

    group: str
    topic: str
    changed: bool
    partitions: list[Move]


class GroupDeleted(JsonShape, frozen=True, kw_only=True):
    """Output of `group delete`: the topics the group was deleted from."""

    group: str
    topics: list[str]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(groups, name="group")


@groups.command("list")
def list_groups(
    topic: Topic = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """List consumer groups and their lag in each topic.

    Lag is the number of rows from the cursor to the end. The age is that of the oldest unread
    row, 0 if the group has read everything.

    Examples:

        headrace group list --data ./data

        headrace group list --topic shop/orders

        headrace group list --json | jq '.groups[] | select(.lag_rows > 1000)'
    """
    with opened(data, address, timeout) as log:
        found = all_lags(log, topic)
    if as_json:
        print_json(GroupList(groups=found))
    elif found:
        print_groups(found)
    else:
        say("There are no consumer groups yet. A group's first commit creates it.")


@groups.command("describe")
def describe(
    name: Name,
    topic: Topic = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Describe a consumer group: its cursor and lag in each partition.

    Examples:

        headrace group describe billing --data ./data

        headrace group describe billing --topic shop/orders

        headrace group describe billing --json | jq '.groups[].cursors[].lag_seconds'
    """
    with opened(data, address, timeout) as log:
        found = found_group(log, topic, name)
    if as_json:
        print_json(GroupList(groups=found))
        return
    heads = ("partition", "next", "first", "end", "lag", "oldest unread", "holds", "state")
    for number, each in enumerate(found):
        if number:
            console().print()
        title = f"{each.group} in {each.topic}"
        print_table(heads, [_cursor_line(cursor) for cursor in each.cursors], title)


@groups.command("reset")
def reset(
    name: Name,
    topic: Annotated[str, typer.Option("--topic", help="The topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="New position: earliest, latest, an offset, 2026-11-15T10:00Z, -10m, or "
            "shift:-100.",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this partition; may be repeated. By default all."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show before and after; change nothing.")
    ] = False,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a consumer group to another position. Creates the group if it does not exist.

    A shift stops at the first row or at the end. A running consumer's next commit is refused;
    after a restart it continues from the new position.

    Examples:

        headrace group reset billing --topic orders --to -1h --dry-run --data ./data

        headrace group reset billing --topic orders --to earliest --yes

        headrace group reset billing --topic orders --to shift:-100 --partition 2
    """
    check_name("consumer group", name)
    with opened(data, address, timeout) as log:
        found = log.topic(topic)
        moves = moves_of(found, name, to, partition)
        if not as_json:
            _print_moves(moves, f"{name} in {found.name}")
        if not dry_run:
            confirm(f"Reset consumer group {name}?", yes=yes)
            found.store_cursors(name, {each.partition: each.after for each in moves})
    if as_json:
        print_json(
            GroupReset(group=name, topic=found.name, changed=not dry_run, partitions=moves)
        )
    else:
        say("Nothing was changed." if dry_run else f"Consumer group {name} was moved.")


@groups.command("delete")
def delete(
    name: Name,
    topic: Topic = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a consumer group with its cursors; retention no longer waits for it.

    Examples:

        headrace group delete billing --data ./data

        headrace group delete billing --topic shop/orders --yes

        headrace group delete billing --yes --json
    """
    with opened(data, address, timeout) as log:
        found = found_group(log, topic, name)
        names = [each.topic for each in found]
        if not yes:
            say(f"Consumer group {name} reads {', '.join(names)}.")
        confirm_name("consumer group", name, yes=yes)
        for each in names:
            log.topic(each).delete_cursors(name)
    if as_json:
        print_json(GroupDeleted(group=name, topics=names))
    else:
        say(f"Consumer group {name} was deleted from {', '.join(names)}.")


def _cursor_line(cursor: CursorLag) -> list[str]:
    return [
        str(cursor.partition),
        str(cursor.next),
        str(cursor.first),
        str(cursor.end),
        shown_rows(cursor.lag_rows),
        shown_seconds(cursor.lag_seconds),
        "yes" if cursor.hold else "no",
        cursor.state,
    ]


def _print_moves(moves: list[Move], title: str) -> None:
    lines = [
        [
            str(each.partition),
            "" if each.before is None else str(each.before),
            str(each.after),
            "" if each.lag_before is None else shown_rows(each.lag_before),
            shown_rows(each.lag_after),
        ]
        for each in moves
    ]
    print_table(("partition", "before", "after", "lag before", "lag after"), lines, title)
