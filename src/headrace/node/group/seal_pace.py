"""When the primary proposes a Seal: by bytes, by ops, by age, and when space should return."""

from dataclasses import dataclass
from typing import Final

# Body bytes: some segments of the size that is aimed at. A burst up to it is not slowed by
# sealing; the journal keeps up to four times as much on disk.
SEAL_SIZE: Final = 512 * 1024 * 1024
SEAL_AGE_US: Final = 300 * 1_000_000  # what a restart replays is never older than this
# The ring reaches back to the previous checkpoint, and two more may be pending: four windows.
SEAL_SHARE: Final = 4


@dataclass(slots=True)
class SealPace:
    """What happened since the last Seal. All numbers are given; no clock is read."""

    slots: int
    seal_size: int = SEAL_SIZE
    seal_age_us: int = SEAL_AGE_US
    size: int = 0
    op_count: int = 0
    since: int = 0  # replicated time of the first entry since
    freed: bool = False  # a partition was closed or purged: its space waits for a Seal

    def count(self, size: int, timestamp: int, *, frees: bool = False) -> None:
        """Count one entry that was appended."""
        if not self.op_count:
            self.since = timestamp
        self.op_count += 1
        self.size += size
        self.freed = self.freed or frees

    def is_due(self, now: int) -> bool:
        """Say whether a Seal should be proposed."""
        if not self.op_count:
            return False
        full = self.size >= self.seal_size or self.op_count >= self.slots // SEAL_SHARE
        return full or self.freed or now - self.since >= self.seal_age_us

    def sealed(self) -> None:
        """Begin anew: a Seal was appended."""
        self.size = self.op_count = 0
        self.freed = False
