"""The directory in which a demo or a run of chaos takes place: empty, and often temporary."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.errors import Rejected, StorageFailed


@contextmanager
def empty_place(asked: Path | None, option: str, what: str) -> Iterator[Path]:
    """Give an empty directory: the one asked for by `option`, or one removed at the end."""
    try:
        if asked is None:
            with TemporaryDirectory(prefix=f".{what}-", dir=Path.cwd()) as directory:
                yield Path(directory)
            return
        asked.mkdir(mode=0o700, parents=True, exist_ok=True)
        if next(asked.iterdir(), None) is not None:
            raise Rejected(f"{asked} is not empty", hint=f"Name a new directory with {option}")
        yield asked.resolve()
    except OSError as error:
        raise StorageFailed(str(asked or Path.cwd()), what, error) from error
