"""The live view of a node: a thread polls the node, the terminal shows its last result."""

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
WINDOW: Final = 5  # pictures that a rate is averaged over: a single one is noisy
QUIT: Final = frozenset("qQ")
_FOOT_LINES: Final = 2


@dataclass(slots=True)
class Looker:
    """Polls in its own thread: a node that hangs must not block the keys."""

    log: headrace.Log
    seen: deque[Picture] = field(default_factory=lambda: deque(maxlen=WINDOW))
    failure: HeadraceError | None = None  # of the latest poll
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
        """Return the latest picture, with rates over the last few."""
        seen = list(self.seen)
        return with_rates(seen[-1], seen[0]) if seen else None


def watch(log: headrace.Log, out: Console) -> None:
    """Show the node until q or Ctrl-C. Restores the terminal afterwards."""
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
    if picture is not None:  # the last picture stays in the scrollback
        out.print(drawn(picture))


def _screen(looker: Looker, height: int) -> RenderableType:
    picture, failure = looker.picture(), looker.failure
    foot = Text("q quits", style="dim")
    if failure is not None:
        foot = Text(f"no answer, retrying: {failure}", style="bold red")
    if picture is None:
        return Group(Text("waiting for the node"), Text(""), foot)
    return Group(drawn(picture, height - _FOOT_LINES), Text(""), foot)


@contextmanager
def _keys() -> Iterator[int | None]:
    """Read keys one by one, without echo; None if standard input is not a terminal."""
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
    """Return the keys pressed within `seconds`; end of input counts as q."""
    ready, _, _ = select.select([keys], [], [], seconds)
    if not ready:
        return set()
    return set(os.read(keys, 1024).decode(errors="replace")) or {"q"}
