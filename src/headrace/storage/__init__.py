"""The storage interface, and its implementation on a real disk. Start at `seam`."""
