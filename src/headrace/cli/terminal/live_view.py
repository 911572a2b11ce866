"""A live view: a thread polls something, the terminal shows its last result."""

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.errors import HeadraceError

REFRESH_S: Final = 1.0
QUIT: Final = frozenset("qQ")
_FOOT_LINES: Final = 2


Found = TypeVar("Found")  # the result of a poll
Drawn = Callable[[Found, int | None], RenderableType]  # in so many lines; None: all of it


@dataclass(slots=True)
class Poller(Generic[Found]):
    """Polls in its own thread: a node that hangs must not block the keys."""

    poll: Callable[[], Found]
    found: Found | None = None
    failure: HeadraceError | None = None  # of the latest poll
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.found = self.poll()
                self.failure = None
            except HeadraceError as error:
                self.failure = error
            self.ended.wait(REFRESH_S)


def watch(poll: Callable[[], Found], drawn: Drawn[Found], out: Console) -> None:
    """Show results until q or Ctrl-C. Restores the terminal afterwards."""
    poller = Poller(poll)
    thread = threading.Thread(target=poller.run, name="watch", daemon=True)
    thread.start()
    try:
        with (
            _keys() as keys,
            Live(console=out, screen=True, auto_refresh=False) as live,
            suppress(KeyboardInterrupt),
        ):
            while True:
                live.update(_screen(poller, drawn, out.height), refresh=True)
                if keys is None:
                    poller.ended.wait(REFRESH_S)
                elif _pressed(keys, REFRESH_S) & QUIT:
                    break
    finally:
        poller.ended.set()
    if poller.found is not None:  # the last result stays in the scrollback
        out.print(drawn(poller.found, None))


def _screen(poller: Poller[Found], drawn: Drawn[Found], height: int) -> RenderableType:
    found, failure = poller.found, poller.failure
    foot = Text("q quits", style="dim")
    if failure is not None:
        foot = Text(f"no answer, retrying: {failure}", style="bold red")
    if found is None:
        return Group(Text("waiting for the node"), Text(""), foot)
    return Group(drawn(found, height - _FOOT_LINES), Text(""), foot)


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
