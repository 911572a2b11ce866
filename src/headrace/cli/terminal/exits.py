"""Exit codes, and the one place where an error becomes one."""

import errno
import os
from enum import IntEnum
from pathlib import Path
from typing import Final

from headrace.errors import (
    OS_HINTS,
    Corrupt,
    HeadraceError,
    Rejected,
    TopicUnknown,
    Unauthorized,
    Unavailable,
)

STANDARD_OUTPUT: Final = "standard output"  # the path of an error of it


class Exit(IntEnum):
    """What a script can tell from how a command ended."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    UNAVAILABLE = 5
    INTEGRITY = 6
    NOT_SHOWN = 7  # a proof that neither holds nor fails: something it needs was absent
    INTERRUPTED = 130


class NotFound(HeadraceError):
    """What a command is about is not there."""


class Cancelled(HeadraceError):
    """A person was asked, and did not say yes."""


class PipeClosed(Exception):
    """Nobody reads what a command prints any more: `| head` has seen enough."""


def exit_code(error: HeadraceError) -> Exit:
    """Translate `error` by what its receiver does next."""
    match error:
        case NotFound() | TopicUnknown():
            return Exit.NOT_FOUND
        case Unauthorized():
            return Exit.AUTH
        case Rejected():
            return Exit.USAGE
        case Unavailable():
            return Exit.UNAVAILABLE
        case Corrupt():
            return Exit.INTEGRITY
        case _:
            return Exit.FAILURE


_NO_SUCH_PLACE: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
)


class SystemFailed(HeadraceError):
    """The operating system refused something that nobody translated on the way up."""


def from_os(error: OSError) -> HeadraceError:
    """Turn an OSError that has come up to the command line into a sentence with a next step."""
    reason = error.strerror or str(error) or type(error).__name__
    paths = [os.fsdecode(each) for each in (error.filename, error.filename2) if _is_path(each)]
    text = f"{' -> '.join(paths)}: {reason}" if paths else reason
    barred = barred_at(paths[0]) if paths and isinstance(error, PermissionError) else ""
    if barred not in ("", *paths):  # of the path itself `ls -ld` would be refused as well
        text = f"{text} (at {barred})"
    hint = OS_HINTS.get(error.errno or 0, "Look at the path and at this machine, and repeat")
    kind = NotFound if error.errno in _NO_SUCH_PLACE else SystemFailed
    return kind(text, hint=hint)


def barred_at(path: str) -> str:
    """Return the directory above `path` that this user may not enter, if there is one."""
    above = [str(each) for each in reversed(Path(path).absolute().parents)]
    return next((each for each in above if not os.access(each, os.X_OK)), "")


def _is_path(found: object) -> bool:
    return isinstance(
        found, str | bytes
    )  # of a call on a descriptor it is a number, or nothing
