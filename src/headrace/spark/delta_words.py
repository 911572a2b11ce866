"""What deltalake raises, in one sentence."""

import re
from typing import Final

from deltalake.exceptions import DeltaError

from headrace.errors import StorageFailed

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
