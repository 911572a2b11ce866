"""Detects that a table was restored to an older version while it still records the newer one.

Delta's RESTORE changes the files of a table but keeps its txn actions, which then count rows
that the table no longer has. So each commit that changes rows records its own version, and the
entries of the table's log since then are read; usually there are none. A restore to a state
that the table had since then, such as one that undoes another, removes no rows.

States are compared by what the entries add and remove, not with deltalake: its history numbers
commits wrongly if more came since the table was loaded, and a version whose first entries were
cleaned up loads with files missing. Entries that were cleaned up count as no restore. If later
entries exist, the table is compared with its state at the first of them, and a restore of a
version that was cleaned up does not stop a pipeline, either.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from headrace.spark.tables.table_errors import TableRestored
from headrace.spark.tables.table_log import Action, each_of, is_told, read_entry
from headrace.spark.tables.table_record import Record

_RESTORE: Final = "RESTORE"  # the operation's name in Spark and deltalake


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore after which the rows of a table are not those that it records."""

    path: str  # of the table
    version: int  # created by the restore
    can_be_undone: bool  # the version before it and all its files exist

    def __str__(self) -> str:
        return f"version {self.version} of the table at {self.path} restored an older version"

    def ways_out(self, restart: str) -> str:
        """Return what to do about it; `restart` always helps."""
        before = f"version {self.version - 1}"
        if self.can_be_undone:
            return f"Two ways out: restore {before} and continue, or {restart}"
        return f"{before.capitalize()} is no longer complete, so {restart}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """The effect of an entry of a table's log on its files."""

    added: Sequence[str]
    removed: Sequence[str]
    is_restore: bool
    target: int | None  # the version that it restores; None: a time, or unknown


@dataclass(slots=True)
class _Change:
    """The difference between the files of a table and those at an earlier version."""

    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    digest: int = 0  # of both sets, to remember many states without their names

    def play(self, entry: _Entry) -> None:
        for path in entry.removed:
            self._move(path, self.added, self.removed)
        for path in entry.added:
            self._move(path, self.removed, self.added)

    def _move(self, path: str, back: set[str], there: set[str]) -> None:
        """Record a file as added or removed, or cancel the opposite."""
        if path in there:
            return
        if path in back:
            back.remove(path)
        else:
            there.add(path)
        self.digest ^= hash(path)


@dataclass(slots=True)
class _Replay:
    """The history of a table since the version that it records."""

    version: int  # recorded in the table
    reached: int  # the newest version read
    first: int | None = None  # the version of the first existing entry
    restore: int | None = None  # the version whose restore made the rows differ
    every: _Change = field(default_factory=_Change)  # since the recorded version
    since: _Change = field(default_factory=_Change)  # since the last whole one
    whole: set[int] = field(default_factory=lambda: {0})  # digests of states with all rows

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
        """Whether a restore leads to a state with the recorded rows."""
        assert self.first is not None
        if restore.target is not None and self.version <= restore.target < self.first:
            return True  # the recorded version, or one whose files are unknown
        return self.every.digest in self.whole


@dataclass(slots=True)
class Watch:
    """Checks a table repeatedly, reading each entry of its log once.

    An idle pipeline checks every second, and other writers may commit thousands of times.
    """

    table: str = ""  # its id: another table may appear at the path
    replay: _Replay | None = None

    def restore_of(self, record: Record) -> Restore | None:
        """Return the restore in effect. None: there is none, it was undone, or is unknown."""
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
        """Return the replay to continue: the last one if it fits this table and version."""
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
        restart = "load its rows again: headrace pipeline reset FILE --truncate"
        raise TableRestored(
            f"{found}, so the rows are not those that the table records",
            hint=found.ways_out(restart),
        )


def restore_of(record: Record) -> Restore | None:
    """Return the restore in effect, in a single check."""
    return Watch().restore_of(record)


def _read(record: Record, version: int) -> _Entry | None:
    """Return the effect of an entry of the table's log. None: it was cleaned up."""
    actions = read_entry(record.store, version)
    return None if actions is None else _entry(actions)


def _entry(actions: Sequence[Action]) -> _Entry:
    removed, added = each_of(actions, "remove"), each_of(actions, "add")
    # No file removed and no row changed: the files are already in; this only adds details.
    is_known = not removed and not any(one.get("dataChange", True) for one in added)
    told = [one for one in each_of(actions, "commitInfo") if isinstance(one, dict)]
    restores = [one for one in told if one.get("operation") == _RESTORE]
    return _Entry(
        [] if is_known else [unquote(one["path"]) for one in added],
        [unquote(one["path"]) for one in removed],
        bool(restores),
        _target(restores),
    )


def _target(restores: Iterable[dict[str, Any]]) -> int | None:
    for one in restores:
        parameters = one.get("operationParameters")
        version = parameters.get("version") if isinstance(parameters, dict) else None
        if isinstance(version, int | str) and str(version).isdecimal():
            return int(version)
    return None


def _is_there(record: Record, version: int, removed: Collection[str]) -> bool:
    """Whether a version can be restored, given the files removed since then."""
    return is_told(record.store, version) and all(map(record.has, removed))
