"""Headrace: a durable, replicated log for Arrow data that feeds Spark."""

__version__ = "0.1.0.dev0"

# Asserts state what this code guarantees about stored data. Without them a broken guarantee
# would go on to write, so no part of the package loads under -O.
if not __debug__:
    raise RuntimeError(
        "headrace does not run under python -O or PYTHONOPTIMIZE: "
        "its assertions guard stored data. Start Python without it"
    )
