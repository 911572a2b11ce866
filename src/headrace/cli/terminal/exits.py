"""Exit codes, and the one place where an error becomes one."""

import errno
import os
from enum import IntEnum
from typing import Final

from headrace.errors import (
    Corrupt,
    HeadraceError,
    Rejected,
    TopicUnknown,
    Unauthorized,
    Unavailable,
)


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


_OS_HINTS: Final = {
    errno.EACCES: "Run it as the user who owns it, or change its permissions: see ls -ld",
    errno.EPERM: "Run it as the user who owns it, and look at its attributes: see lsattr",
    errno.ENOENT: "Check the name",
    errno.ENOTDIR: "Check the name: a part of it before the last is a file",
    errno.ENAMETOOLONG: "Check the name",
    errno.ELOOP: "Check the name: symbolic links in it lead round in a circle",
    errno.ENOSPC: "Free some space, and repeat",
    errno.EDQUOT: "Free some space, or raise the quota, and repeat",
    errno.EROFS: "Name a place on a file system that is not mounted read-only",
    errno.EMFILE: "Raise the limit of open files: ulimit -n",
    errno.EIO: "Look at the disk: the kernel's log (dmesg) says more",
}
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
    hint = _OS_HINTS.get(error.errno or 0, "Look at the path and at this machine, and repeat")
    kind = NotFound if error.errno in _NO_SUCH_PLACE else SystemFailed
    return kind(text, hint=hint)


def _is_path(found: object) -> bool:
    return isinstance(
        found, str | bytes
    )  # of a call on a descriptor it is a number, or nothing
