"""A fixture for the tests of others: `headrace_log`, a real log in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.client.sync import Log

_FILE_SIZE = "4MiB"  # of a journal file: tests are many, and write little


@pytest.fixture
def headrace_log(tmp_path: Path) -> Iterator["Log"]:
    """Open a log that is empty, and goes with the test. Nothing is loaded before."""
    from headrace.client import public

    with public.open(tmp_path / "headrace", journal__file_size=_FILE_SIZE) as log:
        yield log
