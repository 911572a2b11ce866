"""SQLite as a log, as a side of a case: a table of bodies, durable per transaction."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Round, Side, rate

_SETTINGS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
_TABLE = "CREATE TABLE log (op INTEGER PRIMARY KEY, body BLOB NOT NULL)"
_INSERT = "INSERT INTO log (body) VALUES (?)"


def inserting(directory: Path, body_size: int, row_count: int, commit_count: int) -> Side:
    """Insert rows, durable after each `row_count` of them; MiB/s.

    SQLite folds its log into the database inside the clock, whenever it wants to. To be kind,
    old rows are deleted outside: it finds free pages as the journal finds drained files.
    """
    return lambda: _inserting(directory / "sqlite", body_size, row_count, commit_count)


@contextmanager
def _inserting(
    path: Path, body_size: int, row_count: int, commit_count: int
) -> Iterator[Round]:
    rows = [(os.urandom(body_size),) for _ in range(row_count)]
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(_SETTINGS)
        database.execute(_TABLE)

        def work() -> None:
            for _ in range(commit_count):
                database.execute("BEGIN")
                database.executemany(_INSERT, rows)
                database.execute("COMMIT")

        def one_round() -> float:
            database.execute("DELETE FROM log")
            database.execute("PRAGMA wal_checkpoint")
            size = body_size * row_count * commit_count
            return rate(size / MIB, work)

        yield one_round
    path.unlink()
