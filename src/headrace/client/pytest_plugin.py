"""A pytest fixture for users: `headrace_log`, a real log in its own directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.client.sync import Log

_FILE_SIZE = "4MiB"  # of a journal file: tests are many and write little


@pytest.fixture
def headrace_log(tmp_path: Path) -> Iterator["Log"]:
    """Open an empty log for the duration of a test. Imports the client on first use only."""
    from headrace.client import public

    with public.open(tmp_path / "headrace", journal__file_size=_FILE_SIZE) as log:
        yield log
