"""Single keys of a terminal, as a person presses them."""

import os
import select
import sys
import termios
import tty
from typing import Self

END = "\x04"  # what a terminal that has gone away is taken for


class Keys:
    """Use it as a context: afterwards the terminal is as it was before."""

    def __enter__(self) -> Self:
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSADRAIN)  # a key pressed before it counts
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def pressed(self) -> str:
        """Return the next key that was pressed, in lower case; nothing if none was."""
        if not select.select([self._terminal], [], [], 0)[0]:
            return ""
        return os.read(self._terminal, 1).decode(errors="replace").lower() or END


def has_terminal() -> bool:
    """Tell whether a person is there: to press keys, and to see what comes of it."""
    return sys.stdin.isatty() and sys.stdout.isatty()
