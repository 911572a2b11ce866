"""The seam to a disk, and the real disk behind it. Start at `seam`."""
