"""Who writes, as bytes that client and executor agree on.

writer := the first 16 bytes of the SHA-256 of the app id, UTF-8    of a transaction
        | 16 random bytes                                           of anything else
"""

import hashlib
from typing import Final

WRITER_SIZE: Final = 16
STAGE_ID_SIZE: Final = 16
VERSION_MAX: Final = 2**63 - 1
SUPERSEDED: Final = "superseded"  # the code of a Refused: a version was published before


def writer_of(app_id: str) -> bytes:
    """Return the writer that an app id stands for."""
    return hashlib.sha256(app_id.encode()).digest()[:WRITER_SIZE]
