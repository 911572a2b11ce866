"""Data files that are in no version of a table: of tasks and drivers that were killed."""

import json
import time
from pathlib import Path

from headrace.spark.worker.files import OURS


def orphans_of(table: str, age_seconds: float) -> list[Path]:
    """Return the files of ours that the table's log has never named, and that are old enough.

    A young file may be of a driver that is about to commit it.
    """
    root = Path(table)
    named = _named(root)
    oldest = time.time() - age_seconds
    return sorted(
        path
        for path in root.iterdir()
        if OURS.fullmatch(path.name)
        and path.name not in named
        and path.stat().st_mtime <= oldest
    )


def _named(root: Path) -> set[str]:
    """Return every file that the log names: in entries, and in the state of the table."""
    from headrace.spark.record import table_at

    found = {Path(uri).name for uri in table_at(str(root)).file_uris()}
    for entry in sorted((root / "_delta_log").glob("*.json")):
        for line in entry.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                if kind in action:
                    found.add(Path(action[kind]["path"]).name)
    return found
