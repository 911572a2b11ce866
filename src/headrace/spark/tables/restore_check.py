"""Has somebody put back an older state of a table? It goes on to record the newer one.

Delta's RESTORE changes which files a table has, and leaves its txn actions: they name rows that
are gone. So each commit that changes rows records its own version, and the entries of the
table's log since then are read; usually there are none. A restore to a state that the table had
since then, such as one that undoes another, takes no row away.

States are compared by what the entries add and remove. Deltalake is not asked: its history
numbers commits wrongly if others came since the table was loaded, and a version whose first
entries were cleaned up loads with files missing. Entries that are gone count as no restore. If
others came after them, the table is compared with what it was then, and a restore of a version
among those that are gone stops nobody, either.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from headrace.errors import ReadFailed
from headrace.spark.source.delta_scan import log_damage
from headrace.spark.tables.table_errors import TableRestored
from headrace.spark.tables.table_record import Record, local_path

_RESTORE: Final = "RESTORE"  # what Spark and deltalake call it


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


@dataclass(frozen=True, slots=True)
class _Entry:
    """What an entry of a table's log does to its files."""

    added: Sequence[str]
    removed: Sequence[str]
    is_restore: bool
    target: int | None  # the version that it restores; None: it names a time, or nothing


@dataclass(slots=True)
class _Change:
    """How the files of a table differ from those that it had at one version."""

    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    digest: int = 0  # of both: who keeps many need not keep their names

    def play(self, entry: _Entry) -> None:
        for path in entry.removed:
            self._move(path, self.added, self.removed)
        for path in entry.added:
            self._move(path, self.removed, self.added)

    def _move(self, path: str, back: set[str], there: set[str]) -> None:
        """Note a file as added or removed, or, if it was the other before, as neither."""
        if path in there:
            return
        if path in back:
            back.remove(path)
        else:
            there.add(path)
        self.digest ^= hash(path)


@dataclass(slots=True)
class _Replay:
    """What became of a table since the version that it records."""

    version: int  # that it records
    reached: int  # the newest version that was looked at
    first: int | None = None  # version whose entry was the first that is there
    restore: int | None = None  # version that made the rows others than are recorded
    every: _Change = field(default_factory=_Change)  # since the recorded version
    since: _Change = field(default_factory=_Change)  # since the last whole one
    whole: set[int] = field(default_factory=lambda: {0})  # digests, from before any restore

    def play(self, number: int, entry: _Entry) -> None:
        self.first = self.first or number
        self.every.play(entry)
        self.since.play(entry)
        if self._has_all(entry) if entry.is_restore else self.restore is None:
            self.whole.add(self.every.digest)
            self.restore, self.since = None, _Change()
        elif self.restore is None:
            self.restore = number

    def _has_all(self, restore: _Entry) -> bool:
        """Tell whether a restore brings a state that had the rows that are recorded."""
        assert self.first is not None
        if restore.target is not None and self.version <= restore.target < self.first:
            return True  # the recorded version, or one of which nobody knows the files
        return self.every.digest in self.whole


@dataclass(slots=True)
class Watch:
    """Looks at a table again and again, and reads each entry of its log once.

    A pipeline that waits for rows looks each second, and others may commit thousands of times.
    """

    table: str = ""  # its id: another may be at its path one day
    replay: _Replay | None = None

    def restore_of(self, record: Record) -> Restore | None:
        """Return the restore that counts. None: none, it was undone, or nobody knows."""
        if record.version is None:
            return None
        replay = self._replay(record, record.version)
        while replay.reached < record.table.version():
            entry = _read(record, replay.reached + 1)
            replay.reached += 1
            if entry is not None:
                replay.play(replay.reached, entry)
        if replay.restore is None:
            return None
        can_be_undone = _is_there(record, replay.restore - 1, replay.since.removed)
        return Restore(record.path, replay.restore, can_be_undone)

    def _replay(self, record: Record, version: int) -> _Replay:
        """Return what to go on with: what was read before, if it is of this table's rows."""
        table, found = str(record.table.metadata().id), self.replay
        is_other = self.table != table or found is None or found.version != version
        if found is None or is_other or found.reached > record.table.version():
            found = _Replay(version, version)
            self.table, self.replay = table, found
        return found


def refuse_restored(record: Record, watch: Watch | None = None) -> None:
    """Raise TableRestored if the rows of a pipeline's table are not those that it records."""
    found = (watch or Watch()).restore_of(record)
    if found is not None:
        anew = "bring its rows again: headrace pipeline reset FILE --truncate"
        raise TableRestored(
            f"{found}, and its rows are not those that it records", hint=found.ways_out(anew)
        )


def restore_of(record: Record) -> Restore | None:
    """Return the restore that counts, in one look."""
    return Watch().restore_of(record)


def _read(record: Record, version: int) -> _Entry | None:
    """Return an entry of the table's log. None: it was cleaned up."""
    path = record.entry(version)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadFailed(str(path), error) from error
    try:
        return _entry([json.loads(line) for line in lines if line.strip()])
    except ValueError as error:
        flaw = ValueError(f"version {version} has {error}")
        raise log_damage(record.path, flaw) from error


def _entry(actions: Sequence[object]) -> _Entry:
    """Take from an entry what counts. ValueError: it is not what a log of Delta has."""
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line that is no action")
    removed = _files(actions, "remove")
    added = _files(actions, "add")
    # Without a file that goes and a row that changes, they are there: it tells more of them.
    is_known = not removed and not any(one.get("dataChange", True) for one in added)
    told = [one for one in _each(actions, "commitInfo") if isinstance(one, dict)]
    restores = [one for one in told if one.get("operation") == _RESTORE]
    return _Entry(
        [] if is_known else [unquote(one["path"]) for one in added],
        [unquote(one["path"]) for one in removed],
        bool(restores),
        _target(restores),
    )


def _files(actions: Iterable[Any], kind: str) -> list[dict[str, Any]]:
    found = _each(actions, kind)
    if not all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in found):
        raise ValueError(f"a file without a name in {kind}")
    return found


def _each(actions: Iterable[Any], kind: str) -> list[Any]:
    return [action[kind] for action in actions if action.get(kind) is not None]


def _target(restores: Iterable[dict[str, Any]]) -> int | None:
    for one in restores:
        parameters = one.get("operationParameters")
        version = parameters.get("version") if isinstance(parameters, dict) else None
        if isinstance(version, int | str) and str(version).isdecimal():
            return int(version)
    return None


def _is_there(record: Record, version: int, removed: Collection[str]) -> bool:
    """Tell whether a version can be restored, from which these files were removed since."""
    files = (Path(record.path, local_path(path)) for path in removed)
    return _is_told(record, version) and all(file.exists() for file in files)


def _is_told(record: Record, version: int) -> bool:
    """Tell whether the log has all entries of a version, from the first or a checkpoint on."""
    for number in range(version, -1, -1):
        entry = record.entry(number)
        if any(entry.parent.glob(f"{entry.stem}.checkpoint*")):
            return True
        if not entry.exists():
            return False
    return True
