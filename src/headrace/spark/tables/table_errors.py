"""Errors for which a pipeline stops writing to a table."""

import re
from typing import Final

from deltalake.exceptions import DeltaError

from headrace.errors import BadRequest, StorageFailed
from headrace.spark.stores.seam import FileStore


def first_file(store: FileStore) -> str | None:
    """Return a file that readers of tables would see, not a hidden one."""
    for found in store.list():
        if not any(part.startswith(("_", ".")) for part in found.name.split("/")):
            return found.name
    return None


_PAINT: Final = re.compile(r"\x1b\[[\d;]*m")
_AGAIN: Final = (
    "Free some space or fix the cause, then restart the pipeline or query: it resumes where "
    "the table says"
)


def storage_failed(
    path: str, error: OSError | DeltaError, stage: str = "a commit"
) -> StorageFailed:
    """Return the error of a failed commit, or another step, to the table at `path`."""
    reason = OSError(error.errno if isinstance(error, OSError) else None, reason_of(error))
    return StorageFailed(path.rstrip("/"), stage, reason, hint=_AGAIN)


def reason_of(error: OSError | DeltaError) -> str:
    """Return the last leaf of deltalake's error tree: it is the reason."""
    lines = [line.strip(" ↳") for line in _PAINT.sub("", str(error)).splitlines()]
    words = [line for line in lines if line] or [repr(error)]
    return words[-1]


class TableForeign(BadRequest):
    """The table does not belong to this pipeline."""


class RecordLost(BadRequest):
    """The table names the pipeline but does not record its position."""


class TableStrange(BadRequest):
    """The table has features that Headrace does not support."""


class TableAhead(BadRequest):
    """The table has rows that the log does not have."""

    hint = (
        "The log was restored from an old backup, or it is a different log. Restore a newer "
        "backup, or start over with the rows that it has: headrace pipeline reset FILE "
        "--truncate"
    )


class TableRestored(BadRequest):
    """The table was restored to an older version but records a newer one."""


class CommitRefused(BadRequest):
    """The table rejects our commit although no other writer was faster."""


class FileGone(BadRequest):
    """A file to be committed is missing or not as it was written."""
