"""The wire runs inside Spark's workers, where nothing of ours is installed beside it."""

import ast
import sys
from pathlib import Path

from headrace import model, wire

NOUNS = ("ids", "namespace", "results")
ALLOWED = ("headrace.errors", "headrace.wire", *(f"headrace.model.{each}." for each in NOUNS))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_wire_needs_only_the_standard_library():
    files = sorted(Path(wire.__path__[0]).glob("*.py"))
    assert len(files) > 8
    files += [Path(model.__path__[0]) / f"{each}.py" for each in NOUNS]
    for path in files:
        outside = {
            name
            for name in imported(path)
            if name.split(".")[0] not in sys.stdlib_module_names
            and not name.startswith(ALLOWED)
        }
        assert outside == set(), path.name
