"""Keeps pandas out of a process of ours alone: it takes 50 MiB and 0.2 s, and is never used.

Where it is installed, pyarrow imports it for the first value that it converts.
"""

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=name)


def hide_pandas() -> None:
    """Let imports of pandas fail from now on, as where it is not installed."""
    sys.meta_path.insert(0, _NoPandas())
