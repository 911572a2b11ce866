"""Why a pipeline does not go on with a table: each has a name."""

import re
from pathlib import Path
from typing import Final

from deltalake.exceptions import DeltaError

from headrace.errors import BadRequest, StorageFailed


def first_file(root: Path) -> Path | None:
    """Return a file below a directory that readers of tables would see: no hidden one."""
    for found in root.rglob("*"):
        names = found.relative_to(root).parts
        if not any(name.startswith(("_", ".")) for name in names) and found.is_file():
            return found
    return None


_PAINT: Final = re.compile(r"\x1b\[[\d;]*m")
_AGAIN: Final = (
    "Free some space, or mend what is wrong there, and start the pipeline, or the query, "
    "again: it goes on where the table says"
)


def storage_failed(path: str, error: OSError | DeltaError) -> StorageFailed:
    """Say of the table at `path` what a commit failed with."""
    reason = OSError(error.errno if isinstance(error, OSError) else None, reason_of(error))
    return StorageFailed(path.rstrip("/"), "a commit", reason, hint=_AGAIN)


def reason_of(error: OSError | DeltaError) -> str:
    """Return the last leaf of the tree that deltalake paints: it is the reason."""
    lines = [line.strip(" ↳") for line in _PAINT.sub("", str(error)).splitlines()]
    words = [line for line in lines if line] or [repr(error)]
    return words[-1]


class TableForeign(BadRequest):
    """A table that is not this pipeline's."""


class RecordLost(BadRequest):
    """The table names the pipeline, and says nothing about how far it is."""


class TableStrange(BadRequest):
    """A table that is not what its files alone say, or that demands what is not kept."""


class TableAhead(BadRequest):
    """The table has rows that the log does not have."""

    hint = (
        "The log was put back from an old copy, or it is another one. Put a newer one back, or "
        "begin anew with the rows that it has: headrace pipeline reset FILE --truncate"
    )


class TableRestored(BadRequest):
    """Somebody has put back an older state of the table, which records a newer one."""


class CommitRefused(BadRequest):
    """The table takes no commit of ours, though nobody was faster."""


class FileGone(BadRequest):
    """A file that was to be committed is not there as it was written."""
