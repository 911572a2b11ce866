"""Which failures mean that there is no room: nothing is broken, and waiting helps."""

import errno
from typing import Final

# EFBIG comes from a limit on file sizes, EDQUOT from a quota: to a caller all are a full disk.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Tell whether `error` says that the disk, the quota or the limit is used up."""
    return error.errno in _NO_ROOM
