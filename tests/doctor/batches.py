"""Batches that are lost: what a node does not give, beside what an examination names."""

from collections.abc import Mapping
from pathlib import Path

import headrace
from headrace.errors import Corrupt

Lost = set[tuple[int, int]]  # partition and first row of each batch


def unread(log: Path, settings, topic: str, ends: Mapping[int, int], size: int) -> Lost:
    """Return the batches of `size` rows, up to the ends of partitions, that cannot be read."""
    found = set()
    with headrace.open(log, **settings) as opened:
        rows = opened.topic(topic)
        for partition, end in ends.items():
            for start in range(0, end, size):
                try:
                    list(rows.read(partition, start=start, end=start + size))
                except Corrupt:
                    found.add((partition, start))
    return found


def named(examination, size: int) -> Lost:
    """Return the batches of `size` rows that an examination names as damaged."""
    return {
        (rows.partition, start)
        for one in examination.damage
        for rows in one.lost_rows
        for start in range(rows.start, rows.end, size)
    }
