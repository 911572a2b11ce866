"""The live view of a node, with rates over its last few pictures."""

from collections import deque
from typing import Final

from rich.console import Console

import headrace
from headrace.cli.status.node_look import look, with_rates
from headrace.cli.status.status_figures import Picture
from headrace.cli.status.status_view import drawn
from headrace.cli.terminal import live_view

WINDOW: Final = 5  # pictures that a rate is averaged over: a single one is noisy


def watch(log: headrace.Log, out: Console) -> None:
    """Show the node until q or Ctrl-C."""
    seen: deque[Picture] = deque(maxlen=WINDOW)

    def poll() -> Picture:
        picture = look(log)
        if seen and seen[-1].node.started_at != picture.node.started_at:
            seen.clear()
        seen.append(picture)
        return with_rates(picture, seen[0])

    live_view.watch(poll, drawn, out)
