"""Who writes, as bytes that client and executor agree on.

writer := the first 16 bytes of the SHA-256 of the app id, UTF-8    of a transaction
        | "once" and 12 random bytes            of a transaction that nobody repeats
        | 16 random bytes                                           of anything else

Where the first 16 bytes begin with "once", the last 16 are taken.
"""

import hashlib
from typing import Final

from headrace.model.ids import ONCE, WRITER_SIZE, is_once

STAGE_ID_SIZE: Final = 16
VERSION_MAX: Final = 2**63 - 1
SUPERSEDED: Final = "superseded"  # the code of a Refused: a version was published before


def writer_of(app_id: str) -> bytes:
    """Return the writer that an app id stands for."""
    digest = hashlib.sha256(app_id.encode()).digest()
    first = digest[:WRITER_SIZE]
    return digest[WRITER_SIZE:] if is_once(first) else first


def once(random: bytes) -> bytes:
    """Return a writer of one transaction, which nobody repeats under a name."""
    return ONCE + random[: WRITER_SIZE - len(ONCE)]
