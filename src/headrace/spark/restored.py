"""Has somebody put back an older state of a table? It goes on to record the newer one.

Delta's RESTORE changes which files a table has, and leaves its txn actions: they name rows that
are gone. So each commit that changes rows records its own version, and the entries of the
table's log since then are read; usually there are none. A restore to a state that the table had
since then, such as one that undoes another, takes no row away.

States are compared by what the entries add and remove. Deltalake is not asked: its history
numbers commits wrongly if others came since the table was loaded, and a version whose first
entries were cleaned up loads with files missing. Entries that are gone count as no restore.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from headrace.spark.delta import log_damage
from headrace.spark.record import Record, local_path
from headrace.spark.table_errors import TableRestored

_RESTORE: Final = "RESTORE"  # what Spark and deltalake call it

Actions = Sequence[dict[str, Any]]  # of one entry


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore after which the rows of a table are not those that it records."""

    path: str  # of the table
    version: int  # that the restore made
    can_be_undone: bool  # the version before is there, and all its files

    def __str__(self) -> str:
        return (
            f"the table at {self.path} was restored to an older version by its version "
            f"{self.version}"
        )

    def ways_out(self, anew: str) -> str:
        """Return what to do about it; `anew` always helps."""
        before = f"its version {self.version - 1}"
        if self.can_be_undone:
            return f"Two ways out: restore {before}, and go on, or {anew}"
        return f"What {before} had is not all there any more, so {anew}"


@dataclass(slots=True)
class _Change:
    """How the files of a table differ from those that it had at one version."""

    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    digest: int = 0  # of both: who keeps many need not keep their names

    def play(self, actions: Actions) -> None:
        for action in actions:
            if "add" in action:
                self._move(unquote(action["add"]["path"]), self.removed, self.added)
            elif "remove" in action:
                self._move(unquote(action["remove"]["path"]), self.added, self.removed)

    def _move(self, path: str, back: set[str], there: set[str]) -> None:
        """Note a file as added or removed, or, if it was the other before, as neither."""
        if path in there:
            return
        if path in back:
            back.remove(path)
        else:
            there.add(path)
        self.digest ^= hash(path)


def refuse_restored(record: Record) -> None:
    """Raise TableRestored if the rows of a pipeline's table are not those that it records."""
    found = restore_of(record)
    if found is not None:
        anew = "bring its rows again: headrace pipeline reset FILE --truncate"
        raise TableRestored(
            f"{found}, and its rows are not those that it records", hint=found.ways_out(anew)
        )


def restore_of(record: Record) -> Restore | None:
    """Return the restore that counts. None: there is none, it was undone, or nobody knows."""
    if record.version is None:
        return None
    version = None  # of the restore
    every, since = _Change(), _Change()  # from the recorded version on, and from the last whole
    whole = {every.digest}  # what the table was while its rows were those that it records
    for number, actions in _entries(record, record.version):
        every.play(actions)
        since.play(actions)
        is_whole = every.digest in whole if _is_restore(actions) else version is None
        if is_whole:
            whole.add(every.digest)
            version, since = None, _Change()
        elif version is None:
            version = number
    if version is None:
        return None
    return Restore(record.path, version, _is_there(record, version - 1, since.removed))


def _entries(record: Record, version: int) -> Iterator[tuple[int, Actions]]:
    """Give the entries of the table's log behind a version, those that are there."""
    for number in range(version + 1, record.table.version() + 1):
        with suppress(FileNotFoundError):
            yield number, _actions(record, number)


def _actions(record: Record, number: int) -> Actions:
    lines = record.entry(number).read_bytes().splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise log_damage(record.path, error) from error


def _is_restore(actions: Actions) -> bool:
    told = (action.get("commitInfo") or {} for action in actions)
    return any(each.get("operation") == _RESTORE for each in told)


def _is_there(record: Record, version: int, removed: Collection[str]) -> bool:
    """Tell whether a version can be restored, from which these files were removed since."""
    entry = record.entry(version)
    is_told = any(entry.parent.glob(f"{entry.stem}.*"))  # by itself, or by a checkpoint
    files = (Path(record.path, local_path(path)) for path in removed)
    return is_told and all(file.exists() for file in files)
