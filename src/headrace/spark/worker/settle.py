"""Garbage in a worker of Spark, which collects it after each task.

A collection looks at every object, and most came with imports: that takes 40 ms, also after a
task of few rows, from the cores that the next batch needs. So they are left out of it.
"""

import gc
from functools import cache


@cache
def settle() -> None:
    """Leave what is there now out of collections, once in a process."""
    gc.collect()  # what is garbage now would stay for good
    gc.freeze()
