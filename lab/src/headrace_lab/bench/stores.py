"""Alternative stores as sides of a case: the same batches, each durable."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from headrace.model import batch as batches
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Round, Side, rate
from headrace_lab.bench.rows import Rows

Put = Callable[[int, bytes], None]
Opened = Callable[[Path], AbstractContextManager[Put]]


def storing(store: str, path: Path, rows: Rows, count: int) -> Side | None:
    """Encode and store `count` batches, each durable before the next; MiB/s.

    None if what that needs is not installed. Each round begins with an empty store.
    """
    opened = _STORES[store]()
    return None if opened is None else lambda: _storing(opened, path / store, rows, count)


@contextmanager
def _storing(opened: Opened, path: Path, rows: Rows, count: int) -> Iterator[Round]:
    def one_round() -> float:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        with opened(path) as put:

            def work() -> None:
                for number in range(count):
                    put(number, bytes(batches.encode(rows[number])))

            size = sum(rows[number].nbytes for number in range(count))
            return rate(size / MIB, work)

    yield one_round
    shutil.rmtree(path, ignore_errors=True)


def _sqlite() -> Opened:
    @contextmanager
    def opened(path: Path) -> Iterator[Put]:
        with closing(sqlite3.connect(path / "log", isolation_level=None)) as database:
            database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            database.execute("CREATE TABLE log (op INTEGER PRIMARY KEY, body BLOB NOT NULL)")

            def put(number: int, body: bytes) -> None:
                database.execute("INSERT INTO log VALUES (?, ?)", (number, body))

            yield put

    return opened


def _lmdb() -> Opened | None:
    try:
        import lmdb
    except ImportError:
        return None

    @contextmanager
    def opened(path: Path) -> Iterator[Put]:
        with lmdb.open(str(path), map_size=64 * 1024 * MIB, sync=True) as environment:

            def put(number: int, body: bytes) -> None:
                with environment.begin(write=True) as transaction:
                    transaction.put(number.to_bytes(8, "big"), body, append=True)

            yield put

    return opened


def _rocksdb() -> Opened | None:
    try:
        import rocksdict
    except ImportError:
        return None

    @contextmanager
    def opened(path: Path) -> Iterator[Put]:
        database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        synced = rocksdict.WriteOptions()
        synced.sync = True
        database.set_write_options(synced)

        def put(number: int, body: bytes) -> None:
            database[number.to_bytes(8, "big")] = body

        yield put
        database.close()

    return opened


_STORES: dict[str, Callable[[], Opened | None]] = {
    "SQLite": _sqlite,
    "LMDB": _lmdb,
    "RocksDB": _rocksdb,
}
STORES = tuple(_STORES)
