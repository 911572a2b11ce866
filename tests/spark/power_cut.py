"""What a power cut leaves of a directory: only what this process has synced."""

import os
from contextlib import suppress
from pathlib import Path


class PowerCut:
    """Notes each sync; `strike` then drops files and names that none of them covered."""

    def __init__(self, monkeypatch):
        self._files: dict[tuple[int, int], tuple[int, int]] = {}  # size and time as of the sync
        self._names: dict[tuple[int, int], set[str]] = {}  # of a directory, as of its sync
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._noted)

    def _noted(self, descriptor):
        self._sync(descriptor)
        self.note(descriptor)

    def note(self, descriptor):
        found = os.fstat(descriptor)
        self._files[found.st_dev, found.st_ino] = (found.st_size, found.st_mtime_ns)
        with suppress(NotADirectoryError):
            self._names[found.st_dev, found.st_ino] = {
                each.name for each in os.scandir(descriptor)
            }

    def strike(self, directory: Path, pattern: str = "*") -> list[str]:
        """Drop what was not synced, and return the names."""
        dropped = []
        home = directory.stat()
        names = self._names.get((home.st_dev, home.st_ino), set())
        for path in sorted(directory.glob(pattern)):
            found = path.stat()
            own = self._files.get((found.st_dev, found.st_ino))
            if own != (found.st_size, found.st_mtime_ns) or path.name not in names:
                path.unlink()
                dropped.append(path.name)
        return dropped
