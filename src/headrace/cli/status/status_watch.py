"""The live view of a node: a thread that looks, and a terminal that shows what it saw."""

import os
import select
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

import headrace
from headrace.cli.status.node_look import look, with_rates
from headrace.cli.status.status_figures import Picture
from headrace.cli.status.status_view import drawn
from headrace.errors import HeadraceError

REFRESH_S: Final = 1.0
WINDOW: Final = 5  # looks that a rate is the mean of: one alone jumps
QUIT: Final = frozenset("qQ")
_FOOT_LINES: Final = 2


@dataclass(slots=True)
class Looker:
    """Looks again and again, in its own thread: a node that hangs must not hang the keys."""

    log: headrace.Log
    seen: deque[Picture] = field(default_factory=lambda: deque(maxlen=WINDOW))
    failure: HeadraceError | None = None  # of the newest look
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                picture = look(self.log)
            except HeadraceError as error:
                self.failure = error
            else:
                if self.seen and self.seen[-1].node.started_at != picture.node.started_at:
                    self.seen.clear()
                self.seen.append(picture)
                self.failure = None
            self.ended.wait(REFRESH_S)

    def picture(self) -> Picture | None:
        """Return the newest picture, with rates over the last few."""
        seen = list(self.seen)
        return with_rates(seen[-1], seen[0]) if seen else None


def watch(log: headrace.Log, out: Console) -> None:
    """Show the node until q or Ctrl-C. The terminal is left as it was."""
    looker = Looker(log)
    thread = threading.Thread(target=looker.run, name="status", daemon=True)
    thread.start()
    try:
        with (
            _keys() as keys,
            Live(console=out, screen=True, auto_refresh=False) as live,
            suppress(KeyboardInterrupt),
        ):
            while True:
                live.update(_screen(looker, out.height), refresh=True)
                if keys is None:
                    looker.ended.wait(REFRESH_S)
                elif _pressed(keys, REFRESH_S) & QUIT:
                    break
    finally:
        looker.ended.set()
    picture = looker.picture()
    if picture is not None:  # what was seen last stays in the scrollback
        out.print(drawn(picture))


def _screen(looker: Looker, height: int) -> RenderableType:
    picture, failure = looker.picture(), looker.failure
    foot = Text("q ends", style="dim")
    if failure is not None:
        foot = Text(f"no answer, trying again: {failure}", style="bold red")
    if picture is None:
        return Group(Text("looking"), Text(""), foot)
    return Group(drawn(picture, height - _FOOT_LINES), Text(""), foot)


@contextmanager
def _keys() -> Iterator[int | None]:
    """Have keys come one by one, and not shown; None if they do not come from a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _pressed(keys: int, seconds: float) -> set[str]:
    """Return which keys were pressed within so many seconds; the terminal's end counts as q."""
    ready, _, _ = select.select([keys], [], [], seconds)
    if not ready:
        return set()
    return set(os.read(keys, 1024).decode(errors="replace")) or {"q"}
