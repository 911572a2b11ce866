"""What lies where a table is to be made."""

from pathlib import Path


def first_file(root: Path) -> Path | None:
    """Return a file below a directory that readers of tables would see: no hidden one."""
    for found in root.rglob("*"):
        names = found.relative_to(root).parts
        if not any(name.startswith(("_", ".")) for name in names) and found.is_file():
            return found
    return None
