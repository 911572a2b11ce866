"""The rows of a log, as a program finds them."""

from pathlib import Path

import headrace

Ids = dict[tuple[str, int], list[int]]  # by topic and partition


def ids_of(path: Path, settings: dict[str, object]) -> Ids:
    """Read the ids of all rows of a log, through the API."""
    with headrace.open(path, **settings) as log:
        return {
            (name, partition): [
                one
                for batch in log.topic(name).read(partition)
                for one in batch.column("id").to_pylist()
            ]
            for name in log.topics()
            for partition in range(log.topic(name).partitions)
        }
