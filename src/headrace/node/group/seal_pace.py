"""When the primary proposes a Seal: by bytes, ops or age, or to reclaim space."""

from dataclasses import dataclass
from typing import Final

# Body bytes: a few segments of the target size. A burst up to this is not slowed by sealing;
# the journal keeps up to four times as much on disk.
SEAL_SIZE: Final = 512 * 1024 * 1024
SEAL_AGE_US: Final = 300 * 1_000_000  # a restart replays nothing older than this
# The ring spans back to the previous checkpoint, and two more may be pending: four windows.
SEAL_SHARE: Final = 4


@dataclass(slots=True)
class SealPace:
    """Totals since the last Seal. The caller supplies all numbers, including the time."""

    slots: int
    seal_size: int = SEAL_SIZE
    seal_age_us: int = SEAL_AGE_US
    size: int = 0
    op_count: int = 0
    since: int = 0  # replicated time of the first entry since
    freed: bool = False  # a partition was closed or purged: its space waits for a Seal

    def count(self, size: int, timestamp: int, *, frees: bool = False) -> None:
        """Count an appended entry."""
        if not self.op_count:
            self.since = timestamp
        self.op_count += 1
        self.size += size
        self.freed = self.freed or frees

    def is_due(self, now: int) -> bool:
        """Return whether a Seal should be proposed."""
        if not self.op_count:
            return False
        full = self.size >= self.seal_size or self.op_count >= self.slots // SEAL_SHARE
        return full or self.freed or now - self.since >= self.seal_age_us

    def sealed(self) -> None:
        """Reset: a Seal was appended."""
        self.size = self.op_count = 0
        self.freed = False
