"""`headrace status`: the state of a node, once or as a live view."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.status.node_look import look
from headrace.cli.status.status_view import drawn
from headrace.cli.status.status_watch import watch as watch_node
from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.location import Address, Data, Timeout, opened, place_of
from headrace.cli.terminal.output import Json, console, print_json
from headrace.errors import Unavailable

TIMEOUT = "5s"  # short: an unresponsive node is worth reporting soon


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("status")(status)


def status(
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every second; q or Ctrl-C quits.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a node's readiness, topics, consumer lag, disk and checkpoints.

    With --watch it shows a live view with rates on a terminal; in a pipe it prints once. Exits
    with 5 if the node is not ready or does not answer. A directory that no process serves is
    opened briefly and reported as not running.

    Examples:

        headrace status --data ./data

        headrace status --address db1:7654 --watch

        headrace status --data ./data --json | jq '.lags[0]'
    """
    is_watched = watch and not as_json and sys.stdout.isatty()
    place = place_of(data, address)
    with opened(place.data, place.address, timeout) as log:
        is_served = not place.is_of(log)
        if is_watched:
            _require_served(place.data, is_served=is_served)
            watch_node(log, console())
            return
        picture = look(log, served=is_served)
    if as_json:
        print_json(picture)
    else:
        console().print(drawn(picture))
    if not picture.node.ready:
        raise typer.Exit(Exit.UNAVAILABLE)


def _require_served(data: Path | None, *, is_served: bool) -> None:
    """Refuse to watch a directory that no process serves: watching would lock it."""
    if not is_served:
        raise Unavailable(
            f"no process serves {data}",
            hint=f"Start one with `headrace serve --data {data}`, or omit --watch",
        )
