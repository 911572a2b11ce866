"""Both twins of the storage seams: a test that asks for `root` runs on each."""

import pytest

from headrace.storage.file import FileDirectory
from headrace_lab.disk.memory import MemoryDisk


@pytest.fixture(params=["file", "memory"])
def root(request, tmp_path):
    if request.param == "memory":
        yield MemoryDisk().root
        return
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as directory:
        yield directory
