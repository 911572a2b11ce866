"""Disks that fail on demand: in memory, tapped, on loop devices. Start at `memory`."""
