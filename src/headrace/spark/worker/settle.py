"""Keeps imported objects out of the garbage collection that a Spark worker runs per task.

A collection visits every object, and most of them come from imports: that takes 40 ms even
after a task of few rows, on cores that the next batch needs.
"""

import gc
from functools import cache


@cache
def settle() -> None:
    """Exclude all current objects from collections, once per process."""
    gc.collect()  # current garbage would stay permanently
    gc.freeze()
