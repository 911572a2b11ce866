"""Exit codes, and the one place where an error is mapped to one."""

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

STANDARD_OUTPUT: Final = "standard output"  # its path in errors


class Exit(IntEnum):
    """Exit codes of commands."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    UNAVAILABLE = 5
    INTEGRITY = 6
    NOT_SHOWN = 7  # a proof that neither holds nor fails: something it needs is missing
    INTERRUPTED = 130


class NotFound(HeadraceError):
    """The subject of a command does not exist."""


class Cancelled(HeadraceError):
    """The user did not confirm."""


class PipeClosed(Exception):
    """The reader of a command's output is gone, as with `| head`."""


def exit_code(error: HeadraceError) -> Exit:
    """Map `error` to an exit code by what its receiver does next."""
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
    """The operating system refused something, and no caller translated the error."""


def from_os(error: OSError) -> HeadraceError:
    """Turn an uncaught OSError into an error with a hint."""
    reason = error.strerror or str(error) or type(error).__name__
    paths = [os.fsdecode(each) for each in (error.filename, error.filename2) if _is_path(each)]
    text = f"{' -> '.join(paths)}: {reason}" if paths else reason
    barred = barred_at(paths[0]) if paths and isinstance(error, PermissionError) else ""
    if barred not in ("", *paths):  # `ls -ld` of the path itself would be refused as well
        text = f"{text} (at {barred})"
    hint = OS_HINTS.get(error.errno or 0, "Check the path and this machine, and retry")
    kind = NotFound if error.errno in _NO_SUCH_PLACE else SystemFailed
    return kind(text, hint=hint)


def barred_at(path: str) -> str:
    """Return the topmost directory above `path` that this user may not enter, if any."""
    above = [str(each) for each in reversed(Path(path).absolute().parents)]
    return next((each for each in above if not os.access(each, os.X_OK)), "")


def _is_path(found: object) -> bool:
    return isinstance(found, str | bytes)  # from a call on a descriptor it is a number or None
