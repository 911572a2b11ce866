"""Exit codes, and the one place where an error becomes one."""

from enum import IntEnum

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
